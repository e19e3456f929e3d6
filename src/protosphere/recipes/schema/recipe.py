"""The recipe: everything that decides a training run, validated, and its YAML form."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import yaml
from pydantic import Field, model_validator

from protosphere.data.augmentation import AugmentationPolicy
from protosphere.encoders.pretrained import input_config
from protosphere.recipes.datasets import DATASETS, DataSettings
from protosphere.recipes.loss_settings import LossSettings
from protosphere.recipes.registry import LOSSES
from protosphere.recipes.schema.sections import (
    Backbone,
    CheckpointSettings,
    CosineSchedule,
    EvaluationSettings,
    Model,
    Optimizer,
    ProbeSettings,
    Schedule,
    SGDSettings,
    Training,
)
from protosphere.recipes.section import Section
from protosphere.runs.recipe_keys import flatten

if TYPE_CHECKING:
    AnyData = DataSettings
    AnyLoss = LossSettings
else:
    # One member per row of the registry.
    AnyData = Annotated[
        Union[tuple(dict.fromkeys(entry.settings for entry in DATASETS.values()))],  # noqa: UP007
        Field(discriminator="source"),
    ]
    AnyLoss = Annotated[
        Union[tuple(dict.fromkeys(entry.settings for entry in LOSSES.values()))],  # noqa: UP007
        Field(discriminator="name"),
    ]

# Integers of a recipe must be less.
_INTEGER_LIMIT = 2**31


class Recipe(Section):
    """A training run.

    >>> from protosphere.recipes.catalog import get_recipe
    >>> get_recipe("cifar100-nonl").loss.temperature
    0.1
    """

    name: str = Field(min_length=1)
    data: AnyData
    augmentation: AugmentationPolicy = AugmentationPolicy()
    model: Model = Model()
    loss: AnyLoss
    optimizer: Optimizer = SGDSettings()
    schedule: Schedule = CosineSchedule()
    training: Training = Training()
    evaluation: EvaluationSettings = EvaluationSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    probe: ProbeSettings = ProbeSettings()
    seed: int = Field(42, ge=0, lt=2**31)

    @model_validator(mode="before")
    @classmethod
    def _refuse_huge_integers(cls, values: Any) -> Any:
        """Refuse integers of more than 32 bits: torch's errors do not name the setting."""
        for path, value in flatten(values).items() if isinstance(values, dict) else ():
            items = value if isinstance(value, list | tuple) else [value]
            huge = [item for item in items if isinstance(item, int) and item >= _INTEGER_LIMIT]
            if huge:
                raise ValueError(f"{path} must be less than {_INTEGER_LIMIT}, got {huge[0]}")
        return values

    @model_validator(mode="before")
    @classmethod
    def _take_size_of_pretrained_model(cls, values: Any) -> Any:
        """Give a pretrained model images of its own size, unless the recipe sets a size."""
        try:
            backbone = values["model"]["backbone"]
            augmentation = values.get("augmentation") or {}
            is_needed = backbone.get("pretrained") and "size" not in augmentation
            name = str(backbone.get("name", Backbone().name))
            config = input_config(name) if is_needed else None
            if config is None:
                return values
            return {**values, "augmentation": {**augmentation, "size": config.size}}
        except (AttributeError, KeyError, TypeError):
            return values  # Objects instead of plain values, or not valid: the fields say so.

    @model_validator(mode="after")
    def _check_sections_together(self) -> "Recipe":
        conflict = self.loss.soft_labels_conflict
        mixing = self.augmentation.mixing
        if mixing is not None and conflict is not None:
            raise ValueError(
                f"augmentation.mixing must be null with {conflict}, which needs one class per "
                f"image, got {mixing.name}"
            )
        soft_negatives = getattr(self.loss, "soft_negatives", "excluded")
        is_soft = mixing is not None or bool(getattr(self.loss, "label_smoothing", 0))
        if not is_soft and soft_negatives != "excluded":
            raise ValueError(
                "loss.soft_negatives has no effect without augmentation.mixing or "
                "loss.label_smoothing"
            )
        queue = getattr(self.loss, "queue", None)
        if queue is not None and queue.start_epoch >= self.schedule.epochs:
            raise ValueError(
                f"loss.queue.start_epoch must be less than schedule.epochs "
                f"({self.schedule.epochs}), got {queue.start_epoch}"
            )
        is_sharded = getattr(self.loss, "shard_prototypes", False)
        if is_sharded and self.optimizer.name not in ("sgd", "adamw"):
            raise ValueError(
                "optimizer.name must be sgd or adamw with loss.shard_prototypes, got "
                f"{self.optimizer.name}"
            )
        if is_sharded and self.training.fsdp:
            raise ValueError("training.fsdp must be false with loss.shard_prototypes, got true")
        if self.checkpoint.monitor is not None and self.split != "validation":
            raise ValueError(
                f"checkpoint.monitor needs validation images, because choosing a checkpoint on "
                f"test images would make their {self.checkpoint.monitor} too good: set "
                "data.validation_fraction (or data.validation_folder)"
            )
        if self.model.freeze == "backbone":
            scale, decay = self.optimizer.lr_scale.backbone, self.optimizer.layer_decay
            for key, value, unset in (
                ("lr_scale.backbone", scale, "1"),
                ("layer_decay", decay, "null"),
            ):
                if value not in (1, None):
                    raise ValueError(
                        f"optimizer.{key} must be {unset} with model.freeze backbone, got {value}"
                    )
        return self

    @property
    def split(self) -> Literal["test", "validation"]:
        """The split that the run is evaluated on."""
        return "validation" if self.data.has_validation else "test"

    def to_yaml(self) -> str:
        """Return the recipe as YAML, which :func:`recipe_from_yaml` reads."""
        text: str = yaml.safe_dump(
            self.model_dump(mode="json"), sort_keys=False, allow_unicode=True
        )
        return text
