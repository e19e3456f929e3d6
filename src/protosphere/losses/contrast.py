"""What losses share on features, logits and sharded prototypes: sums, options and reduction."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from protosphere.kernels.eager import logsumexp
from protosphere.kernels.problem import check_choices, read_temperature
from protosphere.kernels.same_label import accumulation_dtype
from protosphere.losses.reduction import Reduction, reduce_loss
from protosphere.losses.soft_targets import SoftNegatives
from protosphere.losses.targets import CompactLabels, Targets, Temperature
from protosphere.parallel import ProcessGroup, max_over, sum_over, with_gradient_of_sum

Negatives = Literal["samples", "prototypes", "both"]


def check_negatives(
    negatives: Negatives, soft_negatives: SoftNegatives, label_smoothing: float
) -> None:
    """Raise ValueError for unknown options of NONL, or options that exclude each other."""
    check_choices(negatives=(negatives, Negatives), soft_negatives=(soft_negatives, SoftNegatives))
    if label_smoothing:
        check_negatives_of_soft_labels(negatives)


def check_negatives_of_soft_labels(negatives: Negatives) -> None:
    """Raise ValueError unless the negatives are samples, as soft labels require."""
    if negatives != "samples":
        raise ValueError(
            f'negatives must be "samples" with soft labels or label smoothing, got "{negatives}"'
        )


def bounded_temperature(
    temperature: Temperature, min_temperature: float | None
) -> float | Float[Tensor, ""]:
    """Return the temperature of NONL with its lower bound, which a learned one must have."""
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


def cross_entropy(
    others: Float[Tensor, "samples"], positive_logits: Float[Tensor, "samples"]
) -> Float[Tensor, "samples"]:
    """Return log(e^positive + e^others) − positive as a softplus.

    The positive is not part of the other sum on purpose: near collapse log-sum-exp minus positive
    is a difference of equal numbers, and its gradient 1 − p has no digits left in float32.

    Args:
        others: Log-sum-exp of the logits of the other classes.
        positive_logits: Logit of the sample's own class.
    """
    # Not F.softplus, which is x beyond 20 and so off by 2e-9 there.
    return torch.logaddexp(others - positive_logits, others.new_zeros(()))


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


def contrast_over_group(
    negatives: Float[Tensor, "classes"],
    positive_logits: Float[Tensor, "samples"],
    targets: Targets,
    compact: CompactLabels,
    group: ProcessGroup,
) -> Float[Tensor, "samples"]:
    """:func:`contrast_with_all` over the samples of a process group.

    Per class travel two maxima, two sums of exponentials and two gradients; one sum and one
    gradient are in float64.

    Args:
        negatives: Log-sum over the samples of this process that are of other classes, by class.
        positive_logits: Logit of each sample with its own prototype.
        targets: Targets of the batch.
        compact: Compact labels of the batch, the same on all ranks.
        group: Process group.
    """
    labels, dtype = compact.inverse, positive_logits.dtype
    smallest = torch.finfo(dtype).min
    positive_logits = torch.where(targets.kept, positive_logits, smallest)
    copy = positive_logits.to(accumulation_dtype(positive_logits.device), copy=True)
    none = negatives.detach().new_full((compact.num_labels,), -torch.inf)
    largest_positives = none.scatter_reduce(0, labels, positive_logits.detach(), "amax")
    largest = max_over(torch.stack((negatives.detach(), largest_positives)), group)
    top_negatives, top_positives = largest.masked_fill(largest == -torch.inf, 0)

    exponentials = (copy - top_positives[labels]).exp()
    sums = sum_over(copy.new_zeros(compact.num_labels).scatter_add(0, labels, exponentials), group)
    among_positives = (sums[labels].log() + (top_positives[labels] - copy)).to(dtype)

    # Only the ratio of the sums counts, so that both have one gradient, with opposite signs. It is
    # kept apart from that of the positives among themselves, in which it would be lost.
    log_positives = torch.where(sums == 0, 1, sums).log().detach().to(dtype) + top_positives
    total = sum_over((negatives.detach() - top_negatives).exp(), group)
    log_negatives = torch.where(total == 0, 1, total).log() + top_negatives
    log_ratios = torch.where(total == 0, -torch.inf, log_negatives - log_positives)
    parts = (
        (negatives - log_negatives)
        .exp()
        .scatter_add(0, labels, -(positive_logits - log_positives[labels]).exp())
    )
    log_ratios = with_gradient_of_sum(log_ratios, parts, group)
    from_negatives = torch.logaddexp(log_ratios[labels], negatives.new_zeros(()))
    values: Tensor = among_positives + from_negatives
    return values


def reduce_contrast(
    log_sums: Float[Tensor, "samples"],
    positive_logits: Float[Tensor, "samples"],
    targets: Targets,
    reduction: Reduction,
    group: ProcessGroup | None = None,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """Reduce log-sums of negatives minus positives over the samples that have a negative.

    Args:
        log_sums: Log-sum over the negatives of each sample.
        positive_logits: Logit of each sample with its own prototype.
        targets: Targets of the batch.
        reduction: How to reduce.
        group: Process group over whose samples to reduce; None for those of this process.
    """
    has_negatives = log_sums != -torch.inf
    values = torch.where(has_negatives, log_sums, 0) - positive_logits
    return reduce_loss(values, targets, kept=has_negatives, reduction=reduction, group=group)
