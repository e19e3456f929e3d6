"""Class means from a stream: a float64 oracle to 1e-6, whatever the batches, order, dtype and number of processes."""

import itertools
import os
import socket

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st

from protosphere.classifiers import ClassMeans, class_means
from protosphere.classifiers.class_means import empty_means


def oracle(
    features: torch.Tensor, labels: torch.Tensor, classes: int, weights: torch.Tensor | None = None
) -> np.ndarray:
    """One sample after another, in float64."""
    values = features.double().numpy()
    sums, total = np.zeros((classes, values.shape[1])), np.zeros(classes)
    for index, row in enumerate(values):
        weight = 1.0 if weights is None else float(weights[index])
        length = np.sqrt((row**2).sum())
        sums[labels[index]] += weight * row / (length if length else 1)
        total[labels[index]] += weight
    with np.errstate(invalid="ignore"):
        return sums / total[:, None]


def cloud(
    kind: str, samples: int = 700, dim: int = 24, classes: int = 5
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, classes, (samples,), generator=generator)
    if kind == "scattered":
        return torch.randn(samples, dim, generator=generator), labels
    if kind == "collapsed":  # Equal vectors lose the same bits each time they are added.
        return torch.rand(classes, dim, generator=generator)[labels], labels
    if kind == "lengths":
        lengths = torch.logspace(-12, 12, samples)[:, None]
        return torch.randn(samples, dim, generator=generator) * lengths, labels
    features = torch.randn(samples, dim, generator=generator)
    features[::7] = 0
    return features, labels


@pytest.mark.parametrize("kind", ["scattered", "collapsed", "lengths", "zeros"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_means_are_those_of_the_oracle(kind: str, dtype: torch.dtype) -> None:
    if kind == "lengths" and dtype == torch.float16:
        pytest.skip("float16 has no such lengths")
    features, labels = cloud(kind)
    features = features.to(dtype)
    found = class_means(features, labels, num_classes=5)
    np.testing.assert_allclose(found.means.numpy(), oracle(features, labels, 5), rtol=0, atol=1e-6)
    assert found.weights.tolist() == torch.bincount(labels).tolist()


def test_a_large_collapsed_class_keeps_its_digits() -> None:
    """A hundred and fifty thousand equal vectors: added one by one in float32 they would be off by 1e-4."""
    features = torch.tensor([[0.1, 0.3, 0.7]]).expand(150_000, 3)
    found = class_means(features, torch.zeros(150_000, dtype=torch.long), num_classes=1)
    exact = features[0].double() / features[0].double().norm()
    torch.testing.assert_close(found.means[0], exact, rtol=0, atol=1e-6)


@given(
    cuts=st.lists(st.integers(0, 60), max_size=6),
    order=st.permutations(range(60)),
    weighted=st.booleans(),
)
def test_batches_and_order_do_not_matter(cuts: list[int], order: list[int], weighted: bool) -> None:
    features, labels = cloud("scattered", samples=60, dim=4)
    weights = torch.linspace(0, 3, 60).double() if weighted else None
    whole = oracle(features, labels, 6, weights)
    index = torch.tensor(order)
    found = empty_means(6, 4)
    edges = [0, *sorted(cuts), 60]
    for start, end in itertools.pairwise(edges):
        part = index[start:end]
        found = found.added(
            features[part], labels[part], None if weights is None else weights[part]
        )
    np.testing.assert_allclose(found.means.numpy(), whole, rtol=0, atol=1e-6)
    assert bool(found.means[5].isnan().all()), "a class without samples has no mean"


def _one_process(rank: int, world: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    features, labels = cloud("scattered")
    own = torch.arange(rank, len(features) - 300 * (rank == 1), world)  # Uneven, too.
    found = class_means(features[own], labels[own], num_classes=5).reduced()
    kept = torch.cat(
        [torch.arange(other, len(features) - 300 * (other == 1), world) for other in range(world)]
    )
    expected = oracle(features[kept], labels[kept], 5)
    np.testing.assert_allclose(found.means.numpy(), expected, rtol=0, atol=1e-6)
    torch.distributed.destroy_process_group()


@pytest.mark.whole_program
@pytest.mark.parametrize("world", [1, 2, 4])
def test_processes_add_up(world: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_one_process, (world, port), nprocs=world)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("features", "labels", "weights", "message"),
    [
        (
            torch.ones(3),
            torch.zeros(3).long(),
            None,
            r"features must be \(samples, dim\), floating; got \(3,\)",
        ),
        (torch.ones(3, 2).long(), torch.zeros(3).long(), None, "floating; got"),
        (
            torch.ones(3, 2),
            torch.zeros(2).long(),
            None,
            r"labels must be one a sample, shape \(3,\); got \(2,\)",
        ),
        (torch.ones(3, 2), torch.zeros(3), None, "labels must be whole numbers; got torch.float32"),
        (torch.ones(3, 2), torch.tensor([0, 1, 2]), None, r"labels must lie in 0\.\.1; got 0\.\.2"),
        (
            torch.ones(3, 2),
            torch.zeros(3).long(),
            torch.tensor([1.0, -1, 1]),
            "must not be negative",
        ),
        (torch.tensor([[1.0, torch.nan]]), torch.zeros(1).long(), None, "features must be finite"),
        (torch.tensor([[3e38, 3e38]]), torch.zeros(1).long(), None, "features must be finite"),
    ],
)
def test_what_makes_no_sense(features, labels, weights, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        class_means(features, labels, num_classes=2, weights=weights)


def test_merged_means() -> None:
    one, two = ClassMeans(torch.ones(1).double(), torch.ones(1, 2).double()), empty_means(1, 2)
    assert one.merged(two).means.tolist() == [[1.0, 1.0]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and there is none")
@pytest.mark.parametrize("kind", ["scattered", "collapsed", "zeros"])
def test_on_a_gpu(kind: str) -> None:
    features, labels = cloud(kind)
    found = class_means(features.cuda(), labels.cuda(), num_classes=5)
    np.testing.assert_allclose(
        found.means.cpu().numpy(), oracle(features, labels, 5), rtol=0, atol=1e-6
    )
