"""NTCE and NONL exchange a few numbers per class, whatever the samples and dimensions are."""

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NUM_RANKS = 8
# Bytes per class of all tensors that a rank gives in the forward and the backward pass. NTCE: two
# maxima, two sums and two gradients, of which one sum and one gradient are in float64. NONL: one of
# each, in float32.
PER_CLASS = {"ntce": 2 * 4 + (4 + 8) + (4 + 8), "nonl": 4 + 4 + 4}
# The loss and its total weight, and their gradients.
SCALARS = 16


@pytest.fixture(scope="module")
def scaling() -> Iterator[Any]:
    """The benchmark, which counts."""
    sys.path.insert(0, str(BENCHMARKS))
    yield import_module("scaling")
    sys.path.remove(str(BENCHMARKS))
    for name in ("scaling", "collectives", "harness"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def group() -> Iterator[Any]:
    """A group of eight ranks of which only this one exists: nothing travels."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=NUM_RANKS)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_received_bytes_of_the_ring_algorithms(scaling: Any) -> None:
    """Four ranks with 12 bytes each, worked by hand."""
    # Three of four parts of 3 bytes arrive while sums are formed, and again while they spread.
    assert scaling.Collective("all_reduce", 12).received(4) == 18
    assert scaling.Collective("all_gather", 12).received(4) == 36
    assert scaling.Collective("reduce_scatter", 12).received(4) == 9
    for kind in ("all_reduce", "all_gather", "reduce_scatter"):
        assert scaling.Collective(kind, 12).received(1) == 0


def test_calls_are_recorded_with_their_bytes(scaling: Any, group: Any) -> None:
    original = dist.all_reduce
    with scaling.record_collectives() as found:
        dist.all_reduce(torch.zeros(3, dtype=torch.float64), group=group)
        dist.all_gather_into_tensor(torch.zeros(16), torch.zeros(2), group=group)
        dist.reduce_scatter_tensor(torch.zeros(2), torch.zeros(16), group=group)
        with pytest.raises(NotImplementedError, match="knows how to count"):
            dist.broadcast(torch.zeros(2), src=0, group=group)
    assert found == [("all_reduce", 24), ("all_gather", 8), ("reduce_scatter", 64)]
    assert dist.all_reduce is original


@pytest.mark.parametrize("loss", PER_CLASS)
@pytest.mark.parametrize("classes", [5, 40])
def test_the_exchange_is_linear_in_classes_alone(
    scaling: Any, group: Any, loss: str, classes: int
) -> None:
    for samples, dim in ((6, 4), (6, 64), (50, 4)):
        found, _ = scaling.count(loss, group, samples=samples, classes=classes, dim=dim)
        assert {call.kind for call in found} == {"all_reduce"}
        assert sum(call.payload for call in found) == PER_CLASS[loss] * classes + SCALARS


@pytest.mark.parametrize("loss", PER_CLASS)
def test_features_of_a_batch_of_imagenet_are_500_times_as_many_bytes(
    scaling: Any, group: Any, loss: str
) -> None:
    found, _ = scaling.count(loss, group, samples=256, classes=1000, dim=2048)
    received = sum(call.received(NUM_RANKS) for call in found)
    # The features of seven other ranks, and in the backward pass the gradients of as many.
    gathered = 2 * 7 * 256 * 2048 * 4
    assert gathered / received >= 500


def test_committed_results_count_the_same() -> None:
    record = json.loads((BENCHMARKS / "results/scaling.json").read_text())
    cases = record["runs"]["8"]["cases"]
    for loss, per_class in PER_CLASS.items():
        assert cases[loss]["payload_bytes"] == per_class * 1000 + SCALARS
        assert cases["gather"]["received_bytes"] >= 500 * cases[loss]["received_bytes"]
