"""Prototype against samples: NTCE and NONL, whose sums belong to the class and cost M × min(M, K), never M × M."""

from typing import Literal

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.kernels.eager import logsumexp
from protosphere.kernels.masked_logsumexp import (
    Form,
    MaskedLogSumExp,
    PullFrom,
    check_choices,
    masked_logsumexp,
    read_temperature,
)
from protosphere.losses.module import Criterion
from protosphere.losses.slots import ClassSlots, class_slots
from protosphere.losses.targets import (
    Reduction,
    Samples,
    Temperature,
    check_prototypes,
    read_labels,
    reduce_anchors,
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
    """NTCE: the sample's prototype against all samples of the batch.

    ℓ_i = log Σ_{j=1..M} exp(S_{j y_i}) − S_{i y_i},   S_ic = cos(z_i, w_c)/τ

    The sum runs down a column of S, so it depends on the class alone: the cost is O(M · min(M, K) · d).

    Args:
        features: z; the loss normalizes them.
        prototypes: w; the loss normalizes them.
        labels: y, one class per sample.
        temperature: τ, a positive number or a tensor of one, which can be learned.
        class_weights: one weight per class, for the anchors.
        ignore_index: samples with this label do not exist.
        reduction: ``"mean"`` (by the weights of the kept samples), ``"sum"`` or ``"none"``.
        form: how the samples are summed: ``"eager"``, ``"chunked"`` (never the whole matrix) or by size.

    Returns:
        One number, or one per sample for ``reduction="none"``, in float32 or wider.

    Raises:
        ValueError: shapes that do not fit, a label out of range, a temperature that is not positive.

    >>> ntce_loss(torch.eye(3), torch.eye(3), torch.arange(3), temperature=0.2)
    tensor(0.0134)

    Reference: "Neural Collapse by Design", ICML 2026, equation 4.
    """
    check_prototypes(features, prototypes)
    temperature = read_temperature(temperature)
    samples = read_labels(
        labels, samples=len(features), num_classes=len(prototypes), ignore_index=ignore_index
    )
    slots = class_slots(samples)
    columns = _columns(features, prototypes, samples, slots, "chords", temperature, form)
    return against_all_samples(
        columns.values, columns.pulled, samples, slots, class_weights, reduction
    )


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
    """NONL: the sample's prototype against the samples of other classes only.

    ℓ_i = log Σ_{j: y_j ≠ y_i} exp(S_{j y_i}) − S_{i y_i},   S_ic = cos(z_i, w_c)/τ

    Attraction and repulsion no longer share a normalizer. The value is often negative; it is at least
    log(number of negatives) − 2/τ. Two variants change what stands in the sum: ``negatives="prototypes"`` takes the
    row, Σ_{c ≠ y_i} exp(S_ic) (NormFace, decoupled), and ``"both"`` the row and the column together.

    Args:
        features: z; the loss normalizes them.
        prototypes: w; the loss normalizes them.
        labels: y, one class per sample.
        temperature: τ, a positive number or a tensor of one.
        min_temperature: a floor for τ. The loss falls without bound as τ → 0, so a temperature that is learned must
            come with one.
        negatives: what a sample's prototype (or the sample) is held against.
        class_weights: one weight per class, for the anchors.
        ignore_index: samples with this label do not exist.
        reduction: ``"mean"`` (by the weights of the kept samples), ``"sum"`` or ``"none"``.
        form: how the negatives are summed: ``"eager"``, ``"chunked"`` (never the whole matrix) or by size.

    Returns:
        One number, or one per sample for ``reduction="none"``, in float32 or wider. Samples without a negative (their
        class is the whole batch) are left out: they add 0 and do not count in the mean.

    Raises:
        ValueError: shapes that do not fit, a label out of range, a temperature that is not positive, or one that
            requires a gradient without ``min_temperature``.

    >>> nonl_loss(torch.eye(3), torch.eye(3), torch.arange(3), temperature=0.2)
    tensor(-4.3069)

    Reference: "Neural Collapse by Design", ICML 2026, equation 5.
    """
    check_prototypes(features, prototypes)
    check_choices(negatives=(negatives, Negatives))
    temperature = _at_least(temperature, min_temperature)
    samples = read_labels(
        labels, samples=len(features), num_classes=len(prototypes), ignore_index=ignore_index
    )
    if negatives == "prototypes":
        against = _rows(features, prototypes, samples, temperature, form)
    else:
        against = _columns(
            features, prototypes, samples, class_slots(samples), "matrix", temperature, form
        )
    sums = against.values
    if negatives == "both":
        sums = add_in_logs(_rows(features, prototypes, samples, temperature, form).values, sums)
    return against_negatives(sums, against.pulled, samples, class_weights, reduction)


class NTCELoss(Criterion):
    """NTCE as a module; the formula is :func:`ntce_loss`."""

    def __init__(
        self,
        *,
        temperature: float = 0.1,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        form: Form = "auto",
    ) -> None:
        super().__init__(
            class_weights,
            temperature=temperature,
            ignore_index=ignore_index,
            reduction=reduction,
            form=form,
        )

    def forward(
        self,
        features: Tensor,
        prototypes: Tensor,
        labels: Tensor,
        *,
        temperature: Temperature | None = None,
    ) -> Tensor:
        """The loss; a ``temperature`` given here, as a head that learns it does, comes before the module's own."""
        return ntce_loss(features, prototypes, labels, **self.options(temperature))


class NONLLoss(Criterion):
    """NONL and its variants as a module; the formula is :func:`nonl_loss`."""

    def __init__(
        self,
        *,
        temperature: float = 0.1,
        min_temperature: float | None = None,
        negatives: Negatives = "samples",
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        form: Form = "auto",
    ) -> None:
        check_choices(negatives=(negatives, Negatives))
        super().__init__(
            class_weights,
            temperature=temperature,
            min_temperature=min_temperature,
            negatives=negatives,
            ignore_index=ignore_index,
            reduction=reduction,
            form=form,
        )

    def forward(
        self,
        features: Tensor,
        prototypes: Tensor,
        labels: Tensor,
        *,
        temperature: Temperature | None = None,
    ) -> Tensor:
        """The loss; a ``temperature`` given here, as a head that learns it does, comes before the module's own."""
        return nonl_loss(features, prototypes, labels, **self.options(temperature))


def _columns(
    features: Tensor,
    prototypes: Tensor,
    samples: Samples,
    slots: ClassSlots,
    pull_from: PullFrom,
    temperature: Temperature,
    form: Form,
) -> MaskedLogSumExp:
    """For each sample, the log-sum over the samples of other classes in its class's column, and its own entry there."""
    columns = masked_logsumexp(
        slots.pick(prototypes),
        samples.blank_ignored(features),
        temperature=temperature,
        pull="anchor_of_key",
        pull_from=pull_from,
        leave_out="pulled",
        partners=slots.of_samples,
        key_log_weights=samples.key_log_weights(features),
        form=form,
    )
    return MaskedLogSumExp(columns.values.index_select(0, slots.of_samples), columns.pulled)


def _rows(
    features: Tensor, prototypes: Tensor, samples: Samples, temperature: Temperature, form: Form
) -> MaskedLogSumExp:
    """For each sample, the log-sum over the prototypes of other classes, and its own prototype's entry."""
    return masked_logsumexp(
        samples.blank_ignored(features),
        prototypes,
        temperature=temperature,
        pull="key_of_anchor",
        leave_out="pulled",
        partners=samples.labels,
        form=form,
    )


def add_in_logs(first: Tensor, second: Tensor) -> Tensor:
    """log(e^first + e^second), with a zero gradient instead of NaN where both are −∞."""
    return logsumexp(torch.stack((first, second)), 0)


def against_all_samples(
    negatives: Tensor,
    positives: Tensor,
    samples: Samples,
    slots: ClassSlots,
    class_weights: Tensor | None,
    reduction: Reduction,
) -> Tensor:
    """log(Σ e^negatives + Σ e^positives of the class) − positive, from the log-sum of the negatives.

    The positives of a class join last, so that neither their differences nor what the negatives add to them is lost
    in the rounding of large similarities: log Σ e^positives − positive, plus a softplus.
    """
    # Ignored samples get a number that weighs nothing and yet is finite, for the sake of a class that has no others.
    positives = torch.where(samples.kept, positives, torch.finfo(positives.dtype).min)
    # Two slopes of the positives, one that may cancel to nothing and one that may be tiny: each is added up on its own
    # copy, or the second would be lost in the parts of the first.
    apart = positives.clone()
    within = slots.logsumexp(apart) - apart
    beyond = torch.logaddexp(negatives - slots.logsumexp(positives), negatives.new_zeros(()))
    values = within + beyond
    return reduce_anchors(values, samples, class_weights=class_weights, reduction=reduction)


def against_negatives(
    sums: Tensor,
    positives: Tensor,
    samples: Samples,
    class_weights: Tensor | None,
    reduction: Reduction,
) -> Tensor:
    """Sums of negatives minus positives, over the samples that have a negative."""
    kept = sums != -torch.inf
    values = torch.where(kept, sums, 0) - positives
    return reduce_anchors(
        values, samples, kept=kept, class_weights=class_weights, reduction=reduction
    )


def _at_least(temperature: Temperature, least: float | None) -> Temperature:
    temperature = read_temperature(temperature)
    if least is not None:
        least = float(read_temperature(least, name="min_temperature"))
        return (
            temperature.clamp(min=least)
            if isinstance(temperature, Tensor)
            else max(temperature, least)
        )
    if isinstance(temperature, Tensor) and temperature.requires_grad:
        raise ValueError(
            "NONL falls without bound as the temperature shrinks, so a temperature that requires a gradient "
            "needs min_temperature; got none"
        )
    return temperature
