"""Processes that share one GPU for a test module: one as torchrun starts it, or two with gloo."""

import multiprocessing
import os
import socket
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from support.processes import Processes

_TIMEOUT = timedelta(seconds=80)


def _serve(rank: int, size: int, device: str, port: int, connection: Connection) -> None:
    import torch
    import torch.distributed as dist

    from protosphere.parallel.launch import World, open_world

    torch.set_num_threads(1)
    # With TF32 two ways to compute the same numbers would differ after a few steps.
    torch.backends.cudnn.allow_tf32 = False
    if size == 1:
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        with open_world(device) as (joined, own_device):
            assert joined == World()  # One process exchanges nothing, unless a test wants it.
            assert own_device == ("cuda:0" if device == "cuda" else device)
            control: Any = dist.new_group(backend="gloo", timeout=_TIMEOUT)
            _answer(World(group=dist.group.WORLD, control=control), connection)
        return
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=size,
        timeout=_TIMEOUT,
    )
    group = dist.group.WORLD
    _answer(World(rank, size, group=group, control=group), connection)
    dist.destroy_process_group()


def _answer(world: object, connection: Connection) -> None:
    while (message := connection.recv()) is not None:
        function, _, values = message
        try:
            connection.send((False, function(world, *values)))
        except Exception:
            connection.send((True, f"{world}:\n{traceback.format_exc()}"))


@contextmanager
def gpu_processes(size: int, device: str) -> Iterator[Processes]:
    """Start processes that call ``function(world, *arguments)``, and end them on exit."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # A copy of a process that has used a GPU could not use it.
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(size)]
    processes = [
        context.Process(target=_serve, args=(rank, size, device, port, child), daemon=True)
        for rank, (_, child) in enumerate(pairs)
    ]
    for process in processes:
        process.start()
    try:
        yield Processes([parent for parent, _ in pairs])
        for parent, _ in pairs:
            parent.send(None)
        for process in processes:
            process.join(timeout=3)  # The compiler's own processes may take longer.
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
                process.join()
