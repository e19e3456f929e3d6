"""Invariance to rotation, scale, class order, sample order, batches and processes."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
import torch.multiprocessing
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics import MetricCollection

from protosphere.geometry.class_statistics import Space
from protosphere.metrics import NeuralCollapse, measure
from support.clouds import STREAMING, Cloud, cloud, defined
from support.processes import run_forked

clouds = st.builds(
    cloud,
    st.lists(st.integers(2, 12), min_size=3, max_size=6),
    st.integers(2, 9),
    noise=st.sampled_from([1e-3, 0.3, 3.0]),
    offset=st.sampled_from([0.0, 3.0]),
    dtype=st.just(np.float64),
    seed=st.integers(0, 1000),
)
SPACES: list[Space] = ["sphere", "raw"]
spaces = st.sampled_from(SPACES)


def _assert_same(one: dict, other: dict, tolerance: float = 1e-7) -> None:
    assert set(one) == set(other)
    for name, value in one.items():
        assert float(other[name]) == pytest.approx(float(value), rel=tolerance, abs=1e-11), name


@given(clouds, spaces, st.integers(0, 1000))
def test_rotation(samples: Cloud, space: Space, seed: int) -> None:
    dim = samples.features.shape[1]
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((dim, dim)))
    before = measure(
        samples.features, samples.labels, samples.prototypes.astype(float), space=space
    )
    after = measure(
        samples.features @ rotation, samples.labels, samples.prototypes @ rotation, space=space
    )
    before.pop("nc4_agreement"), after.pop("nc4_agreement")  # Ties may break differently.
    _assert_same(before, after)


@given(clouds, spaces, st.randoms())
def test_order_of_classes_and_samples(samples: Cloud, space: Space, random: Random) -> None:
    classes, count = len(samples.prototypes), len(samples.labels)
    class_order, order = (np.array(random.sample(range(size), size)) for size in (classes, count))
    prototypes = np.empty_like(samples.prototypes)
    prototypes[class_order] = samples.prototypes
    before = measure(samples.features, samples.labels, samples.prototypes, space=space)
    after = measure(
        samples.features[order], class_order[samples.labels][order], prototypes, space=space
    )
    _assert_same(before, after)


@given(clouds, spaces, st.lists(st.integers(0, 60), max_size=5), st.booleans())
def test_any_batches_and_merges(
    samples: Cloud, space: Space, cuts: list[int], merged: bool
) -> None:
    features, labels, prototypes, _ = map(torch.from_numpy, samples)
    dim, classes = features.shape[1], len(prototypes)
    whole = NeuralCollapse(dim, classes, prototypes, space=space)
    whole.update(features, labels)
    total = NeuralCollapse(dim, classes, prototypes, space=space)
    for batch in torch.arange(len(labels)).tensor_split(sorted(cuts)):
        target = NeuralCollapse(dim, classes, space=space) if merged else total
        target.update(features[batch], labels[batch])
        if merged:
            total.merge_state(target)
    _assert_same(defined(whole.compute()), defined(total.compute()))


@given(clouds, st.floats(0.01, 100))
def test_norms_do_not_matter_on_the_sphere(samples: Cloud, factor: float) -> None:
    prototypes = samples.prototypes.astype(float)
    before = measure(samples.features, samples.labels, prototypes)
    scales = factor * np.random.default_rng(0).uniform(0.1, 10, (len(samples.labels), 1))
    after = measure(samples.features * scales, samples.labels, factor * prototypes)
    before.pop("nc4_agreement"), after.pop("nc4_agreement")
    _assert_same(before, after)


def _run_process(rank: int, world_size: int, address: str, results) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=address, rank=rank, world_size=world_size
    )
    results[rank] = {space: _compute_on_rank(rank, world_size, space) for space in SPACES}
    torch.distributed.destroy_process_group()


def _compute_on_rank(rank: int, world_size: int, space: Space) -> dict[str, Any]:
    features, labels, prototypes, _ = map(torch.from_numpy, cloud([31, 8, 2, 40], 6, offset=3.0))
    metric = NeuralCollapse(6, 4, prototypes, space=space)
    pooled = NeuralCollapse(6, 4, prototypes, space=space, metrics=["nc1"])
    if rank != 1:  # The second process has no samples yet.
        ranks = [index for index in range(world_size) if index != 1]
        indices = torch.arange(len(labels)).tensor_split(len(ranks))[ranks.index(rank)]
        for batch in indices.split(9):
            metric.update(features[batch], labels[batch])
            pooled.update(features[batch], labels[batch])
    first = defined(metric.compute())
    second = defined(metric.compute())
    collection = MetricCollection(
        {name: NeuralCollapse(6, 4, prototypes, space=space) for name in "abc"}
    )
    collection.update(features[rank::world_size], labels[rank::world_size])
    for name, value in defined(collection.compute()).items():
        assert value == pytest.approx(first[name[2:]], rel=1e-9, abs=1e-11), name
    coarse = NeuralCollapse(6, 4, metrics="cheap")
    coarse.update(features[:4].to(torch.bfloat16 if rank else torch.float64), labels[:4])
    coarse.sync()
    return {
        "first": first,
        "second": second,
        "pooled": defined(pooled.compute()),
        "local_count": metric.statistics.counts.sum().item(),
        "input_eps": coarse.input_eps.item(),
    }


@pytest.mark.whole_program
@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_three_processes(tmp_path: Path) -> None:
    world_size = 3
    samples = cloud([31, 8, 2, 40], 6, offset=3.0)
    with torch.multiprocessing.Manager() as manager:
        shared = manager.dict()
        arguments = (world_size, f"file://{tmp_path}/store", shared)
        run_forked(_run_process, arguments, count=world_size)
        results = dict(shared)
    for space in SPACES:
        expected = measure(
            samples.features, samples.labels, samples.prototypes, space=space, metrics=STREAMING
        )
        ranks = [result[space] for result in results.values()]
        # Local states are restored after compute().
        assert sum(result["local_count"] for result in ranks) == len(samples.labels)
        for result in ranks:
            _assert_same(expected, result["first"], 1e-10)
            assert result["first"] == result["second"]
            trace = result["pooled"]["nc1_trace"]
            assert trace == pytest.approx(expected["nc1_trace"], rel=1e-10)
            assert result["input_eps"] == torch.finfo(torch.bfloat16).eps
