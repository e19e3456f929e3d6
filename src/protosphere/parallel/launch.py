"""The processes that torchrun has started: who this one is, and what all of them agree on."""

import itertools
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist

from protosphere.parallel.world import ProcessGroup

T = TypeVar("T")
# Processes wait for each other, such as while the first one prepares data or saves a checkpoint;
# torch's 10 to 30 minutes may be too few.
_TIMEOUT = timedelta(hours=12)
# How often this process has joined the others; alike on all of them.
_OPENINGS = itertools.count()


class PeerError(RuntimeError):
    """Another process of the run has failed, and says why."""


@dataclass(frozen=True)
class World:
    """The processes that train one model together; without arguments, this process alone.

    Args:
        rank: Index of this process; the process of rank 0 writes and prints.
        size: Number of processes.
        local_rank: Index of this process on its machine.
        local_size: Number of processes on its machine.
        group: Process group of the tensors on the device; None for one process, which then
            exchanges nothing.
        control: Process group of the CPU for decisions; None for one process.

    >>> World().is_first, World().any(False), World().from_first(lambda: 3)
    (True, False, 3)
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    group: ProcessGroup | None = None
    control: ProcessGroup | None = None

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    @property
    def shard(self) -> tuple[int, int]:
        """Which part of each batch is this process's, and of how many."""
        return self.rank, self.size

    def any(self, flag: bool) -> bool:
        """Return whether a flag is set on any process; every process must call it.

        Args:
            flag: The flag of this process.
        """
        if self.control is None:
            return flag
        flags = torch.tensor([int(flag)])
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self.control)
        return bool(flags)

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes in the order of ranks; every process must call it.

        Args:
            value: The value of this process, which can be pickled.
        """
        if self.control is None:
            return [value]
        values: list[T] = [value] * self.size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def from_first(self, compute: Callable[[], T]) -> T:
        """Return on every process what the first one computes while the others wait.

        Args:
            compute: Called on the first process; its result can be pickled.

        Raises:
            PeerError: It has failed on the first process, where its own error is raised.
        """
        if self.control is None:
            return compute()
        # Pickled before the others are told, so that a result that cannot be is an error as well.
        message: list[bytes | None] = [None]
        if not self.is_first:
            dist.broadcast_object_list(message, group=self.control, group_src=0)
            if message[0] is None:
                raise PeerError("the first process of the run has failed")
            result: T = pickle.loads(message[0])
            return result
        try:
            value = compute()
            message = [pickle.dumps(value)]
        finally:
            dist.broadcast_object_list(message, group=self.control, group_src=0)
        return value

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do something on every process that may fail on some; then all of them fail.

        Raises:
            PeerError: It has failed on another process. Of several that fail, only the first
                one raises its own error.
        """
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        failed = [rank for rank, bad in enumerate(self.gather(failure is not None)) if bad]
        if failure is not None and failed[0] == self.rank:
            raise failure
        if failed:
            raise PeerError(f"process {failed[0]} of the run has failed")


def launched_by_torchrun() -> bool:
    """Return whether torchrun, or something that sets its variables, has started this process."""
    return {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= set(os.environ)


def _check_alone() -> None:
    """Raise ValueError if there are other processes: each of them would train on its own."""
    size = os.environ.get("WORLD_SIZE", "1")
    missing = [name for name in ("RANK", "LOCAL_RANK") if name not in os.environ]
    if size != "1":
        raise ValueError(
            f"the environment variable WORLD_SIZE ({size}) must come with {' and '.join(missing)}; "
            "torchrun sets all of them"
        )


@contextmanager
def open_world(device: str) -> Iterator[tuple[World, str]]:
    """Join the processes that torchrun has started, and leave them in the end.

    The group of the device is NCCL's on GPUs and gloo's otherwise. One process exchanges nothing,
    with torchrun or without it, and needs no group.

    Args:
        device: Where to train. ``"cuda"`` becomes the GPU of this process's local rank.

    Yields:
        The processes, and the device of this one.

    Raises:
        ValueError: There are fewer GPUs on this machine than processes, or the environment has the
            number of processes without their ranks.
    """
    if not launched_by_torchrun():
        _check_alone()
        yield World(), device
        return
    from torch.distributed.rendezvous import rendezvous  # noqa: PLC0415  Not in every build.

    rank, size, local_rank = (int(os.environ[n]) for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    on_gpu = torch.device(device).type == "cuda"
    if device == "cuda":
        if local_rank >= torch.cuda.device_count():
            raise ValueError(
                f"there must be a GPU for each process of this machine, got local rank "
                f"{local_rank} and {torch.cuda.device_count()} GPUs"
            )
        device = f"cuda:{local_rank}"
    if on_gpu:
        torch.cuda.set_device(device)
    store, _, _ = next(rendezvous("env://", rank, size, timeout=_TIMEOUT))
    # The store of torchrun still has the addresses of groups that this process has left.
    store = dist.PrefixStore(f"opening {next(_OPENINGS)}", store)  # type: ignore[attr-defined]
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        # A launcher that restarts its processes keeps the store, with addresses of dead ones. On
        # several machines the launchers may count restarts differently.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"attempt {attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group(
        "nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=size, timeout=_TIMEOUT
    )
    try:
        group = cast("ProcessGroup", dist.group.WORLD)
        control = group
        if on_gpu:
            control = cast("ProcessGroup", dist.new_group(backend="gloo", timeout=_TIMEOUT))
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        world = World(rank, size, local_rank, local_size, group, control)
        yield World() if size == 1 else world, device
        # A process that leaves early closes connections that others may still read from.
        dist.barrier(group=control)
    finally:
        dist.destroy_process_group()
