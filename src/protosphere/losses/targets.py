"""Labels of a batch, checked once: ignored samples, class weights, compact labels."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from protosphere.geometry.sphere import compute_dtype
from protosphere.kernels.problem import can_read_values
from protosphere.parallel import ProcessGroup

Temperature = float | Float[Tensor, ""] | Float[Tensor, "1"]


class MixedLabels(NamedTuple):
    """Two classes per sample, the labels of mixup and CutMix in compact form.

    q_i = λ_i · onehot(y_i) + (1 − λ_i) · onehot(y'_i)

    Attributes:
        labels: Class index y of each sample; a sample with ``ignore_index`` is ignored.
        other_labels: Second class index y' of each sample, which may equal the first one; where it
            is ``ignore_index``, the sample is ignored unless its weight λ is 1.
        weights: Weight λ of the first class, from 0 to 1.

    >>> labels = torch.tensor([0, 1, 2])
    >>> mixed = MixedLabels(labels, labels.roll(1), torch.tensor([0.7, 1.0, 0.4]))
    >>> mixed.other_labels
    tensor([2, 0, 1])
    """

    labels: Integer[Tensor, "samples"]
    other_labels: Integer[Tensor, "samples"]
    weights: Float[Tensor, "samples"]


class Targets(NamedTuple):
    """The checked labels of a batch.

    Attributes:
        labels: Class index of each sample, 0 for ignored samples.
        kept: False for ignored samples.
        all_kept: True only if it is known without a device synchronization that no sample is
            ignored.
        num_classes: Upper bound of the number of classes, None if unknown.
        class_weights: Weight of each class, None for equal weights.
    """

    labels: Int[Tensor, "samples"]
    kept: Bool[Tensor, "samples"]
    all_kept: bool
    num_classes: int | None
    class_weights: Float[Tensor, "classes"] | None

    def mask_rows(self, rows: Float[Tensor, "samples width"]) -> Float[Tensor, "samples width"]:
        """Return the rows with zeros at ignored samples, whatever they hold (NaN in padding)."""
        return rows if self.all_kept else torch.where(self.kept[:, None], rows, 0)

    def key_log_weights(self, like: Tensor) -> Float[Tensor, "samples"] | None:
        """Return log-weights that exclude ignored samples from a sum over samples."""
        if self.all_kept:
            return None
        return like.new_zeros(len(self.kept)).masked_fill(~self.kept, -torch.inf)

    def sample_weights(self, dtype: torch.dtype) -> Float[Tensor, "samples"]:
        """Return the weight of each sample: that of its class, 0 if it is ignored."""
        weights = self.kept.to(dtype)
        if self.class_weights is not None:
            weights = weights * self.class_weights.to(dtype)[self.labels]
        return weights

    def compact(self, group: ProcessGroup | None = None) -> "CompactLabels":
        """Number the classes of the batch, see :func:`compact_labels`.

        With a group the labels stay as they are, so that the classes of all ranks line up.
        """
        if group is not None and self.num_classes is not None:
            return CompactLabels(self.labels, None, self.num_classes)
        return compact_labels(self.labels, self.kept, self.num_classes)


class CompactLabels(NamedTuple):
    """Labels numbered without gaps, as by ``torch.unique(labels, return_inverse=True)``.

    Attributes:
        inverse: Compact label of each sample.
        classes: Class of each compact label, 0 for unused ones; None if both are the same.
        num_labels: Number of compact labels, which depends on shapes only.
    """

    inverse: Int[Tensor, "samples"]
    classes: Int[Tensor, "compact"] | None
    num_labels: int

    def select(self, prototypes: Float[Tensor, "classes dim"]) -> Float[Tensor, "compact dim"]:
        """Return the prototype of each compact label."""
        return prototypes if self.classes is None else prototypes.index_select(0, self.classes)

    def counts(self, kept: Bool[Tensor, "samples"], dtype: torch.dtype) -> Float[Tensor, "compact"]:
        """Return the number of kept samples of each compact label."""
        zeros = torch.zeros(self.num_labels, dtype=dtype, device=kept.device)
        return zeros.scatter_add(0, self.inverse, kept.to(dtype))

    def logsumexp(self, values: Float[Tensor, "samples"]) -> Float[Tensor, "samples"]:
        """Return for each sample log Σ exp over the samples of its label; values are finite."""
        largest = values.detach().new_full((self.num_labels,), -torch.inf)
        largest = largest.scatter_reduce(0, self.inverse, values.detach(), "amax")[self.inverse]
        sums = values.new_zeros(self.num_labels).scatter_add(
            0, self.inverse, (values - largest).exp()
        )
        return sums[self.inverse].log() + largest


def compact_labels(
    labels: Int[Tensor, "samples"], kept: Bool[Tensor, "samples"], num_classes: int | None
) -> CompactLabels:
    """Number the classes of a batch, without a shape that depends on values.

    With K ≤ M classes the labels are compact already. Otherwise the classes present get the numbers
    0, 1, ... by a sort, as the inverse of ``torch.unique`` has them, of M at most.

    Args:
        labels: Class index of each sample.
        kept: False for ignored samples.
        num_classes: Upper bound K of the number of classes, None if unknown.
    """
    if num_classes is not None and num_classes <= len(labels):
        return CompactLabels(labels, None, num_classes)
    last = torch.iinfo(torch.int64).max
    ordered, order = labels.masked_fill(~kept, last).sort()
    is_new = torch.ones_like(ordered)
    is_new[:1] = 0
    is_new[1:] = ordered[1:] != ordered[:-1]
    number = is_new.cumsum(0)
    classes = torch.zeros_like(ordered).scatter(0, number, ordered.masked_fill(ordered == last, 0))
    inverse = torch.empty_like(order).scatter(0, order, number)
    return CompactLabels(inverse, classes, len(labels))


def read_targets(
    labels: Tensor | MixedLabels,
    *,
    num_samples: int,
    num_classes: int | None,
    ignore_index: int,
    class_weights: Tensor | None,
    name: str = "labels",
) -> Targets:
    """Check class indices and class weights.

    Args:
        labels: Class index of each sample.
        num_samples: Number of samples of the batch.
        num_classes: Number of classes, None if unknown; then it is that of the class weights.
        ignore_index: Samples with this label are ignored.
        class_weights: Weight of each class, or None.
        name: Name of the labels in error messages.

    Returns:
        The targets.

    Raises:
        ValueError: Wrong types or shapes or, for CPU tensors, values out of range.
    """
    if isinstance(labels, MixedLabels):
        raise ValueError("labels must be class indices for this loss, got MixedLabels")
    if not isinstance(labels, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(labels).__name__}")
    if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool:
        raise ValueError(f"{name} must be integers (class indices), got {labels.dtype}")
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise ValueError(f"ignore_index must be an integer, got {ignore_index!r}")
    if labels.shape != (num_samples,):
        raise ValueError(
            f"{name} must hold one class index per sample, shape ({num_samples},); "
            f"got {tuple(labels.shape)}"
        )
    if class_weights is not None:
        check_class_weights(class_weights, num_classes)
        num_classes = len(class_weights)
    labels = labels.long()
    kept = labels != ignore_index
    all_kept = False
    if can_read_values(labels):
        all_kept = bool(kept.all())
        used = labels if all_kept else labels[kept]
        if len(used):
            smallest, largest = (int(value) for value in used.aminmax())
            if smallest < 0 or (num_classes is not None and largest >= num_classes):
                limit = "at least 0" if num_classes is None else f"from 0 to {num_classes - 1}"
                raise ValueError(
                    f"{name} must be {limit} or ignore_index={ignore_index}, "
                    f"got values from {smallest} to {largest}"
                )
            num_classes = largest + 1 if num_classes is None else num_classes
    return Targets(labels.masked_fill(~kept, 0), kept, all_kept, num_classes, class_weights)


def check_class_weights(class_weights: Tensor, num_classes: int | None) -> None:
    """Raise ValueError unless there is one finite, non-negative weight per class.

    Values are read only where that costs no device synchronization.

    Args:
        class_weights: Weight of each class.
        num_classes: Number of classes, None if unknown.
    """
    _check_per_class(class_weights, num_classes, name="class_weights", kind="weight")
    if len(class_weights) and can_read_values(class_weights):
        values = class_weights.detach()
        wrong = values[~(torch.isfinite(values) & (values >= 0))]
        if len(wrong):
            raise ValueError(
                f"class_weights must be finite and not negative, got {float(wrong[0]):g}"
            )


def check_logit_adjustment(logit_adjustment: Tensor, num_classes: int | None) -> None:
    """Raise ValueError unless there is one finite number per class.

    Values are read only where that costs no device synchronization.

    Args:
        logit_adjustment: Number added to the logits of each class.
        num_classes: Number of classes, None if unknown.
    """
    _check_per_class(logit_adjustment, num_classes, name="logit_adjustment", kind="number")
    if can_read_values(logit_adjustment):
        wrong = logit_adjustment.detach()[~torch.isfinite(logit_adjustment.detach())]
        if len(wrong):
            raise ValueError(f"logit_adjustment must be finite, got {float(wrong[0]):g}")


def _check_per_class(values: Tensor, num_classes: int | None, *, name: str, kind: str) -> None:
    if not isinstance(values, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(values).__name__}")
    if values.ndim != 1 or num_classes not in (None, len(values)):
        size = "num_classes" if num_classes is None else num_classes
        raise ValueError(
            f"{name} must hold one {kind} per class, shape ({size},); got {tuple(values.shape)}"
        )


def loss_dtype(*values: Tensor | float) -> torch.dtype:
    """Return the dtype in which a loss of these tensors is computed, float32 or wider."""
    return compute_dtype(*(value for value in values if isinstance(value, Tensor)))


def check_features(features: Tensor, *, name: str = "features") -> None:
    """Raise ValueError unless the tensor is a floating-point matrix.

    Args:
        features: The tensor to check.
        name: Name of the argument in error messages.
    """
    if not isinstance(features, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(features).__name__}")
    if features.ndim != 2 or not features.dtype.is_floating_point:
        raise ValueError(
            f"{name} must be a floating-point matrix with one row per sample, "
            f"got shape {tuple(features.shape)} and {features.dtype}"
        )


def check_prototypes(features: Tensor, prototypes: Tensor) -> None:
    """Raise ValueError unless features and prototypes are matrices of the same width.

    Args:
        features: One feature per row.
        prototypes: One prototype per row.
    """
    check_features(features)
    if not isinstance(prototypes, Tensor):
        raise ValueError(f"prototypes must be a tensor, got {type(prototypes).__name__}")
    if (
        prototypes.ndim != 2
        or not prototypes.dtype.is_floating_point
        or prototypes.shape[1] != features.shape[1]
    ):
        raise ValueError(
            "prototypes must be a floating-point matrix as wide as the features, "
            f"shape (num_classes, {features.shape[1]}); "
            f"got shape {tuple(prototypes.shape)} and {prototypes.dtype}"
        )
    if len(prototypes) == 0:
        raise ValueError("prototypes must hold at least one class, got none")
