"""From the values of the samples to the loss: weights and reduction."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from protosphere.kernels.problem import check_choices
from protosphere.losses.targets import Targets
from protosphere.parallel import ProcessGroup, sum_over

Reduction = Literal["mean", "sum", "none"]


def reduce_loss(
    values: Float[Tensor, "samples"],
    targets: Targets,
    *,
    kept: Bool[Tensor, "samples"] | Bool[Tensor, ""] | None = None,
    reduction: Reduction,
    group: ProcessGroup | None = None,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """Weigh the values by class and reduce them over the kept samples.

    Σ ω ℓ / Σ ω (``"mean"``), Σ ω ℓ (``"sum"``) or ω ℓ (``"none"``). If no sample is kept the result
    is 0 with a zero gradient.

    Args:
        values: Value of each sample.
        targets: Targets, with ignored samples and class weights.
        kept: Samples to keep among those that are not ignored, None for all of them.
        reduction: How to reduce.
        group: Process group over whose samples to reduce; None for those of this process.

    Returns:
        A scalar, or one value per sample for ``"none"``.

    Raises:
        ValueError: An unknown reduction.
    """
    kept = targets.kept if kept is None else targets.kept & kept
    weights = torch.where(kept, targets.sample_weights(values.dtype), 0)
    return reduce_weighted(torch.where(kept, values, 0) * weights, weights, reduction, group)


def reduce_weighted(
    weighted: Float[Tensor, "samples"],
    weights: Float[Tensor, "samples"],
    reduction: Reduction,
    group: ProcessGroup | None = None,
) -> Float[Tensor, "samples"] | Float[Tensor, ""]:
    """Reduce values that are weighted already.

    Args:
        weighted: Weighted value of each sample, 0 for those left out.
        weights: Weight of each sample, 0 for those left out.
        reduction: How to reduce.
        group: Process group over whose samples to reduce; None for those of this process.

    Returns:
        A scalar, or one value per sample for ``"none"``.

    Raises:
        ValueError: An unknown reduction.
    """
    check_choices(reduction=(reduction, Reduction))
    if reduction == "none":
        return weighted
    total = weighted.sum()
    if reduction == "sum":
        return sum_over(total, group)
    total_weight = weights.sum()
    if group is not None:
        total, total_weight = sum_over(torch.stack((total, total_weight.detach())), group)
    return total / torch.where(total_weight == 0, 1, total_weight)
