"""Scatter and whitened class means against loops and scikit-learn; merging, few samples."""

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.preprocessing import normalize
from torch import Tensor

from protosphere.classifiers import (
    ClassScatter,
    WhitenedClassMeans,
    Whitening,
    class_means,
    class_scatter,
    empty_scatter,
    whitened_class_means,
)

NUM_CLASSES, DIM = 4, 5
Rule = Literal["cosine", "nearest"]


def samples(num_samples: int = 60, *, seed: int = 0, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num_samples) % NUM_CLASSES
    centers = torch.randn(NUM_CLASSES, DIM, generator=generator)
    noise = torch.randn(num_samples, DIM, generator=generator)
    noise[:, 0] *= 4
    return centers[labels] + noise + offset, labels


def scatter_by_loops(features: Tensor, labels: Tensor, weights: Tensor) -> np.ndarray:
    rows = features.double().numpy()
    within = np.zeros((rows.shape[1], rows.shape[1]))
    for label in set(labels.tolist()):
        members = [i for i in range(len(rows)) if labels[i] == label]
        unit = {i: rows[i] / max(np.linalg.norm(rows[i]), 1e-300) for i in members}
        total = sum(float(weights[i]) for i in members)
        if not total:
            continue
        mean = sum(float(weights[i]) * unit[i] for i in members) / total
        for i in members:
            within += float(weights[i]) * np.outer(unit[i] - mean, unit[i] - mean)
    return within


def scores_by_loops(
    features: Tensor, labels: Tensor, queries: Tensor, shrinkage: float, rule: str
) -> np.ndarray:
    unit = normalize(features.double().numpy())
    center = unit.mean(0)
    means = [unit[labels.numpy() == c].mean(0) for c in range(NUM_CLASSES)]
    covariance = scatter_by_loops(features, labels, torch.ones(len(labels)))
    covariance /= len(labels) - NUM_CLASSES
    dim = len(center)
    target = np.trace(covariance) / dim * np.eye(dim)
    precision = np.linalg.inv((1 - shrinkage) * covariance + shrinkage * target)
    rows = []
    for query in normalize(queries.double().numpy()):
        row = []
        for mean in means:
            a, b = query - center, mean - center
            if rule == "cosine":
                row.append(a @ precision @ b / np.sqrt((a @ precision @ a) * (b @ precision @ b)))
            else:
                row.append(-(query - mean) @ precision @ (query - mean))
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_scatter_matches_a_loop_over_samples(dtype: torch.dtype) -> None:
    features, labels = samples()
    features[3] = 0
    features = features.to(dtype)
    weights = torch.arange(60.0) % 3
    for given_weights in (None, weights):
        found = class_scatter(features, labels, num_classes=6, weights=given_weights)
        plain = torch.ones(60) if given_weights is None else given_weights
        expected = scatter_by_loops(features, labels, plain)
        np.testing.assert_allclose(found.within, expected, rtol=0, atol=1e-5)
        means = class_means(features, labels, num_classes=6, weights=given_weights)
        assert torch.equal(found.means.sums, means.sums)
        assert found.degrees == plain.sum() - NUM_CLASSES


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_strips_of_columns_add_up(dtype: torch.dtype) -> None:
    features = torch.randn(40, 300, generator=torch.Generator().manual_seed(0), dtype=dtype)
    labels = torch.arange(40) % 3
    found = class_scatter(features, labels, num_classes=3).within
    expected = scatter_by_loops(features, labels, torch.ones(40))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert torch.equal(found, found.T)


def test_blocks_of_rows_add_up() -> None:
    features, labels = samples(10_000)
    found = class_scatter(features, labels, num_classes=NUM_CLASSES)
    expected = class_scatter(features.double(), labels, num_classes=NUM_CLASSES)
    np.testing.assert_allclose(found.within, expected.within, rtol=1e-6, atol=1e-3)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 60), max_size=4), st.booleans())
def test_batches_merge_to_the_whole(cuts: list[int], weighted: bool) -> None:
    features, labels = samples()
    weights = torch.rand(60, generator=torch.Generator().manual_seed(1)) if weighted else None
    whole = class_scatter(features.double(), labels, num_classes=NUM_CLASSES, weights=weights)
    merged = empty_scatter(NUM_CLASSES, DIM)
    for rows in torch.arange(60).tensor_split(sorted(cuts)):
        part = None if weights is None else weights[rows]
        merged = merged.add(features[rows].double(), labels[rows], part)
    torch.testing.assert_close(merged.within, whole.within, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(merged.means.sums, whole.means.sums)
    torch.testing.assert_close(merged.center, whole.center)


def test_weights_equal_repetitions() -> None:
    features, labels = samples()
    weights = torch.arange(60) % 4
    weighted = class_scatter(features, labels, num_classes=NUM_CLASSES, weights=weights.double())
    repeated = class_scatter(
        features.repeat_interleave(weights, 0),
        labels.repeat_interleave(weights),
        num_classes=NUM_CLASSES,
    )
    torch.testing.assert_close(weighted.within, repeated.within, rtol=1e-5, atol=1e-6)
    assert weighted.degrees == repeated.degrees


def test_selected_classes_keep_the_scatter_of_all() -> None:
    features, labels = samples()
    scatter = class_scatter(features, labels, num_classes=NUM_CLASSES)
    selected = scatter.select(torch.tensor([2, 0]))
    assert torch.equal(selected.within, scatter.within)
    assert torch.equal(selected.means.means, scatter.means.means[[2, 0]])
    assert selected.degrees == scatter.degrees == 56
    torch.testing.assert_close(selected.center, scatter.means.sums[[0, 2]].sum(0) / 30)


@pytest.mark.parametrize("rule", ["cosine", "nearest"])
@pytest.mark.parametrize("shrinkage", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_match_their_definition(rule: Rule, shrinkage: float, dtype: torch.dtype) -> None:
    features, labels = samples()
    queries, _ = samples(20, seed=5)
    classifier = whitened_class_means(
        features.to(dtype), labels, num_classes=NUM_CLASSES, shrinkage=shrinkage
    )
    assert classifier.whitening.shrinkage == shrinkage
    found = classifier.scores(queries.to(dtype), rule=rule)
    expected = scores_by_loops(features, labels, queries, shrinkage, rule)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert (classifier.predict(queries.to(dtype), rule=rule) == found.argmax(1)).all()


def test_the_whitened_covariance_is_the_identity() -> None:
    features, labels = samples(400)
    scatter = class_scatter(features.double(), labels, num_classes=NUM_CLASSES)
    whitening = Whitening.from_scatter(scatter, shrinkage=0.0)
    whitened = whitening.apply(features.double())
    assert whitened.mean(0).abs().max() < 1e-10
    deviations = torch.cat(
        [whitened[labels == c] - whitened[labels == c].mean(0) for c in range(4)]
    )
    covariance = deviations.T @ deviations / (400 - NUM_CLASSES)
    torch.testing.assert_close(covariance, torch.eye(DIM).double())


def test_the_nearest_rule_is_linear_discriminant_analysis() -> None:
    """With equal priors and unit features, and a shrinkage of zero."""
    data, target = load_digits(return_X_y=True)
    data = normalize(data[:, data.std(0) > 0.5])
    lda = LinearDiscriminantAnalysis(solver="lsqr", priors=np.full(10, 0.1))
    expected = lda.fit(data[:1200], target[:1200]).predict(data[1200:])
    classifier = whitened_class_means(
        torch.from_numpy(data[:1200]),
        torch.from_numpy(target[:1200]),
        num_classes=10,
        shrinkage=0.0,
    )
    found = classifier.predict(torch.from_numpy(data[1200:]), rule="nearest")
    assert (found.numpy() == expected).mean() > 0.995


def test_classes_without_samples_are_never_predicted() -> None:
    features, labels = samples()
    classifier = whitened_class_means(features, labels * 2, num_classes=9)
    rules: tuple[Rule, ...] = ("cosine", "nearest")
    for rule in rules:
        scores = classifier.scores(features, rule=rule)
        assert (scores[:, 1::2] == -torch.inf).all()
        assert scores[:, :8:2].isfinite().all()


def test_one_sample_per_class_is_centered_and_not_whitened() -> None:
    features, labels = samples(NUM_CLASSES)
    classifier = whitened_class_means(features, labels, num_classes=NUM_CLASSES)
    assert classifier.whitening.shrinkage == 1
    unit = torch.nn.functional.normalize(features)
    centered = torch.nn.functional.normalize(unit - unit.mean(0))
    torch.testing.assert_close(classifier.scores(features), centered @ centered.T)


@pytest.mark.parametrize("copies", [2, 1000])
def test_equal_samples_are_centered_and_not_whitened(copies: int) -> None:
    """Rounding of the means is no covariance."""
    features, labels = samples(NUM_CLASSES)
    classifier = whitened_class_means(
        features.repeat(copies, 1), labels.repeat(copies), num_classes=NUM_CLASSES
    )
    assert torch.equal(classifier.whitening.matrix, torch.eye(DIM).double())


def test_more_dimensions_than_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(30) % 3
    centers = torch.randn(3, 200, generator=generator)
    features = centers[labels] + 0.5 * torch.randn(30, 200, generator=generator)
    classifier = whitened_class_means(features, labels, num_classes=3)
    assert classifier.whitening.shrinkage == pytest.approx(200 / 227)
    queries = centers[labels] + 0.5 * torch.randn(30, 200, generator=generator)
    assert (classifier.predict(queries) == labels).all()
    with pytest.raises(ValueError, match=r"\(27 degrees of freedom in 200 dimensions\), got 0"):
        whitened_class_means(features, labels, num_classes=3, shrinkage=0.0)


def test_a_large_offset_costs_little_precision() -> None:
    features, labels = samples(400, offset=1000.0)
    features = features.float()
    expected = whitened_class_means(features.double(), labels, num_classes=NUM_CLASSES)
    found = whitened_class_means(features, labels, num_classes=NUM_CLASSES)
    scores = expected.scores(features.double())
    np.testing.assert_allclose(found.scores(features), scores, rtol=0, atol=2e-3)
    assert (found.predict(features) == scores.argmax(1)).float().mean() > 0.99


@pytest.mark.bad_input
@pytest.mark.parametrize("shrinkage", [-0.1, 1.5, float("nan"), "oas", True])
def test_invalid_shrinkage_is_refused(shrinkage: float) -> None:
    scatter = class_scatter(*samples(), num_classes=NUM_CLASSES)
    message = f"shrinkage must be 'auto' or a number between 0 and 1, got {shrinkage!r}"
    with pytest.raises(ValueError, match=message):
        WhitenedClassMeans.from_scatter(scatter, shrinkage=shrinkage)


@pytest.mark.bad_input
def test_weights_that_do_not_count_as_samples_are_refused() -> None:
    features, labels = samples()
    weights = torch.full((60,), 1 / 60)
    with pytest.raises(ValueError, match=r"sum above 1 in some class, got at most 0.25"):
        whitened_class_means(features, labels, num_classes=NUM_CLASSES, weights=weights)
    fixed = whitened_class_means(
        features, labels, num_classes=NUM_CLASSES, weights=weights, shrinkage=0.3
    )
    expected = whitened_class_means(features, labels, num_classes=NUM_CLASSES, shrinkage=0.3)
    torch.testing.assert_close(fixed.scores(features), expected.scores(features))


@pytest.mark.bad_input
def test_statistics_of_other_shapes_and_dimensions_are_refused() -> None:
    scatter: ClassScatter = class_scatter(*samples(), num_classes=NUM_CLASSES)
    with pytest.raises(ValueError, match=r"got shapes \(4, 5\) and \(3, 5\)"):
        scatter.merge(empty_scatter(3, 5))
    with pytest.raises(ValueError, match=r"features must have shape \(\.\.\., 5\)"):
        WhitenedClassMeans.from_scatter(scatter).predict(torch.ones(2, 6))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_scores_of_the_cpu() -> None:
    features, labels = samples()
    expected = whitened_class_means(features, labels, num_classes=NUM_CLASSES)
    found = whitened_class_means(features.cuda(), labels.cuda(), num_classes=NUM_CLASSES)
    assert found.prototypes.device.type == "cuda"
    scores = found.scores(features.cuda()).cpu()
    np.testing.assert_allclose(scores, expected.scores(features), rtol=0, atol=1e-4)
