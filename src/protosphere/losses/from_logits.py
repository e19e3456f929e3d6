"""The losses that need only logits, for any ``criterion(output, target)`` after a cosine head."""

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.geometry.sphere import compute_dtype
from protosphere.kernels.eager import logsumexp
from protosphere.kernels.masked_logsumexp import check_choices
from protosphere.losses.module import Criterion
from protosphere.losses.prototype_contrast import (
    Negatives,
    add_in_logs,
    against_all_samples,
    against_negatives,
)
from protosphere.losses.slots import ClassSlots
from protosphere.losses.softmax import softmax_loss
from protosphere.losses.targets import Reduction, Samples, check_features, read_labels


def normface_from_logits(
    logits: Float[Tensor, "samples classes"],
    labels: Integer[Tensor, "samples"],
    *,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """NormFace from scaled cosines, for any ``criterion(output, target)`` after a cosine head.

    ℓ_i = log Σ_c exp(S_ic) − S_{i y_i},   S the logits

    Args:
        logits: cosines divided by the temperature, as :class:`~protosphere.classifiers.CosineClassifier` gives them.
        labels: one class per sample.
        class_weights: one weight per class, for the anchors.
        ignore_index: samples with this label do not exist.
        reduction: ``"mean"`` (by the weights of the kept samples), ``"sum"`` or ``"none"``.

    Returns:
        One number, or one per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: shapes that do not fit, a label out of range.

    >>> normface_from_logits(5 * torch.eye(3), torch.arange(3))
    tensor(0.0134)
    """
    logits, samples = _read_logits(logits, labels, ignore_index)
    others = logits.scatter(1, samples.labels[:, None], -torch.inf)
    return softmax_loss(
        logsumexp(others, 1), _own(logits, samples), samples, class_weights, reduction
    )


def ntce_from_logits(
    logits: Float[Tensor, "samples classes"],
    labels: Integer[Tensor, "samples"],
    *,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """NTCE from scaled cosines, for any ``criterion(output, target)`` after a cosine head.

    ℓ_i = log Σ_{j=1..M} exp(S_{j y_i}) − S_{i y_i},   S the logits

    Args:
        logits: cosines divided by the temperature, as :class:`~protosphere.classifiers.CosineClassifier` gives them.
        labels: one class per sample.
        class_weights: one weight per class, for the anchors.
        ignore_index: samples with this label do not exist.
        reduction: ``"mean"`` (by the weights of the kept samples), ``"sum"`` or ``"none"``.

    Returns:
        One number, or one per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: shapes that do not fit, a label out of range.

    >>> ntce_from_logits(5 * torch.eye(3), torch.arange(3))
    tensor(0.0134)
    """
    logits, samples = _read_logits(logits, labels, ignore_index)
    others = logits.scatter(1, samples.labels[:, None], -torch.inf)
    negatives = logsumexp(others.masked_fill(~samples.kept[:, None], -torch.inf), 0)[samples.labels]
    slots = ClassSlots(samples.labels, None, logits.shape[1])
    return against_all_samples(
        negatives, _own(logits, samples), samples, slots, class_weights, reduction
    )


def nonl_from_logits(
    logits: Float[Tensor, "samples classes"],
    labels: Integer[Tensor, "samples"],
    *,
    negatives: Negatives = "samples",
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """NONL from scaled cosines, for any ``criterion(output, target)`` after a cosine head.

    ℓ_i = log Σ_{j: y_j ≠ y_i} exp(S_{j y_i}) − S_{i y_i},   S the logits

    Args:
        logits: cosines divided by the temperature, as :class:`~protosphere.classifiers.CosineClassifier` gives them;
            the temperature should be fixed, or kept away from 0, because the loss falls without bound as it shrinks.
        labels: one class per sample.
        negatives: ``"samples"``, ``"prototypes"`` or ``"both"``, as in :func:`nonl_loss`.
        class_weights: one weight per class, for the anchors.
        ignore_index: samples with this label do not exist.
        reduction: ``"mean"`` (by the weights of the kept samples), ``"sum"`` or ``"none"``.

    Returns:
        One number, or one per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: shapes that do not fit, a label out of range.

    >>> nonl_from_logits(5 * torch.eye(3), torch.arange(3))
    tensor(-4.3069)
    """
    check_choices(negatives=(negatives, Negatives))
    logits, samples = _read_logits(logits, labels, ignore_index)
    others = logits.scatter(1, samples.labels[:, None], -torch.inf)
    if negatives == "prototypes":
        sums = logsumexp(others, 1)
    else:
        sums = logsumexp(others.masked_fill(~samples.kept[:, None], -torch.inf), 0)[samples.labels]
    if negatives == "both":
        sums = add_in_logs(logsumexp(others, 1), sums)
    return against_negatives(sums, _own(logits, samples), samples, class_weights, reduction)


class NormFaceFromLogits(Criterion):
    """NormFace from scaled cosines as a module; the formula is :func:`normface_from_logits`."""

    def __init__(
        self,
        *,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(class_weights, ignore_index=ignore_index, reduction=reduction)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of ``criterion(output, target)``."""
        return normface_from_logits(logits, labels, **self.options())


class NTCEFromLogits(Criterion):
    """NTCE from scaled cosines as a module; the formula is :func:`ntce_from_logits`."""

    def __init__(
        self,
        *,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(class_weights, ignore_index=ignore_index, reduction=reduction)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of ``criterion(output, target)``."""
        return ntce_from_logits(logits, labels, **self.options())


class NONLFromLogits(Criterion):
    """NONL from scaled cosines as a module; the formula is :func:`nonl_from_logits`."""

    def __init__(
        self,
        *,
        negatives: Negatives = "samples",
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        check_choices(negatives=(negatives, Negatives))
        super().__init__(
            class_weights, negatives=negatives, ignore_index=ignore_index, reduction=reduction
        )

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of ``criterion(output, target)``."""
        return nonl_from_logits(logits, labels, **self.options())


def _read_logits(logits: Tensor, labels: Tensor, ignore_index: int) -> tuple[Tensor, Samples]:
    check_features(logits, name="logits")
    samples = read_labels(
        labels, samples=len(logits), num_classes=logits.shape[1], ignore_index=ignore_index
    )
    return samples.blank_ignored(logits.to(compute_dtype(logits))), samples


def _own(logits: Tensor, samples: Samples) -> Tensor:
    return logits.gather(1, samples.labels[:, None]).squeeze(1)
