"""Class statistics against a two-pass computation, for any batches, merges and tile layouts."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protosphere.geometry import scatter_tiles
from protosphere.geometry.class_statistics import ClassStatistics, Moments, empty_statistics
from protosphere.geometry.scatter_tiles import tile_bytes


def _two_passes(
    features: torch.Tensor, labels: torch.Tensor, classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    means, scatters = [], []
    for index in range(classes):
        samples = features[labels == index].double()
        mean = (
            samples.mean(0) if len(samples) else torch.zeros(features.shape[1], dtype=torch.float64)
        )
        means.append(mean)
        scatters.append((samples - mean).T @ (samples - mean))
    return torch.stack(means), torch.stack(scatters)


def _check(
    statistics: ClassStatistics, features: torch.Tensor, labels: torch.Tensor, scale: float = 1.0
) -> None:
    means, scatters = _two_passes(features, labels, statistics.num_classes)
    close = partial(torch.testing.assert_close, rtol=1e-11, atol=1e-11 * scale)
    counts = torch.bincount(labels, minlength=len(means)).double()
    torch.testing.assert_close(statistics.counts, counts)
    close(statistics.means, means)
    close(statistics.sum_sq_dev, scatters.diagonal(dim1=1, dim2=2).sum(1))
    close(statistics.scatter(), scatters.sum(0))
    if statistics.scatter_tiles is not None:
        close(torch.stack(list(statistics.class_scatters())), scatters)


@pytest.mark.parametrize("padding", [1 << 29, 2000, 1])
@pytest.mark.parametrize("moments", ["pooled", "per_class"])
@pytest.mark.parametrize("dim", [1, 5, 131])
def test_batches_equal_two_passes(
    dim: int, moments: Moments, padding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scatter_tiles, "_MAX_PADDED_BYTES", padding)
    features = torch.randn(200, dim) + 2
    labels = (torch.rand(200).square() * 7).long()  # uneven
    statistics = empty_statistics(9, dim, moments=moments)  # no samples of the last two
    for batch in torch.arange(200).split(23):
        statistics.add(features[batch], labels[batch], space="raw")
    _check(statistics, features, labels)


@given(st.integers(0, 10**6), st.lists(st.integers(0, 50), max_size=4), st.sampled_from([0.0, 1e3]))
def test_merging_equals_adding(seed: int, cuts: list[int], offset: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(50, 4, generator=generator, dtype=torch.float64) + offset
    labels = torch.randint(0, 5, (50,), generator=generator)
    choices: tuple[Moments, ...] = ("pooled", "per_class")
    for moments in choices:
        total = empty_statistics(5, 4, moments=moments)
        for batch in torch.arange(50).tensor_split(sorted(cuts)):
            other = empty_statistics(5, 4, moments=moments)
            other.add(features[batch], labels[batch], space="raw")
            before = [tensor.clone() for tensor in (other.counts, other.means, other.sum_sq_dev)]
            total.merge(other)
            assert all(map(torch.equal, before, (other.counts, other.means, other.sum_sq_dev))), (
                "merging must not change the other statistics"
            )
        _check(total, features, labels, scale=max(1.0, offset))


def test_statistics_of_unit_features() -> None:
    features, labels = torch.randn(60, 5) * 100, torch.arange(60) % 3
    features[7] = 0
    statistics = empty_statistics(3, 5, moments="per_class")
    statistics.add(features, labels)
    _check(statistics, torch.nn.functional.normalize(features.double()), labels)


def test_tile_bytes_is_the_size_of_the_tiles() -> None:
    for classes, dim in ((3, 1), (2, 128), (5, 129), (2, 300)):
        tiles = empty_statistics(classes, dim, moments="per_class").scatter_tiles
        assert tiles is not None
        assert sum(tile.nbytes for tile in tiles) == tile_bytes(classes, dim)
    assert tile_bytes(1000, 2048) < 0.54 * 1000 * 2048**2 * 8


def test_identical_samples_have_zero_deviation_and_input_eps_is_the_coarsest() -> None:
    point = torch.randn(1, 9, dtype=torch.float64) + 1000
    statistics = empty_statistics(2, 9)
    for size in (1, 7, 100, 3):
        statistics.add(point.expand(size, 9), torch.zeros(size, dtype=torch.long), space="raw")
    assert statistics.sum_sq_dev[0] == 0
    assert statistics.collapsed()[0]
    assert statistics.input_eps == torch.finfo(torch.float64).eps
    statistics.add(torch.zeros(1, 9, dtype=torch.bfloat16), torch.tensor([1]))
    assert statistics.input_eps == torch.finfo(torch.bfloat16).eps


def test_merging_keeps_the_coarsest_input_eps_and_sums_rejected_samples() -> None:
    fine, coarse = empty_statistics(2, 3), empty_statistics(2, 3)
    fine.add(torch.ones(3, 3, dtype=torch.float64), torch.tensor([0, 1, 7]))
    coarse.add(torch.ones(4, 3, dtype=torch.bfloat16), torch.tensor([0, -1, 2, -100]))
    for first, second in ((fine, coarse), (coarse, fine)):
        merged = empty_statistics(2, 3)
        merged.merge(first)
        merged.merge(second)
        assert merged.input_eps == torch.finfo(torch.bfloat16).eps
        assert merged.rejected == 3
        assert merged.counts.tolist() == [2, 1]


def test_a_merged_rounding_error_counts_as_collapsed() -> None:
    """Two bfloat16 neighbors differ by rounding; float64 samples that far apart do not."""
    pair = torch.tensor([[1.0, 0.0], [1.0, 0.0078125]], dtype=torch.bfloat16)
    coarse, fine = empty_statistics(1, 2), empty_statistics(1, 2)
    coarse.add(pair, torch.zeros(2, dtype=torch.long), space="raw")
    fine.add(pair.double(), torch.zeros(2, dtype=torch.long), space="raw")
    assert not fine.collapsed()[0]
    fine.merge(coarse)
    assert fine.collapsed()[0]


def test_selecting_classes() -> None:
    statistics = empty_statistics(4, 3, moments="per_class")
    statistics.add(torch.randn(20, 3), torch.tensor([1, 3]).repeat(10))
    selected = statistics.select(torch.tensor([1, 3]))
    assert selected.counts.tolist() == [10, 10]
    torch.testing.assert_close(selected.means, statistics.means[[1, 3]])
    torch.testing.assert_close(selected.scatter(), statistics.scatter())


@pytest.mark.bad_input
def test_moments_that_were_not_accumulated_are_an_error() -> None:
    statistics = empty_statistics(2, 3)
    with pytest.raises(ValueError, match="moments='pooled' or 'per_class'"):
        statistics.scatter()
    with pytest.raises(ValueError, match="moments='per_class'"):
        next(statistics.class_scatters())
    with pytest.raises(ValueError, match="same classes, dimension and moments"):
        statistics.merge(empty_statistics(2, 4))
