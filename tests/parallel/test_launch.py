"""Joining the processes of torchrun: each time with keys of its own in their store."""

import sys
from typing import Any

import pytest
import torch.distributed as dist

from protosphere.parallel.launch import open_world


def test_processes_that_join_again_do_not_read_what_the_first_group_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Addresses of connections that are closed would make them wait for each other."""
    shared = dist.HashStore()  # type: ignore[attr-defined]
    found = []

    def join(_: str, *, store: Any, **__: Any) -> None:
        found.append(store.check(["address"]))
        store.set("address", "of a connection")

    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    module = sys.modules["torch.distributed.rendezvous"]  # torch has a function of this name.
    monkeypatch.setattr(module, "rendezvous", lambda *_, **__: iter([(shared, 0, 1)]))
    monkeypatch.setattr(dist, "init_process_group", join)
    for name in ("barrier", "destroy_process_group"):
        monkeypatch.setattr(dist, name, lambda **_: None)
    for _ in range(2):
        with open_world("cpu"):
            pass
    assert found == [False, False]


@pytest.mark.bad_input
def test_a_number_of_processes_without_their_ranks_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    message = r"WORLD_SIZE \(2\) must come with LOCAL_RANK; torchrun sets all of them"
    with pytest.raises(ValueError, match=message), open_world("cpu"):
        pass
    monkeypatch.setenv("WORLD_SIZE", "1")
    with open_world("cpu") as (world, _):
        assert world.size == 1
