"""Classifiers on features of another set, against scikit-learn on the same features."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, log_loss
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import KNeighborsClassifier

from protosphere.data.transfer_sets import stratified_mask
from protosphere.evaluation.transfer import (
    CLASSIFIERS,
    DEFAULT_CS,
    TransferFeatures,
    evaluate_transfer,
    feature_scale,
)

CS = (1e-5, 1e-3, 1e-2, 1.0)


@pytest.fixture(scope="module")
def digits() -> TransferFeatures:
    """Pixels of unevenly many digits of each class, 400 for training and 500 for testing."""
    data = load_digits()
    rng = np.random.default_rng(0)
    order = rng.permutation(len(data.target))
    # Half of the zeros and ones of the test images are missing, so that classes weigh differently.
    order = np.array([index for index in order if data.target[index] > 1 or rng.random() < 0.5])
    features, labels = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)
    train, test = order[:400], order[400:900]
    return TransferFeatures(
        features[train],
        labels[train],
        features[test],
        labels[test],
        stratified_mask(labels[train], fraction=0.2, seed=0),
        num_classes=10,
        metric="top1",
    )


def _fit(features: TransferFeatures, c: float, rows: torch.Tensor) -> LogisticRegression:
    scale = feature_scale(features.train)
    model = LogisticRegression(C=c, tol=1e-8, max_iter=5000)
    return model.fit((features.train / scale)[rows].double().numpy(), features.train_targets[rows])


def test_logistic_regression_is_that_of_scikit_learn(digits: TransferFeatures) -> None:
    everything = torch.ones(400, dtype=torch.bool)
    test = (digits.test / feature_scale(digits.train)).double().numpy()
    for metric in ("top1", "mean_per_class"):
        result = evaluate_transfer(replace(digits, metric=metric), "logistic", cs=[0.1])
        predictions = _fit(digits, 0.1, everything).predict(test)
        labels = digits.test_targets.numpy()
        top1, mean = np.mean(predictions == labels), balanced_accuracy_score(labels, predictions)
        assert result.chosen_c == 0.1
        assert result.score.top1 == pytest.approx(top1)
        assert result.score.mean_per_class == pytest.approx(mean)
        assert result.score.value == pytest.approx(top1 if metric == "top1" else mean)
        assert top1 != pytest.approx(mean, abs=1e-4)


def test_c_is_chosen_on_the_validation_images_and_all_are_fitted_with_it(
    digits: TransferFeatures,
) -> None:
    held_out = digits.is_validation
    scaled = (digits.train / feature_scale(digits.train)).double().numpy()
    labels = digits.train_targets[held_out].numpy()
    models = {c: _fit(digits, c, ~held_out) for c in CS}
    accuracies = {c: model.score(scaled[held_out], labels) for c, model in models.items()}
    best = max(accuracies.values())
    lowest = best - np.sqrt(best * (1 - best) / len(labels))
    losses = {
        c: log_loss(labels, models[c].predict_proba(scaled[held_out]))
        for c, accuracy in accuracies.items()
        if accuracy >= lowest
    }
    assert 1 < len(losses) < len(CS)
    expected = min(losses, key=lambda c: losses[c])
    fractions: list[float] = []
    result = evaluate_transfer(digits, "logistic", cs=CS, progress=fractions.append)
    assert result.chosen_c == expected
    model = _fit(digits, expected, torch.ones(400, dtype=torch.bool))
    test = (digits.test / feature_scale(digits.train)).double().numpy()
    assert result.score.value == pytest.approx(model.score(test, digits.test_targets))
    assert fractions[-1] == 1.0
    assert fractions == sorted(fractions)


def test_the_scale_of_features_does_not_matter(digits: TransferFeatures) -> None:
    tiny = replace(digits, train=digits.train / 1024, test=digits.test / 1024)
    assert feature_scale(tiny.train) == pytest.approx(feature_scale(digits.train) / 1024)
    for classifier in CLASSIFIERS:
        scores = [evaluate_transfer(one, classifier, cs=CS).score for one in (digits, tiny)]
        assert scores[0] == pytest.approx(scores[1])


def test_class_means_are_the_nearest_by_cosine(digits: TransferFeatures) -> None:
    unit = torch.nn.functional.normalize(digits.train.double())
    means = torch.stack([unit[digits.train_targets == label].mean(0) for label in range(10)])
    cosines = torch.nn.functional.cosine_similarity(
        digits.test.double()[:, None], means[None], dim=2
    )
    expected = (cosines.argmax(1) == digits.test_targets).double().mean()
    result = evaluate_transfer(digits, "class_means")
    assert result.score.value == pytest.approx(float(expected))
    assert result.chosen_c is None


def test_whitening_by_the_within_class_covariance(digits: TransferFeatures) -> None:
    unit = torch.nn.functional.normalize(digits.train.double())
    test = torch.nn.functional.normalize(digits.test.double())
    labels = digits.train_targets
    means = torch.stack([unit[labels == label].mean(0) for label in range(10)])
    deviations = unit - means[labels]
    covariance = deviations.T @ deviations / (400 - 10)
    shrinkage = 64 / (64 + 390)
    shrunk = (1 - shrinkage) * covariance
    shrunk += shrinkage * covariance.trace() / 64 * torch.eye(64, dtype=torch.float64)
    precision = torch.linalg.inv(shrunk)
    centered, centers = test - unit.mean(0), means - unit.mean(0)
    scores = centered @ precision @ centers.T / (centers @ precision @ centers.T).diag().sqrt()
    expected = (scores.argmax(1) == digits.test_targets).double().mean()
    assert evaluate_transfer(digits, "whitened_class_means").score.value == pytest.approx(
        float(expected)
    )


def test_nearest_neighbors_are_those_of_scikit_learn(digits: TransferFeatures) -> None:
    model = KNeighborsClassifier(
        20, metric="cosine", weights=lambda distances: np.exp(-distances / 0.07)
    )
    model.fit(digits.train.double().numpy(), digits.train_targets)
    expected = model.score(digits.test.double().numpy(), digits.test_targets)
    assert evaluate_transfer(digits, "knn").score.value == pytest.approx(expected)


def _eleven_points(scores: np.ndarray, positive: np.ndarray) -> float:
    """11-point average precision by a loop over thresholds."""
    levels = []
    for recall in np.arange(11) / 10:
        best = 0.0
        for threshold in scores:
            retrieved = scores >= threshold
            hits = (retrieved & positive).sum()
            if hits / positive.sum() >= recall - 1e-12:
                best = max(best, hits / retrieved.sum())
        levels.append(best)
    return float(np.mean(levels))


@pytest.fixture(scope="module")
def multi_label(digits: TransferFeatures) -> TransferFeatures:
    """Digits labeled by even, above four and prime; some of them do not count."""

    def targets(labels: torch.Tensor) -> torch.Tensor:
        prime = torch.isin(labels, torch.tensor([2, 3, 5, 7]))
        columns = torch.stack([labels % 2 == 0, labels > 4, prime], 1).long()
        columns[::7, 1] = -1
        return columns

    return TransferFeatures(
        digits.train,
        targets(digits.train_targets),
        digits.test[:100],
        targets(digits.test_targets[:100]),
        digits.is_validation,
        num_classes=3,
        metric="map",
    )


def test_several_labels_per_image_are_one_logistic_regression_each(
    multi_label: TransferFeatures,
) -> None:
    scale = feature_scale(multi_label.train)
    train = (multi_label.train / scale).double().numpy()
    test = (multi_label.test / scale).double().numpy()
    precisions = []
    for label in range(3):
        targets, wanted = (
            split[:, label].numpy()
            for split in (multi_label.train_targets, multi_label.test_targets)
        )
        counted, relevant = targets >= 0, wanted >= 0
        model = OneVsRestClassifier(LogisticRegression(C=0.1, tol=1e-8, max_iter=5000))
        model.fit(train[counted], targets[counted])
        scores = model.decision_function(test)[relevant]
        precisions.append(_eleven_points(scores, wanted[relevant] == 1))
    result = evaluate_transfer(multi_label, "logistic", cs=[0.1])
    assert result.score.value == pytest.approx(np.mean(precisions), abs=1e-9)
    assert result.score.top1 is None
    assert evaluate_transfer(multi_label, "logistic", cs=CS).chosen_c in CS


def test_the_default_grid_has_ten_values_at_equal_ratios() -> None:
    assert (len(DEFAULT_CS), DEFAULT_CS[0], DEFAULT_CS[-1]) == (10, 1e-5, 100.0)
    assert np.diff(np.log10(DEFAULT_CS)) == pytest.approx([7 / 9] * 9, abs=0.01)


@pytest.mark.bad_input
def test_what_cannot_be_computed_is_refused(
    digits: TransferFeatures, multi_label: TransferFeatures
) -> None:
    with pytest.raises(ValueError, match="must be logistic for the metric map, got 'knn'"):
        evaluate_transfer(multi_label, "knn")
    none = torch.zeros(400, dtype=torch.bool)
    for mask in (none, ~none):
        with pytest.raises(ValueError, match="choosing C needs validation images"):
            evaluate_transfer(replace(digits, is_validation=mask), "logistic")
    with pytest.raises(ValueError, match=r"C must be positive numbers.*got \[0\]"):
        evaluate_transfer(digits, "logistic", cs=[0])


def test_images_that_are_fitted_do_not_choose_c() -> None:
    """With random labels the fitted images would choose the largest C, the others the smallest."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(120, 20, generator=generator)
    labels = torch.randint(0, 2, (120,), generator=generator)
    is_validation = torch.arange(120) % 2 == 0
    data = TransferFeatures(features, labels, features, labels, is_validation, 2, "top1")
    assert evaluate_transfer(data, "logistic", cs=[1e-4, 100.0]).chosen_c == 1e-4
