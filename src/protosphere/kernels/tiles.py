"""Tiles of the matrix of logits: how the chunked form reads its operands and finds positives."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from protosphere.geometry.sphere import inverse_norms
from protosphere.kernels.problem import Problem


def row_blocks(tensor: Tensor, side: int) -> Iterator[slice]:
    """Yield the rows of a tensor in blocks of at most ``side``."""
    length = len(tensor)
    return (slice(start, min(start + side, length)) for start in range(0, length, side))


class Operand:
    """Vectors read in blocks of rows, normalized if asked for, and the backward of that."""

    def __init__(self, vectors: Tensor, dtype: torch.dtype, *, on_sphere: bool, side: int) -> None:
        self.vectors, self.dtype, self.side = vectors, dtype, side
        self.inverse: Tensor | None = None
        if on_sphere:
            self.inverse = torch.empty(len(vectors), dtype=dtype, device=vectors.device)
            for rows in row_blocks(vectors, side):
                self.inverse[rows] = inverse_norms(vectors[rows].to(dtype))

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        block = self.vectors[rows].to(self.dtype)
        return block if self.inverse is None else block * self.inverse[rows].unsqueeze(-1)

    def backward(self, gradient: Tensor) -> Tensor:
        """Turn the gradient of the operand into that of the vectors, in place.

        The projection to the tangent space comes last.
        """
        if self.inverse is not None:
            for rows in row_blocks(gradient, self.side):
                unit = self[rows]
                radial = torch.linalg.vecdot(gradient[rows], unit).unsqueeze(-1)
                gradient[rows].addcmul_(radial, unit, value=-1).mul_(
                    self.inverse[rows].unsqueeze(-1)
                )
        return gradient.to(self.vectors.dtype)


class Tile(NamedTuple):
    """One tile of the matrix of logits.

    Attributes:
        anchors: Rows of the matrix that the tile covers.
        keys: Columns of the matrix that the tile covers.
        key_vectors: The vectors of these keys.
        logits: Memory of the logits.
        scratch: Memory for intermediate results; may be the memory of the logits.
    """

    anchors: slice
    keys: slice
    key_vectors: Tensor
    logits: Tensor
    scratch: Tensor

    def diagonal(self, matrix: Tensor) -> Tensor:
        """Return the entries of the whole matrix's diagonal in a tile's matrix, often none."""
        offset = self.anchors.start - self.keys.start
        inside = -matrix.shape[0] < offset < matrix.shape[1]
        return matrix.diagonal(offset) if inside else matrix[:0, 0]


def iterate_tiles(
    problem: Problem, scaled_anchors: Tensor, keys: Operand, saved: Tensor, side: int
) -> Iterator[Tile]:
    """Yield the tiles of the matrix, one block of keys after the other.

    All tiles share one scratch memory: allocating it anew for each would cost page faults.

    Args:
        problem: What to compute.
        scaled_anchors: The anchors times the inverse temperature.
        keys: The keys.
        saved: Memory for the logits of all tiles; if empty, logits are in the scratch memory.
        side: Largest number of rows and columns of a tile.
    """
    size = min(side, len(scaled_anchors)) * min(side, len(problem.keys))
    shared = scaled_anchors.new_empty(size)
    start = 0
    for key_rows in row_blocks(problem.keys, side):
        key_vectors = keys[key_rows]
        for anchor_rows in row_blocks(scaled_anchors, side):
            shape = (anchor_rows.stop - anchor_rows.start, len(key_vectors))
            size = shape[0] * shape[1]
            scratch = shared[:size].view(shape)
            logits = saved[start : start + size].view(shape) if len(saved) else scratch
            start += size
            yield Tile(anchor_rows, key_rows, key_vectors, logits, scratch)


class IndexedPairs:
    """Pairs of each key and one anchor, or of each anchor and one key, in a tile."""

    def __init__(self, tile: Tile, index: Tensor, *, of_keys: bool) -> None:
        rows, columns = tile.logits.shape
        self.queries = tile.keys if of_keys else tile.anchors
        first, length = (tile.anchors.start, rows) if of_keys else (tile.keys.start, columns)
        target = index[self.queries] - first
        self.inside = (target >= 0) & (target < length)
        target = target.clamp(0, length - 1)
        query = torch.arange(len(target), device=target.device)
        self.flat = target * columns + query if of_keys else query * columns + target

    def read(self, logits: Tensor, top: Tensor, result: Tensor) -> None:
        """Write the logits of the pairs, measured from ``top``, to the result."""
        values = logits.view(-1)[self.flat] - top
        result[self.queries] = torch.where(self.inside, values, result[self.queries])

    def exclude(self, logits: Tensor) -> None:
        """Set the logits of the pairs to −∞."""
        flat = logits.view(-1)
        flat[self.flat] = flat[self.flat].masked_fill(self.inside, -torch.inf)

    def add(self, matrix: Tensor, values: Tensor) -> None:
        """Add the value of each pair to the matrix of the tile."""
        matrix.view(-1).index_add_(0, self.flat, torch.where(self.inside, values[self.queries], 0))


class SameLabelPositives:
    """The positives in a tile where all pairs of one label are positives."""

    def __init__(self, tile: Tile, problem: Problem) -> None:
        assert problem.anchor_labels is not None
        assert problem.key_labels is not None
        self.queries = tile.anchors
        # 1 − min(|a − b|, 1) in floating point takes a fifth of the time that comparing integers
        # and converting the result take.
        dtype = tile.logits.dtype
        mask = problem.anchor_labels[tile.anchors, None].to(dtype) - problem.key_labels[
            tile.keys
        ].to(dtype)
        self.mask = mask.abs_().clamp_(max=1).neg_().add_(1)
        if problem.exclude == "same_index":
            tile.diagonal(self.mask).fill_(0)

    def read(self, logits: Tensor, top: Tensor, result: Tensor) -> None:
        """Add the logits of the positives of each anchor, measured from ``top``, to the result."""
        result[self.queries] += torch.linalg.vecdot(logits, self.mask) - self.mask.sum(1) * top

    def exclude(self, logits: Tensor) -> None:
        """Set the logits of the positives to −∞."""
        logits.masked_fill_(self.mask > 0, -torch.inf)


def find_positives(tile: Tile, problem: Problem) -> IndexedPairs | SameLabelPositives | None:
    """Return the positives in a tile; None if the problem has none."""
    if problem.positives == "none":
        return None
    if problem.positives == "same_label":
        return SameLabelPositives(tile, problem)
    assert problem.positive_index is not None
    return IndexedPairs(tile, problem.positive_index, of_keys=problem.positives == "anchor_of_key")


def add_log_weights(tile: Tile, problem: Problem) -> None:
    """Add the log-weights of keys and of single pairs to the logits of a tile."""
    weights = problem.key_log_weights
    if weights is not None:
        tile.logits.add_(
            weights[tile.keys] if weights.ndim == 1 else weights[tile.anchors, tile.keys]
        )
    if problem.pair_index is not None and problem.pair_log_weights is not None:
        pairs = zip(problem.pair_index.mT, problem.pair_log_weights.mT, strict=True)
        for index, log_weights in pairs:
            IndexedPairs(tile, index, of_keys=True).add(
                tile.logits, log_weights.to(tile.logits.dtype)
            )
