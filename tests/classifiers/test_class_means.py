"""Class means against a float64 oracle, for any batches, order, dtype and number of processes."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from protosphere.classifiers import ClassMeans, class_means, class_scatter, empty_means
from support.processes import run_forked

NUM_CLASSES = 5
NUM_RANKS = 3


def oracle(
    features: Tensor, labels: Tensor, num_classes: int, weights: Tensor | None = None
) -> np.ndarray:
    """Sum one sample after another, in float64."""
    values = features.double().numpy()
    sums, totals = np.zeros((num_classes, values.shape[1])), np.zeros(num_classes)
    for index, row in enumerate(values):
        weight = 1.0 if weights is None else float(weights[index])
        norm = np.sqrt((row**2).sum())
        sums[labels[index]] += weight * row / (norm if norm else 1)
        totals[labels[index]] += weight
    with np.errstate(invalid="ignore"):
        return sums / totals[:, None]


def random_samples(kind: str, num_samples: int = 700, dim: int = 24) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, NUM_CLASSES, (num_samples,), generator=generator)
    if kind == "collapsed":  # Equal vectors lose the same bits at each addition.
        return torch.rand(NUM_CLASSES, dim, generator=generator)[labels], labels
    features = torch.randn(num_samples, dim, generator=generator)
    if kind == "many norms":
        features *= torch.logspace(-12, 12, num_samples)[:, None]
    elif kind == "zeros":
        features[::7] = 0
    return features, labels


@pytest.mark.parametrize("kind", ["gaussian", "collapsed", "many norms", "zeros"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_means_match_the_oracle(kind: str, dtype: torch.dtype) -> None:
    if kind == "many norms" and dtype == torch.float16:
        pytest.skip("float16 cannot represent these norms")
    features, labels = random_samples(kind)
    features = features.to(dtype)
    result = class_means(features, labels, num_classes=NUM_CLASSES)
    expected = oracle(features, labels, NUM_CLASSES)
    np.testing.assert_allclose(result.means.numpy(), expected, rtol=0, atol=1e-6)
    assert result.weights.tolist() == torch.bincount(labels).tolist()


def test_a_large_collapsed_class_keeps_its_precision() -> None:
    """Summed one by one in float32, 150,000 equal vectors would be off by 1e-4."""
    features = torch.tensor([[0.1, 0.3, 0.7]]).expand(150_000, 3)
    result = class_means(features, torch.zeros(150_000, dtype=torch.long), num_classes=1)
    exact = features[0].double() / features[0].double().norm()
    torch.testing.assert_close(result.means[0], exact, rtol=0, atol=1e-6)


@given(
    cuts=st.lists(st.integers(0, 60), max_size=6),
    order=st.permutations(range(60)),
    weighted=st.booleans(),
)
def test_batches_and_order_do_not_matter(cuts: list[int], order: list[int], weighted: bool) -> None:
    features, labels = random_samples("gaussian", num_samples=60, dim=4)
    weights = torch.linspace(0, 3, 60).double() if weighted else None
    num_classes = NUM_CLASSES + 1
    index = torch.tensor(order)
    result = empty_means(num_classes, 4)
    for start, end in itertools.pairwise([0, *sorted(cuts), 60]):
        batch = index[start:end]
        result = result.add(
            features[batch], labels[batch], None if weights is None else weights[batch]
        )
    expected = oracle(features, labels, num_classes, weights)
    np.testing.assert_allclose(result.means.numpy(), expected, rtol=0, atol=1e-6)
    assert bool(result.means[NUM_CLASSES].isnan().all()), "a class without samples has no mean"


def _check_all_reduce(rank: int, world_size: int, address: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=address, rank=rank, world_size=world_size
    )
    features, labels = random_samples("gaussian")

    def indices(of_rank: int) -> Tensor:
        # Rank 1 has fewer samples than the others.
        return torch.arange(of_rank, len(features) - 300 * (of_rank == 1), world_size)

    own = indices(rank)
    result = class_means(features[own], labels[own], num_classes=NUM_CLASSES).all_reduce()
    everything = torch.cat([indices(other) for other in range(world_size)])
    expected = oracle(features[everything], labels[everything], NUM_CLASSES)
    np.testing.assert_allclose(result.means.numpy(), expected, rtol=0, atol=1e-6)
    scatter = class_scatter(features[own], labels[own], num_classes=NUM_CLASSES).all_reduce()
    whole = class_scatter(features[everything], labels[everything], num_classes=NUM_CLASSES)
    np.testing.assert_allclose(scatter.within.numpy(), whole.within.numpy(), rtol=0, atol=1e-5)
    assert torch.equal(scatter.means.sums, result.sums)
    assert scatter.degrees == whole.degrees
    torch.distributed.destroy_process_group()


@pytest.mark.whole_program
def test_all_reduce_gives_the_means_of_all_ranks(tmp_path: Path) -> None:
    run_forked(_check_all_reduce, (NUM_RANKS, f"file://{tmp_path}/store"), count=NUM_RANKS)


ROWS, LABELS = torch.ones(3, 2), torch.zeros(3, dtype=torch.long)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("features", "labels", "weights", "message"),
    [
        (torch.ones(3), LABELS, None, r"features must have shape \(samples, dim\), got \(3,\)"),
        (ROWS.long(), LABELS, None, "features must be float16, .* got torch.int64"),
        (
            ROWS,
            LABELS[:2],
            None,
            r"labels must hold one class index per sample, shape \(3,\), got \(2,\)",
        ),
        (
            ROWS,
            LABELS,
            torch.ones(2),
            r"weights must hold one value per sample, shape \(3,\), got \(2,\)",
        ),
        (ROWS, LABELS.float(), None, "labels must be integer class indices, got torch.float32"),
        (ROWS, LABELS.float()[:2], None, "labels must be integer class indices, got torch.float32"),
        (ROWS, torch.tensor([0, 1, 2]), None, "labels must lie between 0 and 1, got 0 to 2"),
        (ROWS, LABELS, torch.tensor([1.0, -1, 1]), "weights must not be negative or NaN"),
        (ROWS, LABELS, torch.tensor([1.0, torch.nan, 1]), "weights must not be negative or NaN"),
        (
            torch.tensor([[1.0, 1.0], [1.0, torch.nan]]),
            LABELS[:2],
            None,
            "features must be finite, .* row 1 is not",
        ),
        (torch.tensor([[3e38, 3e38]]), LABELS[:1], None, "overflowing norms; row 0 is not"),
    ],
)
def test_invalid_arguments_are_refused(
    features: Tensor, labels: Tensor, weights: Tensor | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        class_means(features, labels, num_classes=2, weights=weights)


@pytest.mark.bad_input
def test_the_row_that_is_not_finite_is_counted_over_all_samples() -> None:
    features = torch.ones(140_000, 2)
    features[139_999] = torch.inf
    with pytest.raises(ValueError, match="row 139999 is not"):
        class_means(features, torch.zeros(140_000, dtype=torch.long), num_classes=1)


def test_merging_with_no_samples_changes_nothing() -> None:
    one = ClassMeans(torch.ones(1).double(), torch.ones(1, 2).double())
    assert one.merge(empty_means(1, 2)).means.tolist() == [[1.0, 1.0]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", ["gaussian", "collapsed", "zeros"])
def test_means_on_a_gpu_match_the_oracle(kind: str) -> None:
    features, labels = random_samples(kind)
    result = class_means(features.cuda(), labels.cuda(), num_classes=NUM_CLASSES)
    expected = oracle(features, labels, NUM_CLASSES)
    np.testing.assert_allclose(result.means.cpu().numpy(), expected, rtol=0, atol=1e-6)
