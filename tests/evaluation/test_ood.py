"""Scores for unknown classes against NumPy, scikit-learn and known geometry."""

import math

import numpy as np
import pytest
import torch
from sklearn.covariance import shrunk_covariance
from sklearn.neighbors import NearestNeighbors

from protosphere.classifiers import LinearClassifier, whitened_class_means
from protosphere.evaluation import ood
from protosphere.evaluation.ood import (
    OOD_SCORES,
    cosine_score,
    energy_score,
    fit_detector,
    knn_score,
    mahalanobis_score,
    prototype_basis,
    softmax_score,
    subspace_score,
)
from protosphere.evaluation.roc import auroc
from protosphere.geometry import simplex_etf

CLASSES, DIM = 3, 6


def _samples(count: int = 60, *, spread: float = 0.4) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(count) % CLASSES
    centers = torch.eye(CLASSES, DIM) + 0.3
    scales = torch.linspace(0.5, 2.0, count)[:, None]
    return scales * (centers[labels] + spread * torch.randn(count, DIM)), labels


def _head(prototypes: torch.Tensor) -> LinearClassifier:
    classes, dim = prototypes.shape
    head = LinearClassifier(dim, classes)
    with torch.no_grad():
        head.prototypes.copy_(prototypes)
    return head


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
    queries = torch.randn(9, DIM)
    means = whitened_class_means(features, labels, num_classes=CLASSES, shrinkage=shrinkage)
    found = mahalanobis_score(queries, means)

    unit = features.double().numpy()
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    centers = np.stack([unit[labels.numpy() == c].mean(0) for c in range(CLASSES)])
    residuals = unit - centers[labels.numpy()]
    degrees = 60 - CLASSES
    strength = DIM / (DIM + degrees) if shrinkage == "auto" else shrinkage
    covariance = shrunk_covariance(residuals.T @ residuals / degrees, shrinkage=strength)
    inverse = np.linalg.inv(covariance)
    for query, score in zip(queries.double().numpy(), found.tolist(), strict=True):
        differences = query / np.linalg.norm(query) - centers
        expected = min(float(row @ inverse @ row) for row in differences)
        assert score == pytest.approx(-expected, rel=1e-5)


def test_mahalanobis_of_nearly_collapsed_features() -> None:
    """Of features that differ by 1e-5 within classes, the mean squared distance is still d."""
    features, labels = _samples(spread=1e-5)
    double = features.double()
    means = whitened_class_means(double, labels, num_classes=CLASSES, shrinkage=0.01)
    scores = mahalanobis_score(double, means)
    assert 0.7 * (DIM - 1) < float(-scores.mean()) < 1.3 * (DIM - 1)


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
    detector = fit_detector(_head(4 * torch.eye(CLASSES, DIM)), features, labels, num_neighbors=5)
    assert tuple(detector.scores) == OOD_SCORES
    assert not detector.absent
    directions = torch.tensor([[0.0, 0, 0, 1, 1, 1], [-1.0, -1, -1, 0, 0, 1]])
    seen: list[float] = []
    known = detector(features, progress=seen.append)
    unknown = detector(directions.repeat(5, 1) + 0.05 * torch.randn(10, DIM))
    assert seen[-1] == 1
    for name in OOD_SCORES:
        assert known[name].shape == (60,)
        assert known[name].dtype == torch.float64
        assert auroc(known[name], unknown[name]) > 0.9, name


def test_chunks_do_not_change_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = _samples()
    detector = fit_detector(_head(torch.randn(CLASSES, DIM)), features, labels)
    whole = detector(features)
    monkeypatch.setattr(ood, "_CHUNK_ROWS", 7)
    monkeypatch.setattr(ood, "_MAX_PAIRS", 150)
    chunked = detector(features)
    for name in OOD_SCORES:
        assert whole[name].tolist() == pytest.approx(chunked[name].tolist(), abs=1e-5)


def test_prototypes_that_span_the_space_have_no_distance_to_it() -> None:
    features, labels = torch.randn(12, 2), torch.arange(12) % 4
    detector = fit_detector(_head(torch.randn(4, 2)), features, labels)
    assert set(detector.scores) == {*OOD_SCORES} - {"subspace"}
    assert detector.absent == {
        "subspace": "the prototypes span all 2 dimensions of the features",
    }


@pytest.mark.bad_input
def test_what_is_refused() -> None:
    features, labels = _samples(9)
    head = _head(torch.randn(CLASSES, DIM))
    with pytest.raises(ValueError, match="num_neighbors must be at least 1, got 0"):
        knn_score(features, features, num_neighbors=0)
    with pytest.raises(ValueError, match="num_neighbors must be at least 1, got -1"):
        fit_detector(head, features, labels, num_neighbors=-1)
    with pytest.raises(ValueError, match="shrinkage must"):
        fit_detector(head, features, labels, shrinkage=2.0)
