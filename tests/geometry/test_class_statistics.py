"""Moments that add: against two passes over everything, in any cut, merge and layout."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protosphere.geometry import class_statistics
from protosphere.geometry.class_statistics import ClassStatistics, empty_statistics, panel_bytes


def _two_passes(
    features: torch.Tensor, labels: torch.Tensor, classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    means, scatters = [], []
    for index in range(classes):
        own = features[labels == index].double()
        mean = own.mean(0) if len(own) else torch.zeros(features.shape[1], dtype=torch.float64)
        means.append(mean)
        scatters.append((own - mean).T @ (own - mean))
    return torch.stack(means), torch.stack(scatters)


def _check(
    statistics: ClassStatistics, features: torch.Tensor, labels: torch.Tensor, scale: float = 1.0
) -> None:
    means, scatters = _two_passes(features, labels, statistics.num_classes)
    close = {"rtol": 1e-11, "atol": 1e-11 * scale}
    torch.testing.assert_close(
        statistics.counts, torch.bincount(labels, minlength=len(means)).double()
    )
    torch.testing.assert_close(statistics.means, means, **close)
    torch.testing.assert_close(
        statistics.spreads, scatters.diagonal(dim1=1, dim2=2).sum(1), **close
    )
    torch.testing.assert_close(statistics.scatter(), scatters.sum(0), **close)
    if statistics.panels is not None:
        torch.testing.assert_close(
            torch.stack(list(statistics.class_scatters())), scatters, **close
        )


@pytest.mark.parametrize("padding", [1 << 29, 2000, 1])
@pytest.mark.parametrize("moments", ["pooled", "per_class"])
@pytest.mark.parametrize("dim", [1, 5, 131])
def test_batches(dim: int, moments: str, padding: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_statistics, "_PADDED", padding)
    features = torch.randn(200, dim) + 2
    labels = (torch.rand(200).square() * 7).long()  # uneven
    statistics = empty_statistics(9, dim, moments=moments)  # the last two classes never come
    for batch in torch.arange(200).split(23):
        statistics.add(features[batch], labels[batch], space="raw")
    _check(statistics, features, labels)


@given(st.integers(0, 10**6), st.lists(st.integers(0, 50), max_size=4), st.sampled_from([0.0, 1e3]))
def test_merging_is_adding(seed: int, cuts: list[int], offset: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(50, 4, generator=generator, dtype=torch.float64) + offset
    labels = torch.randint(0, 5, (50,), generator=generator)
    for moments in ("pooled", "per_class"):
        total = empty_statistics(5, 4, moments=moments)
        for part in torch.arange(50).tensor_split(sorted(cuts)):
            other = empty_statistics(5, 4, moments=moments)
            other.add(features[part], labels[part], space="raw")
            before = [tensor.clone() for tensor in (other.counts, other.means, other.spreads)]
            total.merge(other)
            assert all(map(torch.equal, before, (other.counts, other.means, other.spreads))), (
                "the other stays as it is"
            )
        _check(total, features, labels, scale=max(1.0, offset))


def test_statistics_of_unit_features() -> None:
    features, labels = torch.randn(60, 5) * 100, torch.arange(60) % 3
    features[7] = 0
    statistics = empty_statistics(3, 5, moments="per_class")
    statistics.add(features, labels)
    _check(statistics, torch.nn.functional.normalize(features.double()), labels)


def test_how_much_the_panels_take() -> None:
    for classes, dim in ((3, 1), (2, 128), (5, 129), (2, 300)):
        panels = empty_statistics(classes, dim, moments="per_class").panels
        assert sum(panel.nbytes for panel in panels) == panel_bytes(classes, dim)
    assert panel_bytes(1000, 2048) < 0.54 * 1000 * 2048**2 * 8


def test_identical_samples_deviate_by_nothing_and_the_coarsest_input_counts() -> None:
    point = torch.randn(1, 9, dtype=torch.float64) + 1000
    statistics = empty_statistics(2, 9)
    for size in (1, 7, 100, 3):
        statistics.add(point.expand(size, 9), torch.zeros(size, dtype=torch.long), space="raw")
    assert statistics.spreads[0] == 0
    assert statistics.collapsed()[0]
    assert statistics.resolution == torch.finfo(torch.float64).eps
    statistics.add(torch.zeros(1, 9, dtype=torch.bfloat16), torch.tensor([1]))
    assert statistics.resolution == torch.finfo(torch.bfloat16).eps


@pytest.mark.bad_input
def test_what_was_not_accumulated_is_not_given() -> None:
    statistics = empty_statistics(2, 3)
    with pytest.raises(ValueError, match="moments='pooled' or 'per_class'"):
        statistics.scatter()
    with pytest.raises(ValueError, match="moments='per_class'"):
        next(statistics.class_scatters())
    with pytest.raises(ValueError, match="same classes, dimensions and moments"):
        statistics.merge(empty_statistics(2, 4))
