"""The losses that a recipe can name: one settings class and one row each.

To add a loss, write its settings class and its row here; the schema, the catalog, the command line
and the contract tests read :data:`LOSSES`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field, model_validator
from torch import nn

from protosphere.classifiers import (
    CosineClassifier,
    FixedFrameClassifier,
    LinearClassifier,
    MeanClassifier,
    ShardedCosineClassifier,
)
from protosphere.classifiers.protocol import Head
from protosphere.losses import (
    CrossEntropyLoss,
    DotRegressionLoss,
    NONLLoss,
    NormFaceLoss,
    NormFaceNONLLoss,
    NTCELoss,
    PrototypeLoss,
    SCLLoss,
)
from protosphere.parallel import ProcessGroup
from protosphere.recipes.loss_settings import (
    AdjustmentSettings,
    CosineHeadSettings,
    FormSettings,
    LossSettings,
    QueuedLossSettings,
    SmoothingSettings,
    TemperatureSettings,
)

SomeLoss = TypeVar("SomeLoss", bound="LossSettings")


class CESettings(FormSettings, SmoothingSettings, AdjustmentSettings):
    """Cross-entropy of a linear classifier."""

    name: Literal["ce"] = "ce"


class NormFaceSettings(CosineHeadSettings, SmoothingSettings, AdjustmentSettings):
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
        return "loss.margin" if self.margin else super().soft_labels_conflict


class NTCESettings(CosineHeadSettings, SmoothingSettings, QueuedLossSettings):
    """NTCE: each prototype against all samples of the batch."""

    name: Literal["ntce"] = "ntce"


class _BoundedTemperatureSettings(CosineHeadSettings):
    @model_validator(mode="after")
    def _require_min_temperature(self) -> "_BoundedTemperatureSettings":
        if self.learn_temperature and self.min_temperature is None:
            raise ValueError(
                "learn_temperature needs min_temperature: NONL has no minimum as it goes to 0"
            )
        return self


class NONLSettings(_BoundedTemperatureSettings, SmoothingSettings, QueuedLossSettings):
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


class NormFaceNONLSettings(_BoundedTemperatureSettings, SmoothingSettings, QueuedLossSettings):
    """Weighted mean of NormFace and NONL."""

    name: Literal["normface-nonl"] = "normface-nonl"
    normface_weight: float = Field(
        0.5, ge=0, le=1, description="Weight of NormFace; NONL has the rest up to 1."
    )

    @model_validator(mode="after")
    def _check_weight_of_queue(self) -> "NormFaceNONLSettings":
        if self.queue is not None and self.normface_weight == 1:
            raise ValueError("queue must be null with normface_weight 1: no samples are keys")
        return self


class DotRegressionSettings(SmoothingSettings):
    """Dot regression onto a fixed simplex ETF."""

    name: Literal["etf-dr"] = "etf-dr"
    frame: Literal["simplex", "code"] = Field(
        "simplex", description="code also exists in fewer than num_classes - 1 dimensions."
    )


class _ContrastiveSettings(TemperatureSettings):
    @property
    def soft_labels_conflict(self) -> str | None:
        """The setting that does not go with mixed images."""
        return f"loss {self.name}"


class SCLSettings(_ContrastiveSettings, QueuedLossSettings):
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


def _cosine_head(settings: CosineHeadSettings, dim: int, num_classes: int) -> Head:
    return CosineClassifier(
        dim,
        num_classes,
        temperature=settings.temperature,
        learn_temperature=settings.learn_temperature,
        min_temperature=settings.min_temperature,
    )


def create_sharded_head(
    settings: CosineHeadSettings, dim: int, num_classes: int, group: ProcessGroup
) -> ShardedCosineClassifier:
    """Create a head whose prototypes are divided over processes.

    Args:
        settings: The settings of the loss.
        dim: Dimension of the features.
        num_classes: Number of classes.
        group: Process group.
    """
    return ShardedCosineClassifier(
        dim,
        num_classes,
        temperature=settings.temperature,
        learn_temperature=settings.learn_temperature,
        min_temperature=settings.min_temperature,
        group=group,
    )


def _fixed_head(settings: DotRegressionSettings, dim: int, num_classes: int) -> Head:
    return FixedFrameClassifier(dim, num_classes, frame=settings.frame)


def _mean_head(settings: TemperatureSettings, dim: int, num_classes: int) -> Head:
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
    "normface-nonl": LossEntry(
        NormFaceNONLSettings,
        "NormFace + NONL",
        head=_cosine_head,
        loss=lambda s, group: NormFaceNONLLoss(
            normface_weight=s.normface_weight,
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
