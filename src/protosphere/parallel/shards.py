"""Matrices whose rows are sharded over the processes of a group, and their gradients."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from protosphere.parallel.world import ProcessGroup, check_group, world_size


@dataclass(frozen=True)
class Shards:
    """How the rows of a matrix are divided over the ranks of a group, in the order of ranks.

    Args:
        sizes: Number of rows of each rank; a rank may have none.
        rank: This rank.
        group: Process group; None for one process, which has all rows.

    >>> Shards((2, 1, 1), rank=1).own
    slice(2, 3, None)
    """

    sizes: tuple[int, ...]
    rank: int = 0
    group: ProcessGroup | None = None

    @classmethod
    def divide(cls, num_rows: int, group: ProcessGroup | None) -> "Shards":
        """Divide rows into parts that differ by at most one row.

        Args:
            num_rows: Number of rows of the whole matrix.
            group: Process group; None for one process.

        >>> Shards.divide(5, None)
        Shards(sizes=(5,), rank=0, group=None)
        """
        check_group(group)
        size = world_size(group)
        least, more = divmod(num_rows, size)
        sizes = tuple(least + (rank < more) for rank in range(size))
        return cls(sizes, 0 if group is None else dist.get_rank(group), group)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Shards":
        # A process group cannot be copied: copies of a module use the same one.
        return self

    @property
    def num_rows(self) -> int:
        """Number of rows of the whole matrix."""
        return sum(self.sizes)

    @property
    def own(self) -> slice:
        """The rows of this rank in the whole matrix."""
        start = sum(self.sizes[: self.rank])
        return slice(start, start + self.sizes[self.rank])

    def blocks(
        self, rows: Shaped[Tensor, "rows *width"]
    ) -> Iterator[Shaped[Tensor, "some_rows *width"]]:
        """Yield the rows of each rank, in the order of ranks, without a gradient.

        Every rank must iterate to the end. Rows of one other rank are held at a time.

        Args:
            rows: Rows of this rank.

        Raises:
            ValueError: They are not as many as this rank has.
        """
        if len(rows) != self.sizes[self.rank]:
            raise ValueError(
                f"rank {self.rank} must have {self.sizes[self.rank]} rows, got {len(rows)}"
            )
        own = rows.detach().contiguous()
        for source, size in enumerate(self.sizes):
            block = own if source == self.rank else own.new_empty((size, *own.shape[1:]))
            if self.group is not None and size:
                root = dist.get_global_rank(self.group, source)
                dist.broadcast(block, src=root, group=self.group)
            yield block

    def gather(self, rows: Shaped[Tensor, "rows *width"]) -> Shaped[Tensor, "all_rows *width"]:
        """Return the whole matrix on every rank, without a gradient; every rank must call it.

        Args:
            rows: Rows of this rank.
        """
        return torch.cat(list(self.blocks(rows)))

    def gather_to_first(
        self, rows: Shaped[Tensor, "rows *width"]
    ) -> Shaped[Tensor, "all_rows *width"] | None:
        """Return the whole matrix in the memory of the CPU of the first rank, None on the others.

        Every rank must call it.

        Args:
            rows: Rows of this rank.
        """
        if self.rank:
            for _ in self.blocks(rows):
                pass
            return None
        whole = torch.empty((self.num_rows, *rows.shape[1:]), dtype=rows.dtype)
        for part, block in zip(whole.split(self.sizes), self.blocks(rows), strict=True):
            part.copy_(block)
        return whole


def find_shards(module: nn.Module) -> dict[str, Shards]:
    """Return the parameters of a module that are sharded over several processes, by name.

    Those are the parameters that some module in it names in its ``parameter_shards``.

    Args:
        module: The module.

    >>> find_shards(nn.Linear(2, 3))
    {}
    """
    found = {}
    for prefix, part in module.named_modules():
        own: Mapping[str, Shards] = getattr(part, "parameter_shards", {})
        for name, shards in own.items():
            if len(shards.sizes) > 1:
                found[f"{prefix}.{name}" if prefix else name] = shards
    return found


def gather_shards(tensors: Mapping[str, Tensor], shards: Mapping[str, Shards]) -> dict[str, Tensor]:
    """Put sharded tensors together on the first rank; every rank must call it.

    Args:
        tensors: Tensors by name, such as a state dict of a module.
        shards: How some of them are divided; see :func:`find_shards`.

    Returns:
        The tensors with whole matrices, in the memory of the CPU, in place of shards. Those
        are absent on the other ranks.
    """
    result = dict(tensors)
    for name, layout in shards.items():
        if name in tensors:
            whole = layout.gather_to_first(tensors[name])
            if whole is None:
                del result[name]
            else:
                result[name] = whole
    return result


def select_shards(tensors: Mapping[str, Tensor], shards: Mapping[str, Shards]) -> dict[str, Tensor]:
    """Replace whole matrices by the rows of this rank, the inverse of :func:`gather_shards`.

    Args:
        tensors: Tensors by name.
        shards: How some of them are divided.

    Raises:
        ValueError: A matrix does not have the number of rows of the whole one.
    """
    result = dict(tensors)
    for name, layout in shards.items():
        if name in tensors:
            if len(tensors[name]) != layout.num_rows:
                raise ValueError(
                    f"{name} must have {layout.num_rows} rows, got {len(tensors[name])}"
                )
            result[name] = tensors[name][layout.own]
    return result


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


def with_own_gradient(
    rows: Float[Tensor, "rows dim"], group: ProcessGroup | None
) -> Float[Tensor, "rows dim"]:
    """Return rows that only this rank has, with 1/world_size of the gradient.

    The collectives give every rank world_size times its part of the gradient of a scalar that all
    ranks compute, because gradients are averaged afterwards. Gradients of sharded parameters are
    not: with this factor they are those of one process.

    Args:
        rows: Rows of this rank.
        group: Process group; None returns the rows themselves.
    """
    if group is None:
        return rows
    result: Tensor = _ScaleGradient.apply(rows, 1 / world_size(group))
    return result
