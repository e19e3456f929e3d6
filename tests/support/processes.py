"""Four gloo processes that stay alive for a test module and run functions in groups of 1 to 4."""

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

NUM_PROCESSES = 4
# Longer than any test takes; a process whose partner has failed would wait for ever.
_TIMEOUT = timedelta(seconds=60)


class Processes:
    """The parent's side: it sends a function to the processes and collects what they return."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._connections = connections

    def run(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call ``function(group, *arguments[rank])`` on as many ranks as there are arguments.

        The function must be importable from a module of ``support``. Processes beyond the group
        wait. An error on any rank is raised here.
        """
        members = self._connections[: len(arguments)]
        for connection, values in zip(members, arguments, strict=True):
            connection.send((function, len(arguments), values))
        # A collective that has failed on one rank may answer late or never on the others.
        results = [_receive(rank, connection) for rank, connection in enumerate(members)]
        errors = [text for failed, text in results if failed]
        if errors:
            raise RuntimeError("\n".join(errors))
        return [value for _, value in results]


def _receive(rank: int, connection: Connection) -> tuple[bool, Any]:
    """Whether the function has failed on a rank, and the traceback or its result."""
    if not connection.poll(_TIMEOUT.total_seconds() + 30):
        raise TimeoutError(f"the process of rank {rank} has not answered")
    try:
        answer: tuple[bool, Any] = connection.recv()
    except EOFError:
        return True, f"rank {rank}:\nthe process has ended"
    return answer


def _serve(rank: int, store: str, connection: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=NUM_PROCESSES, timeout=_TIMEOUT
    )
    groups = {size: dist.new_group(range(size)) for size in range(1, NUM_PROCESSES + 1)}
    while (message := connection.recv()) is not None:
        function, size, values = message
        try:
            connection.send((False, function(groups[size], *values)))
        except Exception:
            connection.send((True, f"rank {rank}:\n{traceback.format_exc()}"))
    dist.destroy_process_group()


def forkserver_context(*modules: str) -> ForkServerContext:
    """One server imports what takes long, and the processes of this context are copies of it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "torch._dynamo",
            "sklearn.datasets",
            "protosphere.recipes.runner",
            "support.group_cases",
            "support.group_training",
            *modules,
        ]
    )
    return context


def run_forked(function: Callable[..., None], arguments: tuple[Any, ...], *, count: int) -> None:
    """Call ``function(rank, *arguments)`` in processes of their own, of any module."""
    import torch.multiprocessing

    forkserver_context()
    torch.multiprocessing.start_processes(
        function, arguments, nprocs=count, start_method="forkserver"
    )


@contextmanager
def gloo_processes(*modules: str) -> Iterator[Processes]:
    """Start the processes, which import these modules once, and end them on exit."""
    context = forkserver_context(*modules)
    pairs = [context.Pipe() for _ in range(NUM_PROCESSES)]
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        processes = [
            context.Process(target=_serve, args=(rank, store, child), daemon=True)
            for rank, (_, child) in enumerate(pairs)
        ]
        for process in processes:
            process.start()
        for _, child in pairs:
            child.close()  # So that the end of a process is the end of its connection.
        try:
            yield Processes([parent for parent, _ in pairs])
            for parent, _ in pairs:
                with suppress(BrokenPipeError):  # The process may have ended.
                    parent.send(None)
            for process in processes:
                process.join(timeout=10)
        finally:
            for process in processes:
                if process.is_alive():
                    process.terminate()
                    process.join()
