"""The processes of a group: how many there are, who belongs to it, and what sizes they have."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    ProcessGroup: TypeAlias = dist.ProcessGroup
    """A process group of ``torch.distributed``."""
else:
    # Some builds of torch have no distributed package.
    ProcessGroup = getattr(dist, "ProcessGroup", object)

_LOG = logging.getLogger("protosphere")
_LOGGED_NAMES: set[str] = set()


def world_size(group: ProcessGroup | None) -> int:
    """Return the number of ranks of a process group, 1 without a group.

    Args:
        group: Process group, or None.

    >>> world_size(None)
    1
    """
    return 1 if group is None else dist.get_world_size(group)


def check_group(group: object) -> None:
    """Raise ValueError unless the argument is None or a process group of this process.

    Args:
        group: What was given as the group.
    """
    # A process outside a new group gets a placeholder, not a process group.
    if group is not None and not isinstance(group, ProcessGroup):
        raise ValueError(
            "group must be None or a process group of torch.distributed that this process belongs "
            f"to, got {group!r}"
        )


def log_missing_group(name: str) -> None:
    """Log that a loss uses the samples of its own process only, if there are other processes.

    Once per process and name.

    Args:
        name: Name of the loss.
    """
    if name in _LOGGED_NAMES or not (dist.is_available() and dist.is_initialized()):
        return
    if dist.get_world_size() > 1:
        _LOGGED_NAMES.add(name)
        _LOG.warning(
            "%s has no process group and computes the loss of the samples of its own process; "
            "pass group=torch.distributed.group.WORLD for the loss of the whole batch",
            name,
        )


def row_counts(num_rows: int, group: ProcessGroup, *, device: torch.device) -> list[int]:
    """Return the number of rows of every rank; every rank must call it.

    The result is read on the host, which waits for the device. Compiled code cannot do that: there
    all ranks must have the same number of rows.

    Args:
        num_rows: Number of rows of this rank.
        group: Process group.
        device: Device of the tensors that the group exchanges.
    """
    if torch.compiler.is_compiling():
        return [num_rows] * world_size(group)
    return [count for (count,) in gather_numbers([num_rows], group, device=device)]


def gather_numbers(
    numbers: Sequence[int | Tensor], group: ProcessGroup, *, device: torch.device
) -> list[list[int]]:
    """Return some integers of every rank, in the order of ranks; every rank must call it.

    The result is read on the host, which waits for the device.

    Args:
        numbers: Integers of this rank, as many on every rank.
        group: Process group.
        device: Device of the tensors that the group exchanges.

    Returns:
        The integers of each rank.
    """
    check_group(group)
    own = torch.stack([torch.as_tensor(number, device=device).long() for number in numbers])
    gathered = own.new_empty(world_size(group) * len(own))
    dist.all_gather_into_tensor(gathered, own, group=group)
    rows: list[list[int]] = gathered.view(-1, len(own)).tolist()
    return rows
