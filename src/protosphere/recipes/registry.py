"""The losses that a recipe can name: one settings class and one row each.

To add a loss, write its settings class and its row here; the schema, the catalog, the command line
and the contract tests read :data:`LOSSES`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

import torch
from pydantic import Field, PrivateAttr, model_validator
from torch import Tensor, nn

from protosphere.classifiers import (
    CosineClassifier,
    FixedFrameClassifier,
    LinearClassifier,
    MeanClassifier,
)
from protosphere.classifiers.protocol import Head
from protosphere.data.imbalance import balanced_class_weights, effective_class_weights
from protosphere.losses import (
    CrossEntropyLoss,
    DotRegressionLoss,
    NONLLoss,
    NormFaceLoss,
    NTCELoss,
    PrototypeLoss,
    SCLLoss,
)
from protosphere.parallel import ProcessGroup
from protosphere.recipes.queues import QueueSettings
from protosphere.recipes.section import Section

Form = Literal["auto", "eager", "chunked"]
SomeLoss = TypeVar("SomeLoss", bound="LossSettings")


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


class _SmoothingSettings(LossSettings):
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="Fraction of each target that is spread over all classes."
    )


class _AdjustmentSettings(LossSettings):
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


class _FormSettings(LossSettings):
    form: Form = Field(
        "auto", description="How pairs are summed: all at once, in tiles, or chosen by size."
    )


class _TemperatureSettings(_FormSettings):
    temperature: float = Field(0.1, gt=0, description="Temperature of the scaled cosines.")


class _CosineHeadSettings(_TemperatureSettings):
    learn_temperature: bool = Field(
        False, description="Train the temperature; the value above is where it starts."
    )
    min_temperature: float | None = Field(
        None, gt=0, description="Lower bound of a learned temperature."
    )

    @model_validator(mode="after")
    def _check_min_temperature(self) -> "_CosineHeadSettings":
        if not self.learn_temperature and self.min_temperature is not None:
            raise ValueError("min_temperature has no effect without learn_temperature: true")
        if self.min_temperature is not None and self.temperature < self.min_temperature:
            raise ValueError(
                f"temperature must be at least min_temperature ({self.min_temperature}), got "
                f"{self.temperature}"
            )
        return self


class _QueueSettings(LossSettings):
    queue: QueueSettings | None = Field(
        None, description="Features of earlier steps as further keys: size, start_epoch, max_age."
    )

    @model_validator(mode="after")
    def _check_queue(self) -> "_QueueSettings":
        if self.queue is not None and getattr(self, "label_smoothing", False):
            raise ValueError("queue must be null with label_smoothing: an entry has one class")
        if self.queue is not None and getattr(self, "negatives", None) == "prototypes":
            raise ValueError("queue must be null with negatives prototypes: no samples are keys")
        return self

    @property
    def soft_labels_conflict(self) -> str | None:
        """The setting that does not go with mixed images."""
        return super().soft_labels_conflict if self.queue is None else "loss.queue"


class CESettings(_FormSettings, _SmoothingSettings, _AdjustmentSettings):
    """Cross-entropy of a linear classifier."""

    name: Literal["ce"] = "ce"


class NormFaceSettings(_CosineHeadSettings, _SmoothingSettings, _AdjustmentSettings):
    """NormFace: softmax over scaled cosines, optionally with a margin."""

    name: Literal["normface"] = "normface"
    margin: float = Field(0.0, ge=0, le=math.pi)
    margin_kind: Literal["cosine", "angle"] | None = Field(
        None, description="What the margin is added to; null means cosine."
    )

    @model_validator(mode="after")
    def _check_margin(self) -> "NormFaceSettings":
        if self.margin_kind is not None and not self.margin:
            raise ValueError("margin_kind has no effect without a margin")
        if self.margin_kind != "angle" and self.margin > 2:
            raise ValueError(f"margin must be at most 2 for margin_kind cosine, got {self.margin}")
        if self.margin and self.label_smoothing:
            raise ValueError("margin must be 0 with label_smoothing: a margin needs one class")
        return self

    @property
    def soft_labels_conflict(self) -> str | None:
        """The setting that does not go with mixed images."""
        return "loss.margin" if self.margin else None


class NTCESettings(_CosineHeadSettings, _SmoothingSettings, _QueueSettings):
    """NTCE: each prototype against all samples of the batch."""

    name: Literal["ntce"] = "ntce"


class NONLSettings(_CosineHeadSettings, _SmoothingSettings, _QueueSettings):
    """NONL: each prototype against the samples of other classes."""

    name: Literal["nonl"] = "nonl"
    negatives: Literal["samples", "prototypes", "both"] = "samples"
    soft_negatives: Literal["excluded", "weighted"] = Field(
        "excluded",
        description="How a mixed image is a negative of the classes it has a part of: not at all, "
        "or with a weight.",
    )

    @model_validator(mode="after")
    def _check_soft_labels(self) -> "NONLSettings":
        if self.label_smoothing and self.negatives != "samples":
            raise ValueError(
                f"negatives must be samples with label_smoothing, got {self.negatives}"
            )
        return self

    @property
    def soft_labels_conflict(self) -> str | None:
        """The setting that does not go with mixed images."""
        if self.negatives != "samples":
            return f"loss.negatives {self.negatives}"
        return super().soft_labels_conflict

    @model_validator(mode="after")
    def _require_min_temperature(self) -> "NONLSettings":
        if self.learn_temperature and self.min_temperature is None:
            raise ValueError(
                "learn_temperature needs min_temperature: NONL has no minimum as it goes to 0"
            )
        return self


class DotRegressionSettings(_SmoothingSettings):
    """Dot regression onto a fixed simplex ETF."""

    name: Literal["etf-dr"] = "etf-dr"
    frame: Literal["simplex", "code"] = Field(
        "simplex", description="code also exists in fewer than num_classes - 1 dimensions."
    )


class _ContrastiveSettings(_TemperatureSettings):
    @property
    def soft_labels_conflict(self) -> str | None:
        """The setting that does not go with mixed images."""
        return f"loss {self.name}"


class SCLSettings(_ContrastiveSettings, _QueueSettings):
    """Supervised contrastive loss."""

    name: Literal["scl"] = "scl"


class PrototypeLossSettings(_ContrastiveSettings):
    """Prototype loss: each sample against the class means of the batch."""

    name: Literal["proto"] = "proto"


@dataclass(frozen=True)
class LossEntry(Generic[SomeLoss]):
    """What the project needs to know of a loss.

    Attributes:
        settings: The keys that a recipe can set under ``loss``.
        title: Name of the loss in tables.
        head: Creates the classifier head from the settings, the feature dimension and the number
            of classes.
        loss: Creates the loss module from the settings and the process group that it is computed
            over.
        call: ``"head"`` for a module called with (features, head, labels), ``"features"`` for one
            called with (features, labels).
        training: ``"classifier"`` for losses that train a head, ``"contrastive"`` for losses that
            compare samples with each other.
    """

    settings: type[SomeLoss]
    title: str
    head: Callable[[SomeLoss, int, int], Head]
    loss: Callable[[SomeLoss, ProcessGroup | None], nn.Module]
    call: Literal["head", "features"] = "head"
    training: Literal["classifier", "contrastive"] = "classifier"


def _linear_head(_: LossSettings, dim: int, num_classes: int) -> Head:
    return LinearClassifier(dim, num_classes)


def _cosine_head(settings: _CosineHeadSettings, dim: int, num_classes: int) -> Head:
    return CosineClassifier(
        dim,
        num_classes,
        temperature=settings.temperature,
        learn_temperature=settings.learn_temperature,
        min_temperature=settings.min_temperature,
    )


def _fixed_head(settings: DotRegressionSettings, dim: int, num_classes: int) -> Head:
    return FixedFrameClassifier(dim, num_classes, frame=settings.frame)


def _mean_head(settings: _TemperatureSettings, dim: int, num_classes: int) -> Head:
    return MeanClassifier(dim, num_classes, temperature=settings.temperature)


LOSSES: dict[str, LossEntry[Any]] = {
    "ce": LossEntry(
        CESettings,
        "cross-entropy",
        head=_linear_head,
        loss=lambda s, group: CrossEntropyLoss(
            label_smoothing=s.label_smoothing,
            logit_adjustment=s.adjustment_tensor(),
            class_weights=s.weight_tensor(),
            form=s.form,
            group=group,
        ),
    ),
    "normface": LossEntry(
        NormFaceSettings,
        "NormFace",
        head=_cosine_head,
        loss=lambda s, group: NormFaceLoss(
            margin=s.margin,
            margin_kind=s.margin_kind or "cosine",
            label_smoothing=s.label_smoothing,
            logit_adjustment=s.adjustment_tensor(),
            class_weights=s.weight_tensor(),
            form=s.form,
            group=group,
        ),
    ),
    "ntce": LossEntry(
        NTCESettings,
        "NTCE",
        head=_cosine_head,
        loss=lambda s, group: NTCELoss(
            label_smoothing=s.label_smoothing,
            class_weights=s.weight_tensor(),
            form=s.form,
            group=group,
        ),
    ),
    "nonl": LossEntry(
        NONLSettings,
        "NONL",
        head=_cosine_head,
        loss=lambda s, group: NONLLoss(
            negatives=s.negatives,
            soft_negatives=s.soft_negatives,
            label_smoothing=s.label_smoothing,
            class_weights=s.weight_tensor(),
            form=s.form,
            group=group,
        ),
    ),
    "etf-dr": LossEntry(
        DotRegressionSettings,
        "ETF + DR",
        head=_fixed_head,
        loss=lambda s, group: DotRegressionLoss(
            label_smoothing=s.label_smoothing, class_weights=s.weight_tensor(), group=group
        ),
    ),
    "scl": LossEntry(
        SCLSettings,
        "SCL",
        head=_mean_head,
        loss=lambda s, group: SCLLoss(
            temperature=s.temperature, class_weights=s.weight_tensor(), form=s.form, group=group
        ),
        call="features",
        training="contrastive",
    ),
    "proto": LossEntry(
        PrototypeLossSettings,
        "prototype loss",
        head=_mean_head,
        loss=lambda s, group: PrototypeLoss(
            temperature=s.temperature, class_weights=s.weight_tensor(), form=s.form, group=group
        ),
        call="features",
        training="contrastive",
    ),
}
