"""The recipe: everything that decides a training run, validated, and its YAML form."""

from typing import TYPE_CHECKING, Annotated, Literal, Union

import yaml
from pydantic import Field

from protosphere.data.augmentation import AugmentationPolicy
from protosphere.recipes.registry import DATASETS, LOSSES, DataSettings, LossSettings
from protosphere.recipes.schema.sections import (
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

    @property
    def split(self) -> Literal["test", "validation"]:
        """The split that the run is evaluated on."""
        return "validation" if self.data.validation_fraction else "test"

    def to_yaml(self) -> str:
        """Return the recipe as YAML, which :func:`recipe_from_yaml` reads."""
        text: str = yaml.safe_dump(
            self.model_dump(mode="json"), sort_keys=False, allow_unicode=True
        )
        return text
