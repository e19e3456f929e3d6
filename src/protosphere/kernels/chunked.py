"""The chunked form of the primitive: tile by tile in both directions, so that no large matrix is ever held."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from protosphere.geometry.sphere import compute_dtype, inverse_norms, unit_squared_chords

# The side of a tile, and how many vectors are normalized or projected at a time. On the CPU a tile (4 MiB in float32)
# should stay in the cache; elsewhere (64 MiB) it should fill the device.
_SIDE_ON_CPU = 1024
_SIDE = 4096

# The largest matrix that the forward keeps for the backward (64 MiB in float32); beyond it tiles are computed again,
# which costs one more matrix product on top of three.
_KEPT = 2**24


class _Problem(NamedTuple):
    """What both directions are given; the order is that of the operators' schema."""

    anchors: Tensor
    keys: Tensor
    scale: Tensor
    key_log_weights: Tensor | None
    partners: Tensor | None
    anchor_labels: Tensor | None
    key_labels: Tensor | None
    pull: str
    pull_from: str
    leave_out: str
    on_sphere: bool
    keep: bool


_TENSORS = 7
_SCHEMA = (
    "Tensor anchors, Tensor keys, Tensor scale, Tensor? key_log_weights, Tensor? partners, Tensor? anchor_labels, "
    "Tensor? key_labels, str pull, str pull_from, str leave_out, bool on_sphere, bool keep"
)


def _side(tensor: Tensor) -> int:
    return _SIDE_ON_CPU if tensor.device.type == "cpu" else _SIDE


def _blocks(tensor: Tensor) -> Iterator[slice]:
    """The rows of a matrix, a block at a time."""
    length, size = len(tensor), _side(tensor)
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


class _Operand:
    """Vectors read a block of rows at a time, on the sphere or as they are, and the way back for their gradient."""

    def __init__(self, vectors: Tensor, dtype: torch.dtype, on_sphere: bool) -> None:
        self.vectors, self.dtype = vectors, dtype
        self.inverse: Tensor | None = None
        if on_sphere:
            self.inverse = torch.empty(len(vectors), dtype=dtype, device=vectors.device)
            for rows in _blocks(vectors):
                self.inverse[rows] = inverse_norms(vectors[rows].to(dtype))

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        block = self.vectors[rows].to(self.dtype)
        return block if self.inverse is None else block * self.inverse[rows].unsqueeze(-1)

    def pull_back(self, gradient: Tensor) -> Tensor:
        """Turn, in place, a gradient for the operand into one for the vectors: the tangent projection comes last."""
        if self.inverse is not None:
            for rows in _blocks(gradient):
                unit = self[rows]
                radial = torch.linalg.vecdot(gradient[rows], unit).unsqueeze(-1)
                gradient[rows].addcmul_(radial, unit, value=-1).mul_(
                    self.inverse[rows].unsqueeze(-1)
                )
        return gradient.to(self.vectors.dtype)


class _Tile(NamedTuple):
    """One tile of the matrix: where it lies, its keys, its scaled similarities, and room to work in."""

    at_anchors: slice
    at_keys: slice
    keys: Tensor
    similarities: Tensor
    scratch: Tensor

    def diagonal(self, matrix: Tensor) -> Tensor:
        """The part of the whole matrix's diagonal that lies in this tile; often none of it."""
        offset = self.at_anchors.start - self.at_keys.start
        return (
            matrix.diagonal(offset)
            if -matrix.shape[0] < offset < matrix.shape[1]
            else matrix[:0, 0]
        )


def _tiles(
    problem: _Problem, scaled_anchors: Tensor, keys: _Operand, kept: Tensor
) -> Iterator[_Tile]:
    """Walk the matrix, key block by key block.

    One scratch serves all tiles: fresh memory for each would be paid for in page faults. Where the whole matrix is
    kept, a tile's similarities are a part of ``kept``; else they are the scratch itself.
    """
    side = _side(scaled_anchors)
    shared = scaled_anchors.new_empty(min(side, len(scaled_anchors)) * min(side, len(problem.keys)))
    done = 0
    for at_keys in _blocks(problem.keys):
        block = keys[at_keys]
        for at_anchors in _blocks(scaled_anchors):
            shape = (at_anchors.stop - at_anchors.start, len(block))
            size = shape[0] * shape[1]
            scratch = shared[:size].view(shape)
            tile = kept[done : done + size].view(shape) if len(kept) else scratch
            done += size
            yield _Tile(at_anchors, at_keys, block, tile, scratch)


class _Partners:
    """The pulled pairs of a tile where each anchor, or each key, has one partner on the other side."""

    def __init__(self, tile: _Tile, problem: _Problem) -> None:
        assert problem.partners is not None
        rows, columns = tile.similarities.shape
        of_keys = problem.pull == "anchor_of_key"
        self.asking = tile.at_keys if of_keys else tile.at_anchors
        first, number = (tile.at_anchors.start, rows) if of_keys else (tile.at_keys.start, columns)
        partner = problem.partners[self.asking] - first
        self.inside = (partner >= 0) & (partner < number)
        partner = partner.clamp(0, number - 1)
        position = torch.arange(len(partner), device=partner.device)
        self.where = partner * columns + position if of_keys else position * columns + partner

    def read(self, similarities: Tensor, top: Tensor, pulled: Tensor) -> None:
        found = similarities.view(-1)[self.where] - top
        pulled[self.asking] = torch.where(self.inside, found, pulled[self.asking])

    def leave_out(self, similarities: Tensor) -> None:
        flat = similarities.view(-1)
        flat[self.where] = flat[self.where].masked_fill(self.inside, -torch.inf)

    def add(self, slopes: Tensor, gradient: Tensor) -> None:
        slopes.view(-1).index_add_(
            0, self.where, torch.where(self.inside, gradient[self.asking], 0)
        )


class _SameLabel:
    """The pulled pairs of a tile where each anchor pulls every key of its label (but itself, if that is left out)."""

    def __init__(self, tile: _Tile, problem: _Problem) -> None:
        assert problem.anchor_labels is not None
        assert problem.key_labels is not None
        self.asking = tile.at_anchors
        # 1 − min(|a − b|, 1) in floating point takes a fifth of the time of comparing integers and converting.
        dtype = tile.similarities.dtype
        same = problem.anchor_labels[tile.at_anchors, None].to(dtype) - problem.key_labels[
            tile.at_keys
        ].to(dtype)
        self.same = same.abs_().clamp_(max=1).neg_().add_(1)
        if problem.leave_out == "same_index":
            tile.diagonal(self.same).fill_(0)

    def read(self, similarities: Tensor, top: Tensor, pulled: Tensor) -> None:
        pulled[self.asking] += torch.linalg.vecdot(similarities, self.same) - self.same.sum(1) * top

    def leave_out(self, similarities: Tensor) -> None:
        similarities.masked_fill_(self.same > 0, -torch.inf)

    def add(self, slopes: Tensor, gradient: Tensor) -> None:
        slopes.addcmul_(self.same, gradient[self.asking, None])


def _pulled(tile: _Tile, problem: _Problem) -> _Partners | _SameLabel | None:
    if problem.pull == "nothing":
        return None
    return _SameLabel(tile, problem) if problem.pull == "same_label" else _Partners(tile, problem)


def _from_chords(problem: _Problem, anchors: _Operand, keys: _Operand) -> Tensor:
    """Scaled similarities of partners on the sphere, a block at a time, by cos − 1 = −‖u − v‖²/2."""
    assert problem.partners is not None
    asking, asked = (keys, anchors) if problem.pull == "anchor_of_key" else (anchors, keys)
    result = torch.empty(len(problem.partners), dtype=asking.dtype, device=problem.partners.device)
    for rows in _blocks(problem.partners):
        result[rows] = unit_squared_chords(asking[rows], asked[problem.partners[rows]])
    return result.mul_(-problem.scale / 2)


def _pulled_size(problem: _Problem) -> int:
    return {"nothing": 0, "anchor_of_key": len(problem.keys)}.get(
        problem.pull, len(problem.anchors)
    )


def _leave_out(tile: _Tile, problem: _Problem, pulled: _Partners | _SameLabel | None) -> None:
    """Add the log-weights of the keys and put the left-out pairs at −∞."""
    if problem.key_log_weights is not None:
        tile.similarities.add_(problem.key_log_weights[tile.at_keys])
    if problem.leave_out == "pulled" and pulled:
        pulled.leave_out(tile.similarities)
    if problem.leave_out == "same_index":
        tile.diagonal(tile.similarities).fill_(-torch.inf)


def _kept_size(problem: _Problem) -> int:
    size = len(problem.anchors) * len(problem.keys)
    return size if problem.keep and size <= _KEPT else 0


def _operands(problem: _Problem) -> tuple[_Operand, Tensor, _Operand]:
    dtype = compute_dtype(problem.anchors, problem.keys, problem.scale)
    anchors = _Operand(problem.anchors, dtype, problem.on_sphere)
    return anchors, anchors[:].mul(problem.scale), _Operand(problem.keys, dtype, problem.on_sphere)


def _top(problem: _Problem, like: Tensor) -> Tensor:
    """The largest similarity there can be, from which similarities on the sphere are counted."""
    return problem.scale.to(like.dtype) if problem.on_sphere else like.new_zeros(())


def _finite(values: Tensor) -> Tensor:
    """A shift for exponentials: 0 where every pair was left out, so that −∞ − (−∞) never happens."""
    return values.masked_fill(values == -torch.inf, 0)


@torch.library.custom_op(
    "protosphere::masked_logsumexp",
    mutates_args=(),
    schema=f"({_SCHEMA}) -> (Tensor, Tensor, Tensor)",
)
def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    problem = _Problem(*arguments)
    with torch.autocast(problem.anchors.device.type, enabled=False):
        anchors, scaled_anchors, keys = _operands(problem)
        top = _top(problem, scaled_anchors)
        largest = scaled_anchors.new_full((len(scaled_anchors),), -torch.inf)
        total = torch.zeros_like(largest)
        kept = scaled_anchors.new_empty(_kept_size(problem))
        if problem.pull_from == "chords":
            similarity_pulled = _from_chords(problem, anchors, keys)
        else:
            similarity_pulled = scaled_anchors.new_zeros(_pulled_size(problem))
        for tile in _tiles(problem, scaled_anchors, keys, kept):
            torch.mm(scaled_anchors[tile.at_anchors], tile.keys.mT, out=tile.similarities)
            pulled = _pulled(tile, problem)
            if pulled and problem.pull_from == "matrix":
                pulled.read(tile.similarities, top, similarity_pulled)
            _leave_out(tile, problem, pulled)
            before = largest[tile.at_anchors]
            now = torch.maximum(before, tile.similarities.amax(1))
            shift = _finite(now)
            total[tile.at_anchors] *= (before - shift).exp()
            total[tile.at_anchors] += (
                torch.sub(tile.similarities, shift.unsqueeze(1), out=tile.scratch).exp_().sum(1)
            )
            largest[tile.at_anchors] = now
        return total.log() + _finite(largest) - top, similarity_pulled, kept


@torch.library.custom_op(
    "protosphere::masked_logsumexp_backward",
    mutates_args=(),
    schema=f"(Tensor grad_lse, Tensor grad_pulled, Tensor lse, Tensor kept, bool[] wanted, {_SCHEMA}) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
)
def _backward(
    grad_lse: Tensor,
    grad_pulled: Tensor,
    lse: Tensor,
    kept: Tensor,
    wanted: list[bool],
    *arguments: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    problem = _Problem(*arguments)
    for_anchors, for_keys, for_scale, for_log_weights = wanted
    for_anchors = for_anchors or for_scale
    with torch.autocast(problem.anchors.device.type, enabled=False):
        anchors, scaled_anchors, keys = _operands(problem)
        top = _top(problem, scaled_anchors)
        shift, weight = (_finite(lse) + top).unsqueeze(1), grad_lse.unsqueeze(1)
        # What nobody asked for stays empty: an operator returns a tensor in every place.
        d_anchors = scaled_anchors.new_zeros(problem.anchors.shape if for_anchors else 0)
        d_keys = scaled_anchors.new_zeros(problem.keys.shape if for_keys else 0)
        d_scale = scaled_anchors.new_zeros(() if for_scale else 0)
        d_log_weights = scaled_anchors.new_zeros(len(problem.keys) if for_log_weights else 0)
        for tile in _tiles(problem, scaled_anchors, keys, kept):
            pulled = _pulled(tile, problem)
            if not len(kept):
                torch.mm(scaled_anchors[tile.at_anchors], tile.keys.mT, out=tile.similarities)
                _leave_out(tile, problem, pulled)
            slopes = torch.sub(tile.similarities, shift[tile.at_anchors], out=tile.scratch).exp_()
            slopes.mul_(weight[tile.at_anchors])
            if for_log_weights:
                d_log_weights[tile.at_keys] += slopes.sum(0)
            if pulled:
                # Attraction meets repulsion here, as numbers: near collapse they almost cancel, and sums of vectors
                # would lose what is left.
                pulled.add(slopes, grad_pulled)
            if for_scale and problem.on_sphere:
                d_scale -= slopes.sum()
            if for_anchors:
                d_anchors[tile.at_anchors].addmm_(slopes, tile.keys)
            if for_keys:
                d_keys[tile.at_keys].addmm_(slopes.mT, scaled_anchors[tile.at_anchors])
        if for_scale:
            # Σ slope · cos from the vectors; on the sphere, where a similarity is scale · (cos − 1), less Σ slope.
            d_scale += torch.dot(d_anchors.flatten(), scaled_anchors.flatten()).div_(problem.scale)
        if for_anchors:
            d_anchors = anchors.pull_back(d_anchors.mul_(problem.scale))
        if for_keys:
            d_keys = keys.pull_back(d_keys)
        return d_anchors, d_keys, d_scale, d_log_weights


@_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    problem = _Problem(*arguments)
    like = problem.anchors.new_empty(
        0, dtype=compute_dtype(problem.anchors, problem.keys, problem.scale)
    )
    return (
        like.new_empty(len(problem.anchors)),
        like.new_empty(_pulled_size(problem)),
        like.new_empty(_kept_size(problem)),
    )


@_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _, _, lse, _, wanted = arguments[:5]
    problem = _Problem(*arguments[5:])
    for_anchors, for_keys, for_scale, for_log_weights = wanted
    return (
        problem.anchors.new_empty(problem.anchors.shape)
        if for_anchors or for_scale
        else lse.new_empty(0),
        problem.keys.new_empty(problem.keys.shape) if for_keys else lse.new_empty(0),
        lse.new_empty(() if for_scale else 0),
        lse.new_empty(len(problem.keys) if for_log_weights else 0),
    )


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    problem = _Problem(*inputs)
    lse, pulled, kept = output
    ctx.mark_non_differentiable(kept)
    ctx.set_materialize_grads(
        False
    )  # Or the kept matrix would get a gradient of zeros of its own size.
    ctx.save_for_backward(*problem[:_TENSORS], lse, kept)
    ctx.pulled_size = len(pulled)
    ctx.constants = problem[_TENSORS:]


def _differentiate(
    ctx: Any, grad_lse: Tensor | None, grad_pulled: Tensor | None, _: None
) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        raise RuntimeError(
            'the chunked form has no gradient of its gradient; ask for form="eager" to have one'
        )
    *tensors, lse, kept = ctx.saved_tensors
    grad_lse = torch.zeros_like(lse) if grad_lse is None else grad_lse
    grad_pulled = lse.new_zeros(ctx.pulled_size) if grad_pulled is None else grad_pulled
    wanted = list(ctx.needs_input_grad[:4])
    gradients = _backward(grad_lse, grad_pulled, lse, kept, wanted, *tensors, *ctx.constants)
    given = (gradient if want else None for gradient, want in zip(gradients, wanted, strict=True))
    return (*given, *(None,) * 8)


_forward.register_autograd(_differentiate, setup_context=_remember)


def logsumexp_and_pulled(
    anchors: Tensor,
    keys: Tensor,
    scale: Tensor,
    key_log_weights: Tensor | None,
    partners: Tensor | None,
    anchor_labels: Tensor | None,
    key_labels: Tensor | None,
    pull: str,
    pull_from: str,
    leave_out: str,
    on_sphere: bool,
) -> tuple[Tensor, Tensor]:
    """The primitive by tiles; memory O((anchors + keys) · dim) and a tile in both directions."""
    differentiable = (anchors, keys, scale, key_log_weights)
    keep = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in differentiable
    )
    lse, pulled, _ = _forward(
        anchors,
        keys,
        scale,
        key_log_weights,
        partners,
        anchor_labels,
        key_labels,
        pull,
        pull_from,
        leave_out,
        on_sphere,
        keep,
    )
    return lse, pulled
