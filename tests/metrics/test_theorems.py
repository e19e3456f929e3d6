"""Closed forms: at neural collapse, and at the optimum of non-negative features."""

import math

import pytest
import torch

from protosphere.geometry import simplex_etf
from protosphere.metrics import CATALOG, NeuralCollapse, at_collapse, attainable, measure
from support.clouds import defined

SIZES = [(2, 5), (3, 2), (4, 7), (10, 512), (100, 99)]


def _measure(
    features: torch.Tensor, labels: torch.Tensor, prototypes: torch.Tensor
) -> dict[str, float]:
    """Measure stored and streamed, and check that both agree."""
    values = measure(features, labels, prototypes)
    metric = NeuralCollapse(features.shape[1], len(prototypes), prototypes)
    metric.update(features, labels)
    for name, value in defined(metric.compute()).items():
        assert value == pytest.approx(values[name], rel=1e-9, abs=1e-12), name
    return values


@pytest.mark.parametrize(("classes", "dim"), SIZES)
def test_values_at_collapse(classes: int, dim: int) -> None:
    frame = simplex_etf(classes, dim).double()
    labels = torch.arange(4 * classes) % classes
    values = _measure(3.7 * frame[labels], labels, frame)
    undefined = {"mir_published", "hdr_published", "bias_spread", "bias_offset"}
    if classes == 2:
        undefined |= {"mir", "hdr"}
    assert set(values) == set(CATALOG) - undefined
    for name, value in values.items():
        assert value == pytest.approx(at_collapse(name, classes), abs=1e-10), name
        assert at_collapse(name, classes) == attainable(name, classes, dim), name


@pytest.mark.parametrize(("classes", "dim"), [(3, 3), (10, 512), (100, 100)])
def test_attainable_values_of_non_negative_features(classes: int, dim: int) -> None:
    """Orthonormal class means, and prototypes on the nearest simplex."""
    means = torch.eye(classes, dim, dtype=torch.float64)
    prototypes = means - means.mean(0)
    labels = torch.arange(4 * classes) % classes
    values = _measure(2.0 * means[labels], labels, prototypes)
    assert set(values) == set(CATALOG) - {"bias_spread", "bias_offset"}
    for name, value in values.items():
        assert value == pytest.approx(
            attainable(name, classes, dim, sign="non-negative"), abs=1e-10
        ), name


def test_values_printed_in_the_paper() -> None:
    for classes, alignment, hdr, mir in ((10, 0.103, 0.050, 0.952), (100, 0.010, 0.300, 0.997)):
        means = torch.eye(classes, 512, dtype=torch.float64)
        labels = torch.arange(2 * classes) % classes
        values = measure(means[labels], labels, means - means.mean(0))
        assert values["weight_class_alignment"] == pytest.approx(alignment, abs=5e-4)
        assert values["hdr_published"] == pytest.approx(hdr, abs=5e-4)
        assert values["mir_published"] == pytest.approx(mir, abs=5e-4)
        assert values["hdr"] == pytest.approx(0, abs=1e-12)
    assert at_collapse("mir", 10) == pytest.approx(0.9524, abs=5e-5)
    assert at_collapse("mir", 100) == pytest.approx(0.9978, abs=5e-5)


def test_attainable_values_without_a_simplex() -> None:
    assert attainable("inter_effective_rank", 100, 64) == 64
    assert attainable("nc2_simplex", 100, 64) is None
    assert attainable("nc1_ratio", 100, 64) == 0
    assert attainable("weight_class_alignment", 100, 64, sign="non-negative") is None
    # A regular pentagon: five evenly distributed directions in a plane.
    angles = torch.arange(5, dtype=torch.float64) * 2 * math.pi / 5
    pentagon = torch.stack([angles.cos(), angles.sin()], 1)
    labels = torch.arange(10) % 5
    values = measure(pentagon[labels], labels, pentagon)
    for name, value in values.items():
        best = attainable(name, 5, 2)
        assert best is None or value == pytest.approx(best, abs=1e-10), name


def test_intra_rank_counts_directions() -> None:
    """Classes with equal variance along m axes have rank m, whatever the variance."""
    for size in (1e-4, 1.0, 1e4):
        axes = torch.eye(3, 8, dtype=torch.float64)
        cross = torch.cat([axes, -axes]) * size
        features = torch.cat([cross, cross + 5 * size * torch.eye(8)[7]])
        labels = torch.arange(2).repeat_interleave(6)
        assert measure(features, labels, space="raw")["intra_effective_rank"] == pytest.approx(
            3, rel=1e-12
        )


def test_alignments_of_two_samples_per_class() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    prototypes = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    values = measure(features, torch.tensor([0, 0, 1, 1]), prototypes)
    assert values["instance_alignment"] == pytest.approx(2)
    assert values["weight_instance_alignment"] == pytest.approx(2 - math.sqrt(2))
    assert values["weight_class_alignment"] == pytest.approx(0, abs=1e-12)
    assert values["nc4_agreement"] == 1
