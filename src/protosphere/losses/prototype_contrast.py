"""Prototype against samples: NTCE and NONL, whose sums depend on the class, not on the sample."""

from typing import Literal

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.kernels.dispatch import Form, MaskedLogSumExp, masked_logsumexp
from protosphere.kernels.eager import logsumexp
from protosphere.kernels.problem import PositiveLogitsFrom, check_choices, read_temperature
from protosphere.kernels.same_label import accumulation_dtype
from protosphere.losses.module import CosineHead, LossModule, cosine_head_parameters
from protosphere.losses.reduction import Reduction, reduce_loss
from protosphere.losses.targets import (
    CompactLabels,
    Targets,
    Temperature,
    check_prototypes,
    read_targets,
)

Negatives = Literal["samples", "prototypes", "both"]


def ntce_loss(
    features: Float[Tensor, "samples dim"],
    prototypes: Float[Tensor, "classes dim"],
    labels: Integer[Tensor, "samples"],
    *,
    temperature: Temperature = 0.1,
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    form: Form = "auto",
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """NTCE: the prototype of the sample's class against all samples of the batch.

    ℓ_i = log Σ_{j=1..M} exp(S_{j y_i}) − S_{i y_i}, with S_ic = cos(z_i, w_c)/τ.

    The sum runs down a column of S and depends on the class only: the cost is O(M · min(M, K) · d).

    Args:
        features: Features z; the loss normalizes them.
        prototypes: Prototypes w; the loss normalizes them.
        labels: Class index y of each sample.
        temperature: Temperature τ, a positive number or a tensor with one element, which may
            require a gradient.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.

    Returns:
        A scalar, or one value per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: Shapes that do not fit, labels out of range, bad class weights, or an option out
            of its range.

    >>> ntce_loss(torch.eye(3), torch.eye(3), torch.arange(3), temperature=0.2)
    tensor(0.0134)

    Reference: "Neural Collapse by Design", ICML 2026, equation 4.
    """
    check_prototypes(features, prototypes)
    temperature = read_temperature(temperature)
    targets = read_targets(
        labels,
        num_samples=len(features),
        num_classes=len(prototypes),
        ignore_index=ignore_index,
        class_weights=class_weights,
    )
    compact = targets.compact()
    columns = _columns(features, prototypes, targets, compact, "chords", temperature, form)
    values = contrast_with_all(columns.values, columns.positive_logits, targets, compact)
    return reduce_loss(values, targets, reduction=reduction)


def nonl_loss(
    features: Float[Tensor, "samples dim"],
    prototypes: Float[Tensor, "classes dim"],
    labels: Integer[Tensor, "samples"],
    *,
    temperature: Temperature = 0.1,
    min_temperature: float | None = None,
    negatives: Negatives = "samples",
    class_weights: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    form: Form = "auto",
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """NONL: the prototype of the sample's class against the samples of other classes only.

    ℓ_i = log Σ_{j: y_j ≠ y_i} exp(S_{j y_i}) − S_{i y_i}, with S_ic = cos(z_i, w_c)/τ.

    Attraction and repulsion have no common normalization. The value is often negative; it is at
    least log(number of negatives) − 2/τ. Two variants have other negatives:
    ``negatives="prototypes"`` sums over the row, Σ_{c ≠ y_i} exp(S_ic) (NormFace, decoupled), and
    ``"both"`` over the row and the column.

    Args:
        features: Features z; the loss normalizes them.
        prototypes: Prototypes w; the loss normalizes them.
        labels: Class index y of each sample.
        temperature: Temperature τ, a positive number or a tensor with one element.
        min_temperature: Lower bound of τ. The loss decreases without bound as τ → 0, so a
            temperature that requires a gradient must have one.
        negatives: Negatives in the sum: the ``"samples"`` of other classes, the ``"prototypes"`` of
            other classes, or ``"both"``.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.

    Returns:
        A scalar, or one value per sample for ``reduction="none"``, in float32 or wider. Samples
        without a negative (the whole batch is of one class) are left out: their value is 0 and they
        do not count in the mean.

    Raises:
        ValueError: Shapes that do not fit, labels out of range, bad class weights, an option out of
            its range, or a temperature that requires a gradient without ``min_temperature``.

    >>> nonl_loss(torch.eye(3), torch.eye(3), torch.arange(3), temperature=0.2)
    tensor(-4.3069)

    Reference: "Neural Collapse by Design", ICML 2026, equation 5.
    """
    check_prototypes(features, prototypes)
    check_choices(negatives=(negatives, Negatives))
    temperature = _bounded_temperature(temperature, min_temperature)
    targets = read_targets(
        labels,
        num_samples=len(features),
        num_classes=len(prototypes),
        ignore_index=ignore_index,
        class_weights=class_weights,
    )
    if negatives == "prototypes":
        result = _rows(features, prototypes, targets, temperature, form)
    else:
        result = _columns(
            features, prototypes, targets, targets.compact(), "matrix", temperature, form
        )
    log_sums = result.values
    if negatives == "both":
        rows = _rows(features, prototypes, targets, temperature, form)
        log_sums = add_in_logs(rows.values, log_sums)
    return reduce_contrast(log_sums, result.positive_logits, targets, reduction)


class NTCELoss(LossModule):
    """NTCE: the prototype of the sample's class against all samples of the batch.

    ℓ_i = log Σ_{j=1..M} exp(S_{j y_i}) − S_{i y_i}, with S_ic = cos(z_i, w_c)/τ; called as
    ``loss(features, head, labels)`` with a :class:`~protosphere.classifiers.CosineClassifier` that
    has the prototypes w and the temperature τ.

    Args:
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.

    Raises:
        ValueError: An unknown option or bad class weights.
    """

    def __init__(
        self,
        *,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        form: Form = "auto",
    ) -> None:
        super().__init__(
            class_weights=class_weights,
            ignore_index=ignore_index,
            reduction=reduction,
            form=form,
        )

    def forward(self, features: Tensor, head: CosineHead, labels: Tensor) -> Tensor:
        """Compute :func:`ntce_loss` with the prototypes and the temperature of the head."""
        prototypes, temperature = cosine_head_parameters(head, self)
        return ntce_loss(features, prototypes, labels, temperature=temperature, **self.options)


class NONLLoss(LossModule):
    """NONL: the prototype of the sample's class against the samples of other classes only.

    ℓ_i = log Σ_{j: y_j ≠ y_i} exp(S_{j y_i}) − S_{i y_i}, with S_ic = cos(z_i, w_c)/τ; called as
    ``loss(features, head, labels)`` with a :class:`~protosphere.classifiers.CosineClassifier` that
    has the prototypes w and the temperature τ. The value is often negative. It decreases without
    bound as τ → 0, so a head that learns its temperature needs a ``min_temperature``.

    Args:
        negatives: Negatives in the sum: the ``"samples"`` of other classes, the ``"prototypes"`` of
            other classes, or ``"both"``.
        class_weights: Weight of each class, applied to the samples of the class.
        ignore_index: Samples with this label are ignored.
        reduction: ``"mean"`` (divided by the sum of the weights), ``"sum"`` or ``"none"``.
        form: ``"eager"``, ``"chunked"`` (never holds the whole matrix of logits), or ``"auto"``,
            which chooses by size.

    Raises:
        ValueError: An option out of its range or bad class weights.

    >>> from protosphere.classifiers import CosineClassifier
    >>> loss, head = NONLLoss(), CosineClassifier(16, 3, temperature=0.1)
    >>> loss(torch.randn(8, 16), head, torch.arange(8) % 3).shape
    torch.Size([])
    """

    def __init__(
        self,
        *,
        negatives: Negatives = "samples",
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        form: Form = "auto",
    ) -> None:
        check_choices(negatives=(negatives, Negatives))
        super().__init__(
            class_weights=class_weights,
            negatives=negatives,
            ignore_index=ignore_index,
            reduction=reduction,
            form=form,
        )

    def forward(self, features: Tensor, head: CosineHead, labels: Tensor) -> Tensor:
        """Compute :func:`nonl_loss` with the prototypes and the temperature of the head."""
        prototypes, temperature = cosine_head_parameters(head, self)
        return nonl_loss(
            features,
            prototypes,
            labels,
            temperature=temperature,
            min_temperature=getattr(head, "min_temperature", None),
            **self.options,
        )


def _columns(
    features: Tensor,
    prototypes: Tensor,
    targets: Targets,
    compact: CompactLabels,
    positive_logits_from: PositiveLogitsFrom,
    temperature: Temperature,
    form: Form,
) -> MaskedLogSumExp:
    """For each sample, the log-sum over samples of other classes in the column of its class."""
    columns = masked_logsumexp(
        compact.select(prototypes),
        targets.mask_rows(features),
        temperature=temperature,
        positives="anchor_of_key",
        positive_logits_from=positive_logits_from,
        exclude="positives",
        positive_index=compact.inverse,
        key_log_weights=targets.key_log_weights(features),
        form=form,
    )
    return MaskedLogSumExp(columns.values.index_select(0, compact.inverse), columns.positive_logits)


def _rows(
    features: Tensor, prototypes: Tensor, targets: Targets, temperature: Temperature, form: Form
) -> MaskedLogSumExp:
    """For each sample, the log-sum over the prototypes of other classes."""
    return masked_logsumexp(
        targets.mask_rows(features),
        prototypes,
        temperature=temperature,
        positives="key_of_anchor",
        exclude="positives",
        positive_index=targets.labels,
        form=form,
    )


def add_in_logs(
    first: Float[Tensor, "samples"], second: Float[Tensor, "samples"]
) -> Float[Tensor, "samples"]:
    """Return log(e^first + e^second), with a zero gradient where both are −∞."""
    return logsumexp(torch.stack((first, second)), 0)


def contrast_with_all(
    negatives: Float[Tensor, "samples"],
    positive_logits: Float[Tensor, "samples"],
    targets: Targets,
    compact: CompactLabels,
) -> Float[Tensor, "samples"]:
    """Return log(e^negatives + Σ e^positives of the class) − positive for each sample.

    The positives of a class join last, so that neither their differences nor what the negatives add
    is lost in the rounding of large logits: log Σ e^positives − positive, plus a softplus.

    Args:
        negatives: Log-sum over the samples of other classes in the column of the sample's class.
        positive_logits: Logit of each sample with its own prototype.
        targets: Targets of the batch.
        compact: Compact labels of the batch.
    """
    # Ignored samples get a finite value without weight: their class may have no other sample.
    smallest = torch.finfo(positive_logits.dtype).min
    positive_logits = torch.where(targets.kept, positive_logits, smallest)
    # Two slopes of the positives, one that may cancel to nothing and one that may be tiny: each is
    # summed on its own copy, or the second would be lost in the terms of the first. The one that
    # cancels is summed in float64.
    wide = accumulation_dtype(positive_logits.device)
    copy = positive_logits.to(wide, copy=True)
    among_positives = (compact.logsumexp(copy) - copy).to(positive_logits.dtype)
    from_negatives = torch.logaddexp(
        negatives - compact.logsumexp(positive_logits), negatives.new_zeros(())
    )
    return among_positives + from_negatives


def reduce_contrast(
    log_sums: Float[Tensor, "samples"],
    positive_logits: Float[Tensor, "samples"],
    targets: Targets,
    reduction: Reduction,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """Reduce log-sums of negatives minus positives over the samples that have a negative.

    Args:
        log_sums: Log-sum over the negatives of each sample.
        positive_logits: Logit of each sample with its own prototype.
        targets: Targets of the batch.
        reduction: How to reduce.
    """
    has_negatives = log_sums != -torch.inf
    values = torch.where(has_negatives, log_sums, 0) - positive_logits
    return reduce_loss(values, targets, kept=has_negatives, reduction=reduction)


def _bounded_temperature(
    temperature: Temperature, min_temperature: float | None
) -> float | Float[Tensor, ""]:
    temperature = read_temperature(temperature)
    if min_temperature is not None:
        least = float(read_temperature(min_temperature, name="min_temperature"))
        if isinstance(temperature, Tensor):
            return temperature.clamp(min=least)
        return max(temperature, least)
    if isinstance(temperature, Tensor) and temperature.requires_grad:
        raise ValueError(
            "NONL requires min_temperature for a temperature that requires a gradient, because it "
            "decreases without bound with the temperature, got min_temperature=None"
        )
    return temperature
