"""Scores for unknown classes against NumPy, scikit-learn and known geometry."""

import math

import numpy as np
import pytest
import torch
from sklearn.covariance import shrunk_covariance
from sklearn.neighbors import NearestNeighbors

from protosphere.classifiers import LinearClassifier
from protosphere.data.loaders import FeatureLoader
from protosphere.evaluation import ood
from protosphere.evaluation.ood import (
    OOD_SCORES,
    cosine_score,
    energy_score,
    fit_detector,
    fit_mahalanobis,
    knn_score,
    prototype_basis,
    score_images,
    softmax_score,
    subspace_score,
)
from protosphere.evaluation.roc import auroc
from protosphere.geometry import simplex_etf
from protosphere.geometry.class_statistics import empty_statistics
from protosphere.training import Objective

CLASSES, DIM = 3, 6


def _samples(count: int = 60, *, spread: float = 0.4) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(count) % CLASSES
    centers = torch.eye(CLASSES, DIM) + 0.3
    scales = torch.linspace(0.5, 2.0, count)[:, None]
    return scales * (centers[labels] + spread * torch.randn(count, DIM)), labels


def _objective(prototypes: torch.Tensor) -> Objective:
    classes, dim = prototypes.shape
    head = LinearClassifier(dim, classes)
    with torch.no_grad():
        head.prototypes.copy_(prototypes)
    return Objective(torch.nn.Identity(), head, lambda features, head, labels: features.sum())


def test_cosine_energy_and_softmax_equal_scalar_loops() -> None:
    features, prototypes = torch.randn(7, 4).double(), torch.randn(3, 4).double()
    logits = 5 * torch.randn(7, 3).double()
    cosines, energies, softmaxes = (
        cosine_score(features, prototypes),
        energy_score(logits),
        softmax_score(logits),
    )
    for index in range(7):
        feature = features[index].tolist()
        norms = [math.hypot(*feature), *(math.hypot(*row) for row in prototypes.tolist())]
        expected = max(
            sum(a * b for a, b in zip(feature, row, strict=True)) / (norms[0] * norm)
            for row, norm in zip(prototypes.tolist(), norms[1:], strict=True)
        )
        assert float(cosines[index]) == pytest.approx(expected, abs=1e-12)
        weights = [math.exp(value) for value in logits[index].tolist()]
        assert float(energies[index]) == pytest.approx(math.log(sum(weights)), abs=1e-12)
        most = math.log(max(weights) / sum(weights))
        assert float(softmaxes[index]) == pytest.approx(most, abs=1e-12)


def test_softmax_tells_saturated_probabilities_apart() -> None:
    logits = torch.tensor([[60.0, 0.0], [50.0, 0.0], [90.0, 0.0]])
    assert softmax_score(logits).argsort().tolist() == [1, 0, 2]


def test_subspace_equals_the_residual_of_least_squares() -> None:
    prototypes, features = torch.randn(3, 8).double(), torch.randn(5, 8).double()
    scores = subspace_score(features, prototype_basis(prototypes))
    for feature, score in zip(features.numpy(), scores.tolist(), strict=True):
        unit = feature / np.linalg.norm(feature)
        weights, *_ = np.linalg.lstsq(prototypes.numpy().T, unit, rcond=None)
        residual = np.linalg.norm(unit - prototypes.numpy().T @ weights)
        assert score == pytest.approx(-residual, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_simplex_spans_one_dimension_less(dtype: torch.dtype) -> None:
    prototypes = simplex_etf(10, 32).to(dtype)
    basis = prototype_basis(prototypes)
    assert basis.shape == (32, 9)
    assert subspace_score(prototypes, basis).abs().max() < 1e-6


@pytest.mark.parametrize("shrinkage", ["auto", 0.0, 0.3, 1.0])
def test_mahalanobis_equals_numpy(shrinkage) -> None:
    features, labels = _samples()
    statistics = empty_statistics(CLASSES, DIM, moments="pooled")
    statistics.add(features[:25], labels[:25])
    statistics.add(features[25:], labels[25:])
    queries = torch.randn(9, DIM)
    found = fit_mahalanobis(statistics, shrinkage=shrinkage).score(queries)

    unit = features.double().numpy()
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    means = np.stack([unit[labels.numpy() == c].mean(0) for c in range(CLASSES)])
    residuals = unit - means[labels.numpy()]
    strength = DIM / (DIM + 60 - CLASSES) if shrinkage == "auto" else shrinkage
    covariance = shrunk_covariance(residuals.T @ residuals / 60, shrinkage=strength)
    inverse = np.linalg.inv(covariance)
    for query, score in zip(queries.double().numpy(), found.tolist(), strict=True):
        differences = query / np.linalg.norm(query) - means
        expected = min(float(row @ inverse @ row) for row in differences)
        assert score == pytest.approx(-expected, rel=1e-9)


def test_mahalanobis_of_nearly_collapsed_features() -> None:
    """Features that differ by 1e-5 within classes still have the distances of NumPy."""
    features, labels = _samples(spread=1e-5)
    statistics = empty_statistics(CLASSES, DIM, moments="pooled")
    statistics.add(features.double(), labels)
    scores = fit_mahalanobis(statistics).score(features.double())
    # The mean of n squared Mahalanobis distances of n samples to their own means is about d.
    assert 0.5 * DIM < float(-scores.mean()) < 2 * DIM


def test_knn_equals_scikit_learn() -> None:
    known = torch.nn.functional.normalize(torch.randn(40, DIM).double())
    queries = torch.randn(11, DIM).double()
    model = NearestNeighbors(n_neighbors=5).fit(known.numpy())
    unit = torch.nn.functional.normalize(queries).numpy()
    expected = -model.kneighbors(unit)[0][:, -1]
    found = knn_score(queries, known, num_neighbors=5)
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-12)
    farthest = knn_score(queries, known, num_neighbors=99)
    assert farthest.tolist() == knn_score(queries, known, num_neighbors=40).tolist()


def test_a_detector_finds_images_of_another_kind_with_every_score() -> None:
    features, labels = _samples(spread=0.05)
    objective = _objective(4 * torch.eye(CLASSES, DIM))
    seen: list[float] = []
    train = FeatureLoader(features, labels)
    detector = fit_detector(objective, train, num_neighbors=5, progress=seen.append, batch_size=25)
    assert tuple(detector.scores) == OOD_SCORES
    assert not detector.absent
    assert seen[-1] == 1
    known = score_images(detector, objective, FeatureLoader(features, labels), batch_size=7)
    directions = torch.tensor([[0.0, 0, 0, 1, 1, 1], [-1.0, -1, -1, 0, 0, 1]])
    other = directions.repeat(5, 1) + 0.05 * torch.randn(10, DIM)
    loader = FeatureLoader(other, torch.zeros(10, dtype=torch.long))
    unknown = score_images(detector, objective, loader)
    for name in OOD_SCORES:
        assert known[name].shape == (60,)
        assert auroc(known[name], unknown[name]) > 0.9, name


def test_batches_do_not_change_the_scores() -> None:
    features, labels = _samples()
    objective, loader = _objective(torch.randn(CLASSES, DIM)), FeatureLoader(features, labels)
    detector = fit_detector(objective, loader)
    whole, parts = (score_images(detector, objective, loader, batch_size=size) for size in (512, 7))
    for name in OOD_SCORES:
        assert whole[name].tolist() == pytest.approx(parts[name].tolist(), abs=1e-5)


def test_scores_without_a_value_are_absent_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = torch.arange(12) % 4
    collapsed = torch.eye(4, 2)[labels] + torch.ones(2)
    loader = FeatureLoader(collapsed, labels)
    monkeypatch.setattr(ood, "_MAX_KNOWN_BYTES", 1)
    detector = fit_detector(_objective(torch.randn(4, 2)), loader)
    assert set(detector.scores) == {"cosine", "energy", "softmax"}
    assert detector.absent == {
        "subspace": "the prototypes span all 2 dimensions of the features",
        "mahalanobis": "features must vary within their classes, but all are collapsed",
        "knn": "the training features would take 0 GiB of memory",
    }


@pytest.mark.bad_input
def test_what_is_refused() -> None:
    features, labels = _samples(9)
    statistics = empty_statistics(CLASSES, 40, moments="pooled")
    statistics.add(torch.randn(9, 40), labels)
    with pytest.raises(ValueError, match="shrinkage must be between 0 and 1, got 2"):
        fit_mahalanobis(statistics, shrinkage=2)
    with pytest.raises(ValueError, match="covariance must have full rank"):
        fit_mahalanobis(statistics, shrinkage=0.0)
    with pytest.raises(ValueError, match="num_neighbors must be at least 1, got 0"):
        knn_score(features, features, num_neighbors=0)
