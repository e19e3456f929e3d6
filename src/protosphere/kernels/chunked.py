"""The chunked form of the primitive: tile by tile in both directions, so that no large matrix is ever held."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from protosphere.geometry.sphere import compute_dtype, inverse_lengths

# How many vectors are normalised, paired or projected at a time: a block of them stays in the cache.
_BLOCK = 1024

# The side of a tile: 4 MiB in float32 on the CPU, where a tile should stay in the cache; 64 MiB elsewhere, where it
# should fill the device.
_TILE_ON_CPU = 1024
_TILE = 4096

# The largest matrix that the forward keeps for the backward (64 MiB in float32); beyond it tiles are computed again,
# which costs one more matrix product on top of three.
_KEPT = 2**24


class _Problem(NamedTuple):
    """What both directions are given; the order is that of the operators' schema."""

    anchors: Tensor
    keys: Tensor
    scale: Tensor
    key_log_weights: Tensor | None
    anchor_labels: Tensor | None
    key_labels: Tensor | None
    pair_anchors: Tensor
    pair_keys: Tensor
    leave_out_same_index: bool
    on_sphere: bool
    tile: int
    keep: bool


_SCHEMA = (
    "Tensor anchors, Tensor keys, Tensor scale, Tensor? key_log_weights, Tensor? anchor_labels, Tensor? key_labels, "
    "Tensor pair_anchors, Tensor pair_keys, bool leave_out_same_index, bool on_sphere, int tile, bool keep"
)


def _blocks(length: int, size: int = _BLOCK) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


class _Operand:
    """Vectors read a block of rows at a time, on the sphere or as they are, and the way back for their gradient."""

    def __init__(self, vectors: Tensor, dtype: torch.dtype, on_sphere: bool) -> None:
        self.vectors, self.dtype = vectors, dtype
        self.inverse: Tensor | None = None
        if on_sphere:
            self.inverse = torch.empty(len(vectors), dtype=dtype, device=vectors.device)
            for rows in _blocks(len(vectors)):
                self.inverse[rows] = inverse_lengths(vectors[rows].to(dtype))

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        block = self.vectors[rows].to(self.dtype)
        return block if self.inverse is None else block * self.inverse[rows].unsqueeze(-1)

    def pull_back(self, gradient: Tensor) -> Tensor:
        """Turn, in place, a gradient for the operand into one for the vectors: the tangent projection comes last."""
        if self.inverse is not None:
            for rows in _blocks(len(gradient)):
                unit = self[rows]
                radial = torch.linalg.vecdot(gradient[rows], unit).unsqueeze(-1)
                gradient[rows].addcmul_(radial, unit, value=-1).mul_(self.inverse[rows].unsqueeze(-1))
        return gradient.to(self.vectors.dtype)


class _Tile(NamedTuple):
    """One tile of the matrix: where it lies, its keys, its scaled similarities, and room to work in."""

    at_anchors: slice
    at_keys: slice
    keys: Tensor
    similarities: Tensor
    scratch: Tensor


def _tiles(problem: _Problem, scaled_anchors: Tensor, keys: _Operand, kept: Tensor, known: bool) -> Iterator[_Tile]:
    """Walk the matrix, key block by key block; left-out pairs stand at −∞.

    One scratch serves all tiles: fresh memory for each would be paid for in page faults. Where the whole matrix is
    kept, a tile's similarities are a part of ``kept`` (already ``known`` in the backward); else they are the scratch.
    """
    shared = scaled_anchors.new_empty(min(problem.tile, len(scaled_anchors)) * min(problem.tile, len(problem.keys)))
    done = 0
    for at_keys in _blocks(len(problem.keys), problem.tile):
        block = keys[at_keys]
        for at_anchors in _blocks(len(scaled_anchors), problem.tile):
            rows = scaled_anchors[at_anchors]
            shape, size = (len(rows), len(block)), len(rows) * len(block)
            scratch = shared[:size].view(shape)
            tile = kept[done : done + size].view(shape) if len(kept) else scratch
            done += size
            if not known:
                _fill(tile, problem, rows, block, at_anchors, at_keys)
            yield _Tile(at_anchors, at_keys, block, tile, scratch)


def _fill(tile: Tensor, problem: _Problem, rows: Tensor, columns: Tensor, at_anchors: slice, at_keys: slice) -> None:
    if problem.key_log_weights is None:
        torch.mm(rows, columns.mT, out=tile)
    else:
        torch.addmm(problem.key_log_weights[at_keys].to(tile.dtype), rows, columns.mT, out=tile)
    if problem.anchor_labels is not None and problem.key_labels is not None:
        tile.masked_fill_(problem.anchor_labels[at_anchors, None] == problem.key_labels[None, at_keys], -torch.inf)
    offset = at_anchors.start - at_keys.start
    if problem.leave_out_same_index and -len(rows) < offset < len(columns):
        tile.diagonal(offset).fill_(-torch.inf)


def _kept_size(problem: _Problem) -> int:
    size = len(problem.anchors) * len(problem.keys)
    return size if problem.keep and size <= _KEPT else 0


def _operands(problem: _Problem) -> tuple[_Operand, Tensor, _Operand]:
    dtype = compute_dtype(problem.anchors, problem.keys, problem.scale)
    anchors = _Operand(problem.anchors, dtype, problem.on_sphere)
    return anchors, anchors[:].mul(problem.scale), _Operand(problem.keys, dtype, problem.on_sphere)


def _finite(values: Tensor) -> Tensor:
    """A shift for exponentials: 0 where every pair was left out, so that −∞ − (−∞) never happens."""
    return values.masked_fill(values == -torch.inf, 0)


@torch.library.custom_op(
    "protosphere::masked_logsumexp", mutates_args=(), schema=f"({_SCHEMA}) -> (Tensor, Tensor, Tensor)"
)
def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    problem = _Problem(*arguments)
    with torch.autocast(problem.anchors.device.type, enabled=False):
        _, scaled_anchors, keys = _operands(problem)
        largest = scaled_anchors.new_full((len(scaled_anchors),), -torch.inf)
        total = torch.zeros_like(largest)
        kept = scaled_anchors.new_empty(_kept_size(problem))
        for tile in _tiles(problem, scaled_anchors, keys, kept, known=False):
            before = largest[tile.at_anchors]
            now = torch.maximum(before, tile.similarities.amax(1))
            shift = _finite(now)
            total[tile.at_anchors] *= (before - shift).exp()
            total[tile.at_anchors] += torch.sub(tile.similarities, shift.unsqueeze(1), out=tile.scratch).exp_().sum(1)
            largest[tile.at_anchors] = now
        paired = scaled_anchors.new_empty(len(problem.pair_anchors))
        for at in _blocks(len(paired)):
            paired[at] = torch.linalg.vecdot(scaled_anchors[problem.pair_anchors[at]], keys[problem.pair_keys[at]])
        return total.log() + _finite(largest), paired, kept


@torch.library.custom_op(
    "protosphere::masked_logsumexp_backward",
    mutates_args=(),
    schema=f"(Tensor grad_lse, Tensor grad_paired, Tensor lse, Tensor kept, bool[] wanted, {_SCHEMA}) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
)
def _backward(
    grad_lse: Tensor, grad_paired: Tensor, lse: Tensor, kept: Tensor, wanted: list[bool], *arguments: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    problem = _Problem(*arguments)
    for_anchors, for_keys, for_scale, for_log_weights = wanted
    for_anchors = for_anchors or for_scale
    with torch.autocast(problem.anchors.device.type, enabled=False):
        anchors, scaled_anchors, keys = _operands(problem)
        shift, weight = _finite(lse).unsqueeze(1), grad_lse.unsqueeze(1)
        # What nobody asked for stays empty: an operator returns a tensor in every place.
        d_anchors = scaled_anchors.new_zeros(problem.anchors.shape if for_anchors else 0)
        d_keys = scaled_anchors.new_zeros(problem.keys.shape if for_keys else 0)
        d_scale = scaled_anchors.new_zeros(() if for_scale else 0)
        d_log_weights = scaled_anchors.new_zeros(len(problem.keys) if for_log_weights else 0)
        for tile in _tiles(problem, scaled_anchors, keys, kept, known=len(kept) > 0):
            shares = torch.sub(tile.similarities, shift[tile.at_anchors], out=tile.scratch).exp_()
            if for_anchors:
                d_anchors[tile.at_anchors].addmm_(shares, tile.keys)
            if for_keys:
                weighted = scaled_anchors[tile.at_anchors] * weight[tile.at_anchors]
                d_keys[tile.at_keys].addmm_(shares.mT, weighted)
            if for_log_weights:
                d_log_weights[tile.at_keys].addmv_(shares.mT, grad_lse[tile.at_anchors])
        if for_anchors:
            d_anchors.mul_(weight)
        for at in _blocks(len(problem.pair_anchors)):
            at_anchors, at_keys, weight = problem.pair_anchors[at], problem.pair_keys[at], grad_paired[at].unsqueeze(1)
            if for_anchors:
                d_anchors.index_add_(0, at_anchors, keys[at_keys] * weight)
            if for_keys:
                d_keys.index_add_(0, at_keys, scaled_anchors[at_anchors] * weight)
        if for_scale:
            torch.dot(d_anchors.flatten(), scaled_anchors.flatten(), out=d_scale).div_(problem.scale)
        if for_anchors:
            d_anchors = anchors.pull_back(d_anchors.mul_(problem.scale))
        if for_keys:
            d_keys = keys.pull_back(d_keys)
        return d_anchors, d_keys, d_scale, d_log_weights


@_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    problem = _Problem(*arguments)
    like = problem.anchors.new_empty(0, dtype=compute_dtype(problem.anchors, problem.keys, problem.scale))
    return (
        like.new_empty(len(problem.anchors)),
        like.new_empty(len(problem.pair_anchors)),
        like.new_empty(_kept_size(problem)),
    )


@_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _, _, lse, _, wanted = arguments[:5]
    problem = _Problem(*arguments[5:])
    for_anchors, for_keys, for_scale, for_log_weights = wanted
    return (
        problem.anchors.new_empty(problem.anchors.shape) if for_anchors or for_scale else lse.new_empty(0),
        problem.keys.new_empty(problem.keys.shape) if for_keys else lse.new_empty(0),
        lse.new_empty(() if for_scale else 0),
        lse.new_empty(len(problem.keys) if for_log_weights else 0),
    )


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    problem = _Problem(*inputs)
    lse, _, kept = output
    ctx.mark_non_differentiable(kept)
    ctx.save_for_backward(*problem[:8], lse, kept)
    ctx.constants = problem[8:]


def _differentiate(ctx: Any, grad_lse: Tensor, grad_paired: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, lse, kept = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:4])
    gradients = _backward(grad_lse, grad_paired, lse, kept, wanted, *tensors, *ctx.constants)
    given = (gradient if want else None for gradient, want in zip(gradients, wanted, strict=True))
    return (*given, *(None,) * 8)


_forward.register_autograd(_differentiate, setup_context=_remember)


def logsumexp_and_pairs(
    anchors: Tensor,
    keys: Tensor,
    scale: Tensor,
    key_log_weights: Tensor | None,
    anchor_labels: Tensor | None,
    key_labels: Tensor | None,
    pair_anchors: Tensor,
    pair_keys: Tensor,
    leave_out_same_index: bool,
    on_sphere: bool,
) -> tuple[Tensor, Tensor]:
    """The primitive by tiles; memory O((anchors + keys) · dim) and a tile in both directions."""
    differentiable = (anchors, keys, scale, key_log_weights)
    keep = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in differentiable)
    lse, paired, _ = _forward(
        anchors,
        keys,
        scale,
        key_log_weights,
        anchor_labels,
        key_labels,
        pair_anchors,
        pair_keys,
        leave_out_same_index,
        on_sphere,
        _TILE_ON_CPU if anchors.device.type == "cpu" else _TILE,
        keep,
    )
    return lse, paired
