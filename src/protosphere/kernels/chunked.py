"""The chunked form of the primitive: tile by tile in both passes, so that no matrix is held."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from protosphere.geometry.sphere import unit_squared_chords
from protosphere.kernels import eager
from protosphere.kernels.problem import Problem, inside_functorch
from protosphere.kernels.same_label import (
    accumulation_dtype,
    chord_operands,
    num_positives,
    positive_shift,
)
from protosphere.kernels.tiles import (
    IndexedPairs,
    Operand,
    SameLabelPositives,
    Tile,
    add_log_weights,
    find_positives,
    iterate_tiles,
    row_blocks,
)

# Side of a tile, and number of vectors that are normalized or projected at a time. On the CPU a
# tile (4 MiB in float32) should fit the cache; elsewhere (64 MiB) it should fill the device.
_SIDE_ON_CPU = 1024
_SIDE = 4096

# Largest matrix that the forward pass stores for the backward pass (64 MiB in float32). Larger ones
# are computed again, which costs one matrix product beside the three that are needed anyway.
_KEPT = 2**24

# The fields of a problem in the order of the operators' arguments.
_SCHEMA = (
    "Tensor anchors, Tensor keys, Tensor scale, Tensor? key_log_weights, Tensor? positive_index, "
    "Tensor? anchor_labels, Tensor? key_labels, Tensor? pair_index, Tensor? pair_log_weights, "
    "str positives, str positive_logits_from, str exclude, str similarity"
)
_NAMES = tuple(field.name for field in fields(Problem))
_NUM_FIELDS, _NUM_TENSORS, _NUM_DIFFERENTIABLE = len(_NAMES), 9, 4


def compute(problem: Problem) -> tuple[Tensor, Tensor]:
    """Compute the primitive by tiles, in O((anchors + keys) · dim) memory and one tile.

    Args:
        problem: What to compute.

    Returns:
        The log-sum-exp of each anchor and the logits of the positives.

    Raises:
        RuntimeError: A transform of ``torch.func`` is active.
    """
    if inside_functorch():
        raise RuntimeError(
            'form="chunked" does not support the transforms of torch.func (grad, vmap, ...), '
            'use form="eager" or form="auto"'
        )
    arguments = [getattr(problem, name) for name in _NAMES]
    needs_backward = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in arguments[:_NUM_DIFFERENTIABLE]
    )
    values, positive_logits, _ = _forward(*arguments, needs_backward)
    return values.to(problem.dtype), positive_logits


def forward_of_block(problem: Problem) -> tuple[Tensor, Tensor]:
    """Return sums, in the accumulation dtype, and positive logits of some keys, no gradient."""
    values, positive_logits, _ = _forward(*(getattr(problem, name) for name in _NAMES), False)
    return values, positive_logits


def backward_of_block(
    problem: Problem, gradients: tuple[Tensor, Tensor], values: Tensor, needs_grad: list[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of anchors, keys, scale and log-weights, for sums over more keys."""
    arguments, saved = (getattr(problem, name) for name in _NAMES), problem.anchors.new_empty(0)
    found: tuple[Tensor, Tensor, Tensor, Tensor]
    found = _backward(*gradients, values, saved, needs_grad, *arguments)
    return found


def _side(device: torch.device) -> int:
    return _SIDE_ON_CPU if device.type == "cpu" else _SIDE


def _accumulation_dtype(problem: Problem) -> torch.dtype:
    if problem.positives == "same_label":
        return accumulation_dtype(problem.anchors.device)
    return problem.dtype


def _saved_size(problem: Problem, store: bool) -> int:
    size = len(problem.anchors) * len(problem.keys)
    return size if store and size <= _KEPT else 0


def _finite(values: Tensor) -> Tensor:
    """Replace −∞ by 0, so that −∞ − (−∞) never occurs where every pair is excluded."""
    return values.masked_fill(values == -torch.inf, 0)


class _Operands(NamedTuple):
    """The operands of all tiles.

    Attributes:
        anchors: The anchors.
        scaled_anchors: The anchors times the inverse temperature.
        keys: The keys.
        chords: Operands of the logits of pairs of one label, the left one scaled; None if unused.
        top: What remains to be subtracted from the logits, to measure them from the largest.
    """

    anchors: Operand
    scaled_anchors: Tensor
    keys: Operand
    chords: tuple[Tensor, Tensor] | None
    top: Tensor

    def tiles(self, problem: Problem, saved: Tensor) -> Iterator[Tile]:
        side = _side(saved.device)
        return iterate_tiles(problem, self.scaled_anchors, self.keys, saved, side)

    def write_logits(
        self, tile: Tile, problem: Problem, positives: IndexedPairs | SameLabelPositives | None
    ) -> None:
        """Compute the logits of a tile."""
        torch.mm(self.scaled_anchors[tile.anchors], tile.key_vectors.mT, out=tile.logits)
        if self.chords is not None and isinstance(positives, SameLabelPositives):
            left, right = self.chords
            tile.logits.sub_(problem.scale)
            accurate = torch.mm(left[tile.anchors], right[tile.keys].mT)
            torch.where(positives.mask > 0, accurate, tile.logits, out=tile.logits)


def _operands(problem: Problem) -> _Operands:
    dtype, side = problem.dtype, _side(problem.anchors.device)
    anchors, keys = (
        Operand(vectors, dtype, on_sphere=problem.on_sphere, side=side)
        for vectors in (problem.anchors, problem.keys)
    )
    unit = anchors[:]
    chords = None
    top = problem.scale.to(dtype) if problem.on_sphere else unit.new_zeros(())
    if problem.positives == "same_label" and problem.on_sphere:
        assert problem.anchor_labels is not None
        assert problem.key_labels is not None
        left, right = chord_operands(unit, keys[:], problem.anchor_labels, problem.key_labels)
        chords, top = (left.mul_(problem.scale), right), unit.new_zeros(())
    return _Operands(anchors, unit.mul(problem.scale), keys, chords, top)


def _mask_logits(
    tile: Tile, problem: Problem, positives: IndexedPairs | SameLabelPositives | None
) -> None:
    """Add the log-weights and set excluded pairs to −∞."""
    add_log_weights(tile, problem)
    if problem.exclude == "positives" and positives:
        positives.exclude(tile.logits)
    if problem.exclude == "same_index":
        tile.diagonal(tile.logits).fill_(-torch.inf)


def _logits_from_chords(problem: Problem, anchors: Operand, keys: Operand) -> Tensor:
    """Logits of single positives on the sphere by cos − 1 = −‖u − v‖²/2, a block at a time."""
    assert problem.positive_index is not None
    of_keys = problem.positives == "anchor_of_key"
    queries, targets = (keys, anchors) if of_keys else (anchors, keys)
    index = problem.positive_index
    result = torch.empty(len(index), dtype=problem.dtype, device=index.device)
    for rows in row_blocks(index, _side(index.device)):
        result[rows] = unit_squared_chords(queries[rows], targets[index[rows]])
    return result.mul_(-problem.scale / 2)


@torch.library.custom_op(
    "protosphere::masked_logsumexp",
    mutates_args=(),
    schema=f"({_SCHEMA}, bool store_logits) -> (Tensor, Tensor, Tensor)",
)
def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    problem, store = Problem(*arguments[:_NUM_FIELDS]), arguments[_NUM_FIELDS]
    with torch.autocast(problem.anchors.device.type, enabled=False):
        operands = _operands(problem)
        like, accumulate = operands.scaled_anchors, _accumulation_dtype(problem)
        largest = like.new_full((len(like),), -torch.inf)
        total = torch.zeros_like(largest, dtype=accumulate)
        saved = like.new_empty(_saved_size(problem, store))
        if problem.positive_logits_from == "chords":
            positive_logits = _logits_from_chords(problem, operands.anchors, operands.keys)
        else:
            positive_logits = like.new_zeros(problem.num_positive_logits)
        for tile in operands.tiles(problem, saved):
            positives = find_positives(tile, problem)
            operands.write_logits(tile, problem, positives)
            if positives and problem.positive_logits_from == "matrix":
                positives.read(tile.logits, operands.top, positive_logits)
            _mask_logits(tile, problem, positives)
            before = largest[tile.anchors]
            now = torch.maximum(before, tile.logits.amax(1))
            shift = _finite(now)
            total[tile.anchors] *= (before - shift).exp()
            exponentials = torch.sub(tile.logits, shift.unsqueeze(1), out=tile.scratch).exp_()
            total[tile.anchors] += exponentials.sum(1, dtype=accumulate)
            largest[tile.anchors] = now
        if problem.positives == "same_label":
            positive_logits /= num_positives(problem).clamp(min=1)
        return total.log() + _finite(largest) - operands.top, positive_logits, saved


class _SameLabelGradients(NamedTuple):
    """What the slopes of positives of one label need of each anchor.

    Attributes:
        of_positive: Gradient reaching each positive logit of the anchor.
        shift: Shift t of :func:`~protosphere.kernels.same_label.positive_shift`.
        exists: Whether the shift exists.
    """

    of_positive: Tensor
    shift: Tensor
    exists: Tensor

    def add_slopes(self, tile: Tile, mask: Tensor, logits: Tensor) -> None:
        """Add the slopes of the positives to those of the sums in the scratch memory."""
        of_positive, shift, exists = (values[tile.anchors, None] for values in self)
        accurate = logits.sub(shift).expm1_().mul_(of_positive.neg())
        plain = tile.scratch.addcmul_(mask, of_positive)
        torch.where((mask > 0) & exists, accurate, plain, out=tile.scratch)


def _same_label_gradients(
    problem: Problem, grad_values: Tensor, grad_positives: Tensor, values: Tensor
) -> _SameLabelGradients | None:
    if problem.positives != "same_label":
        return None
    counts, dtype = num_positives(problem), problem.dtype
    shift, exists = positive_shift(grad_values, grad_positives, counts, values)
    return _SameLabelGradients(grad_positives / counts.clamp(min=1), shift.to(dtype), exists)


@torch.library.custom_op(
    "protosphere::masked_logsumexp_backward",
    mutates_args=(),
    schema="(Tensor grad_values, Tensor grad_positives, Tensor values, Tensor saved, "
    f"bool[] needs_grad, {_SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _backward(
    grad_values: Tensor,
    grad_positives: Tensor,
    values: Tensor,
    saved: Tensor,
    needs_grad: list[bool],
    *arguments: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    problem = Problem(*arguments)
    for_anchors, for_keys, for_scale, for_log_weights = needs_grad
    for_anchors = for_anchors or for_scale
    with torch.autocast(problem.anchors.device.type, enabled=False):
        operands = _operands(problem)
        scaled_anchors, dtype = operands.scaled_anchors, problem.dtype
        same_label = _same_label_gradients(problem, grad_values, grad_positives, values)
        shift = (_finite(values) + operands.top).to(dtype).unsqueeze(1)
        weight = grad_values.to(dtype).unsqueeze(1)
        # An operator returns a tensor in every place: those not needed are empty.
        d_anchors = scaled_anchors.new_zeros(problem.anchors.shape if for_anchors else 0)
        d_keys = scaled_anchors.new_zeros(problem.keys.shape if for_keys else 0)
        d_scale = scaled_anchors.new_zeros(() if for_scale else 0)
        d_log_weights = scaled_anchors.new_zeros(len(problem.keys) if for_log_weights else 0)
        for tile in operands.tiles(problem, saved):
            positives = find_positives(tile, problem)
            if not len(saved):
                operands.write_logits(tile, problem, positives)
                _mask_logits(tile, problem, positives)
            # The scratch memory may be that of the logits, which positives of one label need later.
            logits = tile.logits if same_label is None or len(saved) else tile.logits.clone()
            slopes = torch.sub(tile.logits, shift[tile.anchors], out=tile.scratch).exp_()
            slopes.mul_(weight[tile.anchors])
            if for_log_weights:
                d_log_weights[tile.keys] += slopes.sum(0)
            # Attraction meets repulsion here, as numbers: near collapse they almost cancel, and
            # sums of vectors would lose what is left.
            if isinstance(positives, IndexedPairs):
                positives.add(slopes, grad_positives)
            elif positives and same_label:
                same_label.add_slopes(tile, positives.mask, logits)
            if for_scale and problem.on_sphere:
                d_scale -= slopes.sum()
            if for_anchors:
                d_anchors[tile.anchors].addmm_(slopes, tile.key_vectors)
            if for_keys:
                d_keys[tile.keys].addmm_(slopes.mT, scaled_anchors[tile.anchors])
        if for_scale:
            # Σ slope · cos from the vectors; on the sphere, where a logit is scale · (cos − 1),
            # less Σ slope.
            d_scale += torch.dot(d_anchors.flatten(), scaled_anchors.flatten()).div_(problem.scale)
        if for_anchors:
            d_anchors = operands.anchors.backward(d_anchors.mul_(problem.scale))
        if for_keys:
            d_keys = operands.keys.backward(d_keys)
        return d_anchors, d_keys, d_scale, d_log_weights


@_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    problem, store = Problem(*arguments[:_NUM_FIELDS]), arguments[_NUM_FIELDS]
    like = problem.anchors.new_empty(0, dtype=problem.dtype)
    return (
        like.new_empty(len(problem.anchors), dtype=_accumulation_dtype(problem)),
        like.new_empty(problem.num_positive_logits),
        like.new_empty(_saved_size(problem, store)),
    )


@_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    problem = Problem(*arguments[5:])
    for_anchors, for_keys, for_scale, for_log_weights = arguments[4]
    empty = problem.anchors.new_empty(0, dtype=problem.dtype)
    return (
        torch.empty_like(problem.anchors) if for_anchors or for_scale else empty,
        torch.empty_like(problem.keys) if for_keys else empty.clone(),
        empty.new_empty(() if for_scale else 0),
        empty.new_empty(len(problem.keys) if for_log_weights else 0),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    values, positive_logits, saved = output
    ctx.mark_non_differentiable(saved)
    # Otherwise the saved logits would get a gradient of zeros of their own size.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:_NUM_TENSORS], values, saved)
    ctx.num_positive_logits = len(positive_logits)
    ctx.options = inputs[_NUM_TENSORS:_NUM_FIELDS]


def _differentiate(
    ctx: Any, grad_values: Tensor | None, grad_positives: Tensor | None, _: None
) -> tuple[Tensor | None, ...]:
    *tensors, values, saved = ctx.saved_tensors
    if grad_values is None:
        grad_values = torch.zeros_like(values)
    if grad_positives is None:
        grad_positives = saved.new_zeros(ctx.num_positive_logits)
    needs_grad = list(ctx.needs_input_grad[:_NUM_DIFFERENTIABLE])
    arguments = (*tensors, *ctx.options)
    gradients: tuple[Tensor | None, ...]
    if torch.is_grad_enabled():
        gradients = _differentiable_backward(
            Problem(*arguments), needs_grad, grad_values, grad_positives
        )
    else:
        gradients = _backward(grad_values, grad_positives, values, saved, needs_grad, *arguments)
    used = (
        gradient if need else None for gradient, need in zip(gradients, needs_grad, strict=True)
    )
    return (*used, *(None,) * (_NUM_FIELDS + 1 - _NUM_DIFFERENTIABLE))


def _differentiable_backward(
    problem: Problem, needs_grad: list[bool], grad_values: Tensor, grad_positives: Tensor
) -> tuple[Tensor | None, ...]:
    """Compute gradients that have gradients themselves, from the eager form."""
    tensors = [getattr(problem, name) for name in _NAMES[:_NUM_DIFFERENTIABLE]]
    # Views of the inputs, so that the gradient stops here and does not run on into their history.
    inputs = [
        tensor.view_as(tensor) if need else tensor
        for tensor, need in zip(tensors, needs_grad, strict=True)
    ]
    problem = replace(problem, **dict(zip(_NAMES, inputs, strict=False)))
    with torch.autocast(problem.anchors.device.type, enabled=False):
        values, positive_logits = eager.compute(problem)
        outputs = [(values, grad_values.to(values.dtype))]
        if positive_logits.requires_grad:
            outputs.append((positive_logits, grad_positives))
        found = torch.autograd.grad(
            [output for output, _ in outputs],
            [tensor for tensor, need in zip(inputs, needs_grad, strict=True) if need],
            [gradient for _, gradient in outputs],
            create_graph=True,
            allow_unused=True,
        )
    gradients = iter(found)
    return tuple(next(gradients) if need else None for need in needs_grad)


_forward.register_autograd(_differentiate, setup_context=_setup_context)
