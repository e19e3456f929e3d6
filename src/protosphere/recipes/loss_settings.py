"""Keys that several losses of recipes have."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field, PrivateAttr, model_validator
from torch import Tensor

from protosphere.data.imbalance import balanced_class_weights, effective_class_weights
from protosphere.recipes.queues import QueueSettings
from protosphere.recipes.section import Section

Form = Literal["auto", "eager", "chunked"]


class LossSettings(Section):
    """Keys that every loss has."""

    name: str
    class_weights: (
        Literal["balanced", "effective"] | tuple[Annotated[float, Field(ge=0)], ...] | None
    ) = Field(
        None,
        description="One non-negative weight per class; balanced: inverse class frequency; "
        "effective: inverse effective number of images.",
    )
    _class_counts: tuple[int, ...] | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _check_class_weights(self) -> "LossSettings":
        if isinstance(self.class_weights, tuple) and not any(self.class_weights):
            raise ValueError("class_weights must not all be zero")
        return self

    @property
    def needs_class_counts(self) -> bool:
        """Whether the loss depends on the number of training images of each class."""
        return isinstance(self.class_weights, str)

    @property
    def soft_labels_conflict(self) -> str | None:
        """The setting that does not go with mixed images; None if all do."""
        return None

    def with_class_counts(self, counts: Sequence[int]) -> "LossSettings":
        """Return a copy that knows the number of training images of each class."""
        copy = self.model_copy()
        copy._class_counts = tuple(counts)
        return copy

    def counts_tensor(self) -> Tensor:
        """Return the number of training images of each class.

        Raises:
            ValueError: The class counts are not known.
        """
        if self._class_counts is None:
            raise ValueError("the number of training images of each class must be known")
        return torch.tensor(self._class_counts)

    def weight_tensor(self) -> Tensor | None:
        """Return the class weights as a tensor."""
        if self.class_weights is None:
            return None
        if self.class_weights == "balanced":
            return balanced_class_weights(self.counts_tensor())
        if self.class_weights == "effective":
            return effective_class_weights(self.counts_tensor())
        return torch.tensor(self.class_weights)


class SmoothingSettings(LossSettings):
    """Keys of losses with label smoothing."""

    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="Fraction of each target that is spread over all classes."
    )


class AdjustmentSettings(LossSettings):
    """Keys of losses with logit adjustment."""

    logit_adjustment: float = Field(
        0.0,
        ge=0,
        description="Factor of the log class frequency that is added to the logits in the loss, "
        "for imbalanced data.",
    )

    @property
    def needs_class_counts(self) -> bool:
        """Whether the loss depends on the number of training images of each class."""
        return bool(self.logit_adjustment) or super().needs_class_counts

    def adjustment_tensor(self) -> Tensor | None:
        """Return what is added to the logit of each class."""
        if not self.logit_adjustment:
            return None
        counts = self.counts_tensor().double()
        return (self.logit_adjustment * (counts / counts.sum()).log()).float()


class FormSettings(LossSettings):
    """Keys of losses that are computed eagerly or in tiles."""

    form: Form = Field(
        "auto", description="How pairs are summed: all at once, in tiles, or chosen by size."
    )


class TemperatureSettings(FormSettings):
    """Keys of losses with a temperature."""

    temperature: float = Field(0.1, gt=0, description="Temperature of the scaled cosines.")


class CosineHeadSettings(TemperatureSettings):
    """Keys of losses that train the prototypes of a cosine classifier."""

    learn_temperature: bool = Field(
        False, description="Train the temperature; the value above is where it starts."
    )
    min_temperature: float | None = Field(
        None, gt=0, description="Lower bound of a learned temperature."
    )
    shard_prototypes: bool = Field(
        False,
        description="Divide the prototypes over the processes that train together, for many "
        "classes; it has no effect on one process.",
    )

    @model_validator(mode="after")
    def _check_min_temperature(self) -> "CosineHeadSettings":
        if not self.learn_temperature and self.min_temperature is not None:
            raise ValueError("min_temperature has no effect without learn_temperature: true")
        if self.min_temperature is not None and self.temperature < self.min_temperature:
            raise ValueError(
                f"temperature must be at least min_temperature ({self.min_temperature}), got "
                f"{self.temperature}"
            )
        return self

    @model_validator(mode="after")
    def _check_shards(self) -> "CosineHeadSettings":
        for name in ("label_smoothing", "queue"):
            if self.shard_prototypes and getattr(self, name, None):
                raise ValueError(f"shard_prototypes must be false with {name}, got true")
        return self

    @property
    def soft_labels_conflict(self) -> str | None:
        """The setting that does not go with mixed images."""
        return "loss.shard_prototypes" if self.shard_prototypes else super().soft_labels_conflict


class QueuedLossSettings(LossSettings):
    """Keys of losses with a queue of recent features."""

    queue: QueueSettings | None = Field(
        None,
        description="Features of earlier steps as further keys: size, start_epoch, max_age, "
        "rescale.",
    )

    @model_validator(mode="after")
    def _check_queue(self) -> "QueuedLossSettings":
        if self.queue is not None and getattr(self, "label_smoothing", False):
            raise ValueError("queue must be null with label_smoothing: an entry has one class")
        if self.queue is not None and getattr(self, "negatives", None) == "prototypes":
            raise ValueError("queue must be null with negatives prototypes: no samples are keys")
        if self.queue is not None and self.queue.rescale and getattr(self, "name", None) == "scl":
            raise ValueError("queue.rescale must be false for scl: it is for ntce and nonl")
        return self

    @property
    def soft_labels_conflict(self) -> str | None:
        """The setting that does not go with mixed images."""
        return super().soft_labels_conflict if self.queue is None else "loss.queue"
