"""Scatter matrices of many classes, stored as row tiles of their lower triangles.

Scatter matrices are symmetric. Tiles of 128 rows up to the diagonal hold (1 + 128/d)/2 of the
entries and can still be updated by dense matrix products.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Integer
from torch import Tensor

_TILE_ROWS = 128
# Upper bound, in bytes, on the padded copy of a batch that is grouped by class.
_MAX_PADDED_BYTES = 1 << 29


def empty_tiles(
    num_classes: int, dim: int, *, device: torch.device | str | None = None
) -> list[Tensor]:
    """Return zero tiles for one d × d scatter matrix per class, in float64."""
    return [
        torch.zeros(num_classes, rows, columns, dtype=torch.float64, device=device)
        for rows, columns in _tile_shapes(dim)
    ]


def tile_bytes(num_classes: int, dim: int) -> int:
    """Return the memory, in bytes, that the tiles of all classes take.

    >>> round(tile_bytes(1000, 2048) / 2**30, 1)
    16.6
    """
    return 8 * num_classes * sum(rows * columns for rows, columns in _tile_shapes(dim))


def assemble(tiles: Sequence[Float[Tensor, "_ _"]], dim: int) -> Float[Tensor, "dim dim"]:
    """Return the full symmetric matrix of one set of tiles."""
    matrix = tiles[0].new_zeros(dim, dim)
    for index, tile in enumerate(tiles):
        top = index * _TILE_ROWS
        matrix[top : top + tile.shape[0], : tile.shape[1]] = tile
        matrix[: tile.shape[1], top : top + tile.shape[0]] = tile.T
    return matrix


def add_scatter(
    tiles: Sequence[Float[Tensor, "classes _ _"]],
    labels: Integer[Tensor, "samples"],
    deviations: Float[Tensor, "samples dim"],
    mean_shifts: Float[Tensor, "classes dim"],
) -> None:
    """Add Σ d dᵀ over the deviations of each class, plus s sᵀ of its mean shift, in place.

    Samples are grouped by class and padded to the largest class of a group, so that each group
    is one batched matrix product.

    Args:
        tiles: Tiles to update.
        labels: Class of each sample; samples with a label past the last class are ignored.
        deviations: Samples minus their class means.
        mean_shifts: One additional row per class.
    """
    num_classes, dim = mean_shifts.shape
    device = mean_shifts.device
    order = labels.argsort(stable=True)
    counts = torch.bincount(labels, minlength=num_classes + 1)[:num_classes].cpu()
    starts = counts.cumsum(0) - counts
    remaining = torch.nonzero((counts > 0) | (mean_shifts != 0).any(1).cpu()).squeeze(1)
    remaining = remaining[counts[remaining].argsort(descending=True, stable=True)]
    while len(remaining):
        largest = int(counts[remaining[0]])
        group_size = max(1, _MAX_PADDED_BYTES // (8 * dim * (largest + 1)))
        group, remaining = remaining[:group_size].sort().values, remaining[group_size:]
        offsets = torch.arange(largest)
        valid = offsets < counts[group][:, None]
        positions = torch.where(valid, offsets + starts[group][:, None], 0).to(device)
        padded = mean_shifts.new_zeros(len(group), largest + 1, dim)
        padded[:, -1] = mean_shifts[group.to(device)]
        if largest:
            padded[:, :-1] = torch.where(
                valid.to(device)[..., None], deviations[order[positions]], 0
            )
        _add_products(tiles, group, padded)


def _add_products(tiles: Sequence[Tensor], group: Tensor, rows: Tensor) -> None:
    """Add rowsᵀ rows of each class of the group to its tiles."""
    for index, tile in enumerate(tiles):
        top = index * _TILE_ROWS
        left = rows[:, :, top : top + tile.shape[1]].mT
        right = rows[:, :, : tile.shape[2]]
        if len(group) == tile.shape[0]:
            tile.baddbmm_(left, right)
            continue
        # The products of all classes at once could take as much memory as the tiles themselves.
        step = max(1, _MAX_PADDED_BYTES // (8 * tile[0].numel()))
        for start in range(0, len(group), step):
            chunk = slice(start, start + step)
            tile.index_add_(0, group[chunk].to(tile.device), left[chunk] @ right[chunk])


def _tile_shapes(dim: int) -> list[tuple[int, int]]:
    return [
        (min(_TILE_ROWS, dim - top), min(top + _TILE_ROWS, dim))
        for top in range(0, dim, _TILE_ROWS)
    ]
