"""What must not change a measurement: rotation, names of classes, order, batches, and the number of processes."""

import numpy as np
import pytest
import torch
import torch.distributed
import torch.multiprocessing
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics import MetricCollection

from protosphere.metrics import NeuralCollapse, measure
from support.clouds import cloud

clouds = st.builds(
    cloud,
    st.lists(st.integers(2, 12), min_size=3, max_size=6),
    st.integers(2, 9),
    spread=st.sampled_from([1e-3, 0.3, 3.0]),
    offset=st.sampled_from([0.0, 3.0]),
    dtype=st.just(np.float64),
    seed=st.integers(0, 1000),
)
spaces = st.sampled_from(["sphere", "raw"])


def _same(one: dict, other: dict, tolerance: float = 1e-7) -> None:
    assert set(one) == set(other)
    for name, value in one.items():
        assert float(other[name]) == pytest.approx(float(value), rel=tolerance, abs=1e-11), name


@given(clouds, spaces, st.integers(0, 1000))
def test_rotation(samples, space: str, seed: int) -> None:
    dim = samples.features.shape[1]
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((dim, dim)))
    before = measure(
        samples.features, samples.labels, samples.prototypes.astype(float), space=space
    )
    after = measure(
        samples.features @ rotation, samples.labels, samples.prototypes @ rotation, space=space
    )
    before.pop("nc4_agreement"), after.pop("nc4_agreement")  # A tie may fall to either side.
    _same(before, after)


@given(clouds, spaces, st.randoms())
def test_names_of_classes_and_order_of_samples(samples, space: str, random) -> None:
    classes, count = len(samples.prototypes), len(samples.labels)
    names, order = (np.array(random.sample(range(size), size)) for size in (classes, count))
    prototypes = np.empty_like(samples.prototypes)
    prototypes[names] = samples.prototypes
    before = measure(samples.features, samples.labels, samples.prototypes, space=space)
    after = measure(samples.features[order], names[samples.labels][order], prototypes, space=space)
    _same(before, after)


@given(clouds, spaces, st.lists(st.integers(0, 60), max_size=5), st.booleans())
def test_batches_however_they_are_cut_and_merged(
    samples, space: str, cuts: list[int], merged: bool
) -> None:
    features, labels, prototypes, _ = map(torch.from_numpy, samples)
    dim, classes = features.shape[1], len(prototypes)
    whole = NeuralCollapse(dim, classes, prototypes, space=space)
    whole.update(features, labels)
    parts = NeuralCollapse(dim, classes, prototypes, space=space)
    for part in torch.arange(len(labels)).tensor_split(sorted(cuts)):
        target = NeuralCollapse(dim, classes, space=space) if merged else parts
        target.update(features[part], labels[part])
        if merged:
            parts.merge_state(target)
    _same(whole.compute(), parts.compute())


@given(clouds, st.floats(0.01, 100))
def test_the_sphere_does_not_know_lengths(samples, factor: float) -> None:
    prototypes = samples.prototypes.astype(float)
    before = measure(samples.features, samples.labels, prototypes)
    lengths = factor * np.random.default_rng(0).uniform(0.1, 10, (len(samples.labels), 1))
    after = measure(samples.features * lengths, samples.labels, factor * prototypes)
    before.pop("nc4_agreement"), after.pop("nc4_agreement")
    _same(before, after)


def _process(rank: int, world: int, address: str, results) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    results[rank] = {space: _shared(rank, world, space) for space in ("sphere", "raw")}
    torch.distributed.destroy_process_group()


def _shared(rank: int, world: int, space: str) -> tuple[dict, dict, dict, float]:
    features, labels, prototypes, _ = map(torch.from_numpy, cloud([31, 8, 2, 40], 6, offset=3.0))
    metric = NeuralCollapse(6, 4, prototypes, space=space)
    pooled = NeuralCollapse(6, 4, prototypes, space=space, metrics=["nc1"])
    if rank != 1 or world == 1:  # The second of several has seen nothing yet.
        shares = [index for index in range(world) if index != 1 or world == 1]
        own = torch.arange(len(labels)).tensor_split(len(shares))[shares.index(rank)]
        for batch in own.split(9):
            metric.update(features[batch], labels[batch])
            pooled.update(features[batch], labels[batch])
    first = {name: float(value) for name, value in metric.compute().items()}
    again = {name: float(value) for name, value in metric.compute().items()}
    own = metric._statistics().counts.sum().item()
    together = MetricCollection(
        {name: NeuralCollapse(6, 4, prototypes, space=space) for name in "abc"}
    )
    together.update(features[rank::world], labels[rank::world])
    for name, value in together.compute().items():
        assert float(value) == pytest.approx(first[name[2:]], rel=1e-9, abs=1e-11), name
    return first, again, {name: float(value) for name, value in pooled.compute().items()}, own


@pytest.mark.whole_program
@pytest.mark.filterwarnings("ignore:The ``compute`` method")
@pytest.mark.parametrize("world", [2, 4])
def test_one_process_is_two_is_four(world: int, tmp_path) -> None:
    samples = cloud([31, 8, 2, 40], 6, offset=3.0)
    with torch.multiprocessing.Manager() as manager:
        results = manager.dict()
        address = f"file://{tmp_path}/meet"
        torch.multiprocessing.spawn(_process, (world, address, results), nprocs=world)
        found = dict(results)
    for space in ("sphere", "raw"):
        expected = measure(samples.features, samples.labels, samples.prototypes, space=space)
        del expected["nc4_agreement"]
        own = [rank[space] for rank in found.values()]
        assert sum(count for *_, count in own) == len(samples.labels), (
            "local states come back after computing"
        )
        for first, again, pooled, _ in own:
            _same(expected, first, 1e-10)
            assert first == again
            assert pooled["nc1_trace"] == pytest.approx(expected["nc1_trace"], rel=1e-10)
