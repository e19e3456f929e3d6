"""Rows that travel between processes without a gradient: by destination, and back into order."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from jaxtyping import Integer, Shaped
from torch import Tensor

from protosphere.parallel.launch import World
from protosphere.parallel.world import ProcessGroup, world_size


@torch.no_grad()
def exchange_rows(
    rows: Shaped[Tensor, "rows *width"],
    destinations: Integer[Tensor, "rows"],
    group: ProcessGroup | None,
) -> Shaped[Tensor, "received *width"]:
    """Send each row to a rank, and return the rows for this one; every rank must call it.

    Args:
        rows: Rows of this rank; there may be none.
        destinations: Rank that each row is for, on the same device.
        group: Process group, or None to return the rows themselves.

    Returns:
        The rows that the ranks have for this one, those of rank 0 first, each in its order.

    >>> exchange_rows(torch.tensor([1.0, 2.0]), torch.tensor([0, 0]), None)
    tensor([1., 2.])
    """
    if group is None:
        return rows
    sent = torch.bincount(destinations, minlength=world_size(group))
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    result = rows.new_empty((int(received.sum()), *rows.shape[1:]))
    dist.all_to_all_single(
        result,
        rows[destinations.argsort(stable=True)].contiguous(),
        received.tolist(),
        sent.tolist(),
        group=group,
    )
    return result


def gather_in_order(
    world: World,
    positions: Integer[Tensor, "rows"],
    columns: Sequence[Shaped[Tensor, "rows *width"]],
) -> list[Shaped[Tensor, "all_rows *width"]]:
    """Return the rows of all processes in the order of their positions; every process must call it.

    Args:
        world: The processes.
        positions: Position of each row of this process among those of all; no two are equal.
        columns: Tensors with a row for each position.

    Returns:
        The columns with the rows of all processes, on the CPU; of one process, as they are.

    >>> gather_in_order(World(), torch.arange(2), [torch.tensor([1.0, 2.0])])
    [tensor([1., 2.])]
    """
    if world.size == 1:
        return list(columns)
    parts = world.gather((positions.cpu(), [column.cpu() for column in columns]))
    order = torch.cat([own for own, _ in parts]).argsort()
    return [torch.cat(column)[order] for column in zip(*(own for _, own in parts), strict=True)]
