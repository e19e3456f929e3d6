"""Soft labels of a batch: class probabilities, mixed labels and label smoothing, checked once."""

from dataclasses import dataclass, replace
from numbers import Real
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from protosphere.geometry.sphere import inner_products
from protosphere.kernels.problem import can_read_values
from protosphere.losses.targets import (
    MixedLabels,
    Targets,
    check_class_weights,
    compact_labels,
    read_targets,
)

SoftNegatives = Literal["weighted", "excluded"]
Labels = Integer[Tensor, "samples"] | Float[Tensor, "samples classes"] | MixedLabels


class NegativeWeights(NamedTuple):
    """Log-weights of the samples as negatives of the classes.

    Attributes:
        samples: Log-weight of each sample, or of each class and sample; None for 0 everywhere.
        pair_index: Classes of each sample whose pair has a weight of its own.
        pairs: What is added to the log-weight of the sample for these classes.
    """

    samples: Float[Tensor, "samples"] | Float[Tensor, "classes samples"] | None
    pair_index: Int[Tensor, "samples entries"] | None
    pairs: Float[Tensor, "samples entries"] | None


@dataclass(frozen=True)
class SoftTargets:
    """The checked soft labels of a batch.

    The probability of class c is q_ic = Σ_e mass_ie · [c = index_ie] + rest_ic: at most two entries
    and a constant for mixed labels and smoothing, so that no matrix is built, and no entry but a
    matrix for class probabilities.

    Attributes:
        index: Classes of the entries of each sample.
        mass: Probability of each entry beside the rest, 0 for ignored samples.
        rest: Probability of all classes alike, one column, or of each class; 0 for ignored
            samples. None for 0.
        kept: False for ignored samples.
        all_kept: True only if it is known without a device synchronization that no sample is
            ignored.
        class_weights: Weight of each class.
        num_classes: Number of classes K, also of those that compact labels leave out.
    """

    index: Int[Tensor, "samples entries"]
    mass: Float[Tensor, "samples entries"]
    rest: Float[Tensor, "samples _"] | None
    kept: Bool[Tensor, "samples"]
    all_kept: bool
    class_weights: Float[Tensor, "classes"]
    num_classes: int

    @property
    def is_dense(self) -> bool:
        """Whether the rest is a matrix of class probabilities, and there are no entries."""
        return self.index.shape[1] == 0

    @property
    def entries(self) -> list[tuple[Int[Tensor, "samples"], Float[Tensor, "samples"]]]:
        """Class and probability of each entry."""
        return list(zip(self.index.unbind(1), self.mass.unbind(1), strict=True))

    def mask_rows(self, rows: Float[Tensor, "samples width"]) -> Float[Tensor, "samples width"]:
        """Return the rows with zeros at ignored samples, whatever they hold (NaN in padding)."""
        return rows if self.all_kept else torch.where(self.kept[:, None], rows, 0)

    def expect(self, values: Float[Tensor, "classes *width"]) -> Float[Tensor, "samples *width"]:
        """Return Σ_c q_ic · values_c for each sample."""
        rows = values if values.ndim == 2 else values[:, None]
        total = rows.new_zeros(len(self.kept), rows.shape[1])
        for index, mass in self.entries:
            total = total + mass[:, None] * rows.index_select(0, index)
        if self.rest is not None:
            product = (
                inner_products(self.rest, rows.mT) if self.is_dense else self.rest * rows.sum(0)
            )
            total = total + product
        return total if values.ndim == 2 else total.squeeze(1)

    def expect_each(self, matrix: Float[Tensor, "samples classes"]) -> Float[Tensor, "samples"]:
        """Return Σ_c q_ic · matrix_ic for each sample."""
        total = (self.mass * matrix.gather(1, self.index)).sum(1)
        return total if self.rest is None else total + (self.rest * matrix).sum(1)

    def compact(
        self, prototypes: Float[Tensor, "classes dim"]
    ) -> tuple["SoftTargets", Float[Tensor, "compact dim"]]:
        """Restrict the classes to those of the batch, where only entries have a probability.

        Returns:
            The targets in compact labels and the prototype of each compact label.
        """
        if self.rest is not None:
            return self, prototypes
        kept = self.kept[:, None].expand_as(self.index).reshape(-1)
        compact = compact_labels(self.index.reshape(-1), kept, len(prototypes))
        if compact.classes is None:
            return self, prototypes
        targets = replace(
            self,
            index=compact.inverse.view_as(self.index),
            class_weights=self.class_weights.index_select(0, compact.classes),
        )
        return targets, compact.select(prototypes)

    def equal_weights(self) -> NegativeWeights:
        """Return log-weights that exclude ignored samples only."""
        samples = None
        if not self.all_kept:
            samples = self.mass.new_zeros(len(self.kept)).masked_fill(~self.kept, -torch.inf)
        return NegativeWeights(samples, None, None)

    def negative_weights(self, soft_negatives: SoftNegatives) -> NegativeWeights:
        """Return log v_ic, how much a sample is a negative of each class.

        v_ic = 0 for the most probable class. For the others it is [q_ic ≤ 1/K] (``"excluded"``)
        or 1 − q_ic / max_c' q_ic' (``"weighted"``).
        """
        top, candidates = self._top()

        def log_weights(q: Tensor) -> Tensor:
            if soft_negatives == "excluded":
                rounding = 8 * torch.finfo(q.dtype).eps
                overlap = (q > (1 + rounding) / self.num_classes).to(q.dtype)
            else:
                overlap = q / top
            return torch.where(_is_top(q, top), 1, overlap).neg().log1p()

        weights = self.equal_weights()
        of_rest = None if self.rest is None else log_weights(self.rest)
        if of_rest is not None:
            samples = of_rest.masked_fill(~self.kept[:, None], -torch.inf)
            weights = weights._replace(samples=samples.mT if self.is_dense else samples.squeeze(1))
        if self.is_dense:
            return weights
        pairs = log_weights(candidates)
        if of_rest is not None:
            # Labels that are smoothed to uniform ones are no negatives of any class.
            pairs = torch.where(of_rest == -torch.inf, 0, pairs - of_rest)
        return weights._replace(pair_index=self.index, pairs=pairs)

    def top_class_is(self, chosen: Bool[Tensor, "classes"]) -> Bool[Tensor, "samples"]:
        """Whether the most probable class of each sample, or one of several, is chosen."""
        top, candidates = self._top()
        of_candidates = chosen if self.is_dense else chosen[self.index]
        return (of_candidates & _is_top(candidates, top)).any(1)

    def _top(self) -> tuple[Float[Tensor, "samples 1"], Float[Tensor, "samples _"]]:
        """Largest probability of each sample, 1 if it is ignored, and those it is the largest of.

        Outside of the entries, if there are any, no class has a larger probability than inside.
        """
        candidates = self.mass
        if self.rest is not None:
            candidates = self.rest if self.is_dense else self.mass + self.rest
        top = candidates.amax(1, keepdim=True)
        return torch.where(self.kept[:, None], top, 1), candidates


def _is_top(q: Float[Tensor, "samples _"], top: Float[Tensor, "samples 1"]) -> Tensor:
    """Whether probabilities are the largest of their sample, up to rounding.

    Compiled code may compute a number twice with different rounding, and its division x / x is not
    always 1.
    """
    return q >= top * (1 - 8 * torch.finfo(q.dtype).eps)


def read_labels(
    labels: Labels,
    *,
    num_samples: int,
    num_classes: int,
    ignore_index: int,
    class_weights: Tensor | None,
    label_smoothing: float,
    dtype: torch.dtype,
) -> Targets | SoftTargets:
    """Check labels of any kind and class weights.

    Values are read only where that costs no device synchronization.

    Args:
        labels: Class indices, class probabilities or mixed labels.
        num_samples: Number of samples of the batch.
        num_classes: Number of classes.
        ignore_index: Samples with this class index are ignored.
        class_weights: Weight of each class, or None.
        label_smoothing: Amount ε of label smoothing: q becomes (1 − ε) q + ε/K.
        dtype: The dtype of the computation.

    Returns:
        Targets for class indices without smoothing, else soft targets.

    Raises:
        ValueError: Wrong types or shapes or, for CPU tensors, values out of range.
    """
    check_label_smoothing(label_smoothing)

    def indices(labels: Tensor, name: str = "labels") -> Targets:
        return read_targets(
            labels,
            num_samples=num_samples,
            num_classes=num_classes,
            ignore_index=ignore_index,
            class_weights=class_weights,
            name=name,
        )

    rest: Tensor | None = None
    if isinstance(labels, MixedLabels):
        first = indices(labels.labels)
        second = indices(labels.other_labels, "other_labels")
        _check_weights(labels.weights, num_samples)
        kept, all_kept = kept_samples(labels, ignore_index), first.all_kept and second.all_kept
        # One class twice has all of its probability in the first entry.
        weights = torch.where(first.labels == second.labels, 1, labels.weights.to(dtype))
        index = torch.stack((first.labels, second.labels), 1)
        mass = torch.where(kept[:, None], torch.stack((weights, 1 - weights), 1), 0)
    elif isinstance(labels, Tensor) and _are_probabilities(labels, (num_samples, num_classes)):
        if class_weights is not None:
            check_class_weights(class_weights, num_classes)
        kept = kept_samples(labels, ignore_index)
        all_kept = _check_probabilities(labels, kept)
        rest = labels.to(dtype)
        index, mass = kept.new_zeros(num_samples, 0, dtype=torch.int64), rest[:, :0]
    else:
        targets = indices(labels)
        if not label_smoothing:
            return targets
        kept, all_kept, index = targets.kept, targets.all_kept, targets.labels[:, None]
        mass = kept.to(dtype)[:, None]
    if label_smoothing:
        uniform = kept.to(dtype)[:, None] * (label_smoothing / num_classes)
        mass = (1 - label_smoothing) * mass
        rest = uniform if rest is None else (1 - label_smoothing) * rest + uniform
    if class_weights is None:
        class_weights = mass.new_ones(num_classes)
    return SoftTargets(index, mass, rest, kept, all_kept, class_weights.to(dtype), num_classes)


def kept_samples(labels: Labels, ignore_index: int) -> Bool[Tensor, "samples"]:
    """Return False for the ignored samples of labels of any kind.

    Args:
        labels: Class indices, class probabilities or mixed labels.
        ignore_index: Samples with this class index are ignored, and those of probability 0.
    """
    if isinstance(labels, MixedLabels):
        has_other = (labels.other_labels != ignore_index) | (labels.weights == 1)
        return (labels.labels != ignore_index) & has_other
    return (labels != 0).any(1) if labels.dtype.is_floating_point else labels != ignore_index


def check_label_smoothing(label_smoothing: float) -> None:
    """Raise ValueError unless the amount of label smoothing is a number from 0 to 1."""
    if (
        isinstance(label_smoothing, bool)
        or not isinstance(label_smoothing, Real)
        or not 0 <= label_smoothing <= 1
    ):
        raise ValueError(f"label_smoothing must be a number from 0 to 1, got {label_smoothing!r}")


def _are_probabilities(labels: Tensor, shape: tuple[int, int]) -> bool:
    """Whether labels are class probabilities by type and shape."""
    if not labels.dtype.is_floating_point:
        if labels.shape == shape and shape[1] > 1:
            raise ValueError(
                f"labels of shape {shape} must be floating-point class probabilities, "
                f"got {labels.dtype}; convert one-hot labels with labels.float()"
            )
        return False
    if labels.ndim == 2 and labels.shape != shape:
        raise ValueError(
            "labels must hold one probability per sample and class, "
            f"shape {shape}; got {tuple(labels.shape)}"
        )
    return labels.ndim == 2


def _check_probabilities(labels: Tensor, kept: Tensor) -> bool:
    """Check the values of class probabilities and return whether all samples are known as kept."""
    _check_constant("labels", labels)
    if not can_read_values(labels) or not len(labels):
        return False
    if (labels < 0).any():
        raise ValueError(
            f"labels must hold probabilities of at least 0, got {float(labels.min()):g}"
        )
    sums = labels.sum(1, dtype=torch.float64)
    # The rounding of the probabilities themselves, or of a softmax in float32.
    tolerance = max(4 * torch.finfo(labels.dtype).eps, 1e-4)
    wrong = sums[kept & ~((sums - 1).abs() <= tolerance)]
    if len(wrong):
        raise ValueError(
            "labels must hold probabilities that sum to 1 in each row, or to 0 for an ignored "
            f"sample, got a sum of {float(wrong[0]):.6g}"
        )
    return bool(kept.all())


def _check_weights(weights: Tensor, num_samples: int) -> None:
    if not isinstance(weights, Tensor) or not weights.dtype.is_floating_point:
        given = weights.dtype if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(f"weights of MixedLabels must be a floating-point tensor, got {given}")
    if weights.shape != (num_samples,):
        raise ValueError(
            f"weights of MixedLabels must hold one number per sample, shape ({num_samples},); "
            f"got {tuple(weights.shape)}"
        )
    _check_constant("weights of MixedLabels", weights)
    if can_read_values(weights):
        wrong = weights[~((weights >= 0) & (weights <= 1))]
        if len(wrong):
            raise ValueError(
                f"weights of MixedLabels must be between 0 and 1, got {float(wrong[0]):g}"
            )


def _check_constant(name: str, tensor: Tensor) -> None:
    if tensor.requires_grad:
        raise ValueError(f"{name} must be constant, got requires_grad=True; detach them first")
