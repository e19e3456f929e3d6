"""The eager form of the primitive: the whole matrix, differentiated by autograd."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from protosphere.geometry.sphere import inner_products, normalize, unit_squared_chords
from protosphere.kernels.problem import Problem
from protosphere.kernels.same_label import (
    accumulation_dtype,
    chord_operands,
    num_positives,
    positive_shift,
)


def compute(
    problem: Problem,
) -> tuple[Float[Tensor, "anchors"], Float[Tensor, "positives"]]:
    """Compute the primitive by its definition, in O(anchors · keys) memory.

    Args:
        problem: What to compute.

    Returns:
        The log-sum-exp of each anchor and the logits of the positives.
    """
    scale = problem.scale
    anchors, keys = problem.anchors.to(problem.dtype), problem.keys.to(problem.dtype)
    if problem.on_sphere:
        anchors, keys = normalize(anchors), normalize(keys)
    if len(anchors) <= len(keys):
        logits = inner_products(anchors * scale, keys)
    else:
        logits = inner_products(anchors, keys * scale)
    # On the sphere logits are measured from the largest possible one.
    top = scale if problem.on_sphere else torch.zeros_like(scale)
    if problem.positives == "same_label":
        return _with_same_label(problem, anchors, keys, logits - top)
    excluded = None
    if problem.exclude == "same_index":
        excluded = _same_index(logits)
    elif problem.exclude == "positives":
        excluded = _positive_pairs(problem, logits)
    weighted = _masked(logits, problem.key_log_weights, excluded)
    if problem.pair_index is not None and problem.pair_log_weights is not None:
        weighted = weighted.scatter_add(
            0, problem.pair_index.mT, problem.pair_log_weights.mT.to(weighted.dtype)
        )
    values = logsumexp(weighted, 1) - top
    return values, _positive_logits(problem, anchors, keys, logits, top)


def logsumexp(values: Float[Tensor, "..."], axis: int) -> Float[Tensor, "..."]:
    """Return log Σ exp along an axis.

    Unlike ``torch.logsumexp`` it has a zero gradient, not NaN, where all values are −∞.
    """
    if values.shape[axis] == 0:
        return values.sum(axis) - torch.inf
    largest = values.detach().amax(axis, keepdim=True)
    largest = largest.masked_fill(largest == -torch.inf, 0)
    total = (values - largest).exp().sum(axis)
    empty = total == 0
    return torch.where(
        empty, -torch.inf, torch.where(empty, 1, total).log() + largest.squeeze(axis)
    )


def _positive_logits(
    problem: Problem, anchors: Tensor, keys: Tensor, logits: Tensor, top: Tensor
) -> Tensor:
    index = problem.positive_index
    if problem.positives == "none" or index is None:
        return logits.new_zeros(0)
    of_keys = problem.positives == "anchor_of_key"
    if problem.positive_logits_from == "matrix":
        axis = 0 if of_keys else 1
        return logits.gather(axis, index.unsqueeze(axis)).squeeze(axis) - top
    queries, targets = (keys, anchors) if of_keys else (anchors, keys)
    return unit_squared_chords(queries, targets.index_select(0, index)) * (-problem.scale / 2)


def _positive_pairs(problem: Problem, logits: Tensor) -> Bool[Tensor, "anchors keys"]:
    """Return a matrix that is True where anchor and key are positives."""
    num_anchors, num_keys = logits.shape
    if problem.positives == "same_label":
        assert problem.anchor_labels is not None
        assert problem.key_labels is not None
        return problem.anchor_labels[:, None] == problem.key_labels
    assert problem.positive_index is not None
    if problem.positives == "key_of_anchor":
        return problem.positive_index[:, None] == torch.arange(num_keys, device=logits.device)
    return problem.positive_index == torch.arange(num_anchors, device=logits.device)[:, None]


def _same_index(matrix: Tensor) -> Bool[Tensor, "anchors keys"]:
    rows, columns = (torch.arange(size, device=matrix.device) for size in matrix.shape)
    return rows[:, None] == columns


def _masked(logits: Tensor, key_log_weights: Tensor | None, excluded: Tensor | None) -> Tensor:
    if key_log_weights is not None:
        logits = logits + key_log_weights.to(logits.dtype)
    return logits if excluded is None else logits.masked_fill(excluded, -torch.inf)


def _with_same_label(
    problem: Problem, anchors: Tensor, keys: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor]:
    assert problem.anchor_labels is not None
    assert problem.key_labels is not None
    positives = _positive_pairs(problem, logits)
    if problem.on_sphere:
        # The correction is the rounding error of the logits: it has no derivative of its own.
        with torch.no_grad():
            left, right = chord_operands(anchors, keys, problem.anchor_labels, problem.key_labels)
            accurate = inner_products(left * problem.scale, right)
            correction = torch.where(positives, accurate - logits, 0)
        logits = logits + correction
    excluded = None
    if problem.exclude == "same_index":
        excluded = _same_index(logits)
        positives = positives & ~excluded
    elif problem.exclude == "positives":
        excluded = positives
    values, positive_logits, _ = _AttractionAndRepulsion.apply(
        logits, problem.key_log_weights, positives, excluded, num_positives(problem)
    )
    return values, positive_logits


class _AttractionAndRepulsion(torch.autograd.Function):
    """Log-sum-exp and mean positive logit of each row, with one accurate matrix of slopes.

    Autograd would add the slopes of the two results as rounded numbers, which almost cancel.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        logits: Tensor,
        key_log_weights: Tensor | None,
        positives: Tensor,
        excluded: Tensor | None,
        counts: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        positive_logits = torch.where(positives, logits, 0).sum(1) / counts.clamp(min=1)
        values = _masked(logits, key_log_weights, excluded)
        accumulate = accumulation_dtype(logits.device)
        if values.shape[1] == 0:
            precise = values.sum(1, dtype=accumulate) - torch.inf
        else:
            largest = values.amax(1)
            largest = largest.masked_fill(largest == -torch.inf, 0)
            precise = (values - largest[:, None]).exp().sum(1, dtype=accumulate).log() + largest
        # A copy even in float64: the two results are marked differently for autograd.
        return precise.to(logits.dtype, copy=True), positive_logits, precise

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*inputs, output[2])

    @staticmethod
    def backward(
        ctx: Any, grad_values: Tensor, grad_positives: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        logits, key_log_weights, positives, excluded, counts, precise = ctx.saved_tensors
        masked = _masked(logits, key_log_weights, excluded)
        if torch.is_grad_enabled():
            # A second derivative must see that the log-sum-exp depends on the logits.
            precise = logsumexp(masked, 1)
        finite = precise.masked_fill(precise == -torch.inf, 0).to(logits.dtype)
        repulsion = (masked - finite[:, None]).exp() * grad_values[:, None]
        attraction = grad_positives / counts.clamp(min=1)
        if torch.is_grad_enabled():
            slopes = repulsion + torch.where(positives, attraction[:, None], 0)
        else:
            shift, exists = positive_shift(grad_values, grad_positives, counts, precise)
            accurate = (masked - shift.to(logits.dtype)[:, None]).expm1_()
            accurate = accurate.mul_(-attraction[:, None])
            # Without a shift, for example where an upstream gradient is 0, the plain sum has to do.
            plain = repulsion + torch.where(exists, 0, attraction)[:, None] * positives
            slopes = torch.where(positives & exists[:, None], accurate, plain)
        grad_weights = None
        if key_log_weights is not None and ctx.needs_input_grad[1]:
            grad_weights = repulsion.sum(0).to(key_log_weights.dtype)
        return slopes, grad_weights, None, None, None
