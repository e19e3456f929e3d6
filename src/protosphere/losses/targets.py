"""What all losses share: which samples count, what they weigh, how their values become one, and the checks of input."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from protosphere.kernels.masked_logsumexp import can_read_values, check_choices

Reduction = Literal["mean", "sum", "none"]
Temperature = float | Float[Tensor, ""] | Float[Tensor, "1"]


class Samples(NamedTuple):
    """The labels of a batch, read once.

    Attributes:
        labels: one class a sample, 0 in place of ``ignore_index``.
        kept: False at ``ignore_index``.
        all_kept: True only where it is known, without asking the device, that no sample is ignored.
        num_classes: how many classes there can be at the most; None if nobody said.
    """

    labels: Int[Tensor, "samples"]
    kept: Bool[Tensor, "samples"]
    all_kept: bool
    num_classes: int | None

    def blank_ignored(self, rows: Float[Tensor, "samples width"]) -> Float[Tensor, "samples width"]:
        """The rows with zeros at the ignored samples, so that whatever stood there (NaN in padding) goes nowhere."""
        return rows if self.all_kept else torch.where(self.kept[:, None], rows, 0)

    def key_log_weights(self, like: Tensor) -> Float[Tensor, "samples"] | None:
        """Log-weights that take the ignored samples out of a sum over samples."""
        return (
            None
            if self.all_kept
            else like.new_zeros(len(self.kept)).masked_fill(~self.kept, -torch.inf)
        )


def read_labels(
    labels: Tensor, *, samples: int, num_classes: int | None, ignore_index: int
) -> Samples:
    """Check the labels of a batch and take them apart.

    Raises:
        ValueError: the shape or dtype is wrong or, for CPU tensors, a label is out of range.
    """
    if not isinstance(labels, Tensor):
        raise ValueError(f"labels must be a tensor; got {type(labels).__name__}")
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise ValueError(f"ignore_index must be an integer; got {ignore_index!r}")
    if labels.shape != (samples,):
        raise ValueError(
            f"labels must hold one class index per sample, shape ({samples},); got {tuple(labels.shape)}"
        )
    if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers; got {labels.dtype}")
    labels = labels.long()
    kept = labels != ignore_index
    all_kept = False
    if can_read_values(labels):
        all_kept = bool(kept.all())
        inside = labels if all_kept else labels[kept]
        if len(inside):
            least, most = (int(value) for value in inside.aminmax())
            if least < 0 or (num_classes is not None and most >= num_classes):
                limit = "at least 0" if num_classes is None else f"from 0 to {num_classes - 1}"
                raise ValueError(
                    f"labels must be {limit}, or ignore_index={ignore_index}; got values from {least} to {most}"
                )
            num_classes = most + 1 if num_classes is None else num_classes
    return Samples(labels.masked_fill(~kept, 0), kept, all_kept, num_classes)


def check_features(features: Tensor, *, name: str = "features") -> None:
    """Raise ValueError unless this is a matrix of floating-point numbers."""
    if not isinstance(features, Tensor):
        raise ValueError(f"{name} must be a tensor; got {type(features).__name__}")
    if features.ndim != 2 or not features.dtype.is_floating_point:
        raise ValueError(
            f"{name} must be a floating-point matrix, one row per sample; "
            f"got shape {tuple(features.shape)} of {features.dtype}"
        )


def check_prototypes(features: Tensor, prototypes: Tensor) -> None:
    """Raise ValueError unless features and prototypes are matrices of the same width."""
    check_features(features)
    if not isinstance(prototypes, Tensor):
        raise ValueError(f"prototypes must be a tensor; got {type(prototypes).__name__}")
    if (
        prototypes.ndim != 2
        or not prototypes.dtype.is_floating_point
        or prototypes.shape[1] != features.shape[1]
    ):
        raise ValueError(
            f"prototypes must be a floating-point matrix (num_classes, {features.shape[1]}), as wide as the features; "
            f"got shape {tuple(prototypes.shape)} of {prototypes.dtype}"
        )
    if len(prototypes) == 0:
        raise ValueError("prototypes must hold at least one class; got none")


def reduce_anchors(
    values: Float[Tensor, "samples"],
    samples: Samples,
    *,
    kept: Bool[Tensor, "samples"] | Bool[Tensor, ""] | None = None,
    class_weights: Float[Tensor, "classes"] | None,
    reduction: Reduction,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """Weigh the anchors by class and reduce: Σ ω ℓ / Σ ω ("mean"), Σ ω ℓ ("sum") or ω ℓ ("none"), over the kept ones.

    With nothing kept the result is 0 with a zero gradient. ``kept`` narrows the samples that are not ignored.
    """
    check_choices(reduction=(reduction, Reduction))
    kept = samples.kept if kept is None else samples.kept & kept
    weights = kept.to(values.dtype)
    if class_weights is not None:
        if not isinstance(class_weights, Tensor):
            raise ValueError(f"class_weights must be a tensor; got {type(class_weights).__name__}")
        if class_weights.shape != (samples.num_classes,):
            raise ValueError(
                f"class_weights must hold one weight per class, shape ({samples.num_classes},); "
                f"got {tuple(class_weights.shape)}"
            )
        weights = weights * class_weights.to(values.dtype)[samples.labels]
    weighted = torch.where(kept, values, 0) * weights
    if reduction == "none":
        return weighted
    total = weighted.sum()
    if reduction == "sum":
        return total
    mass = weights.sum()
    return total / torch.where(mass == 0, 1, mass)
