"""Long-tailed evaluation against loops over samples, scikit-learn and a scalar search."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.metrics import accuracy_score, log_loss, recall_score
from torch import Tensor

from protosphere.classifiers import (
    CosineClassifier,
    FixedFrameClassifier,
    LinearClassifier,
    MeanClassifier,
)
from protosphere.classifiers.protocol import Head
from protosphere.classifiers.whitening import whitened_class_means
from protosphere.data.long_tail import long_tail_counts
from protosphere.evaluation.inference import LabeledFeatures
from protosphere.evaluation.long_tail import (
    ClassifierResult,
    balanced_temperature,
    class_accuracies,
    class_halves,
    classify_long_tail,
    group_accuracy,
    shot_groups,
)
from protosphere.evaluation.temperature_scaling import fit_temperature

COUNTS = (120, 40, 15, 6)


def _samples(counts: tuple[int, ...], *, seed: int) -> LabeledFeatures:
    """Overlapping clouds around fixed directions."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(len(counts), 6, generator=torch.Generator().manual_seed(7))
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    noise = 1.2 * torch.randn(len(labels), 6, generator=generator)
    return LabeledFeatures(centers[labels] + noise, labels)


TRAIN, TEST = _samples(COUNTS, seed=0), _samples((30, 31, 20, 25), seed=1)


def _classify(head: Head, **options: object) -> dict[str, ClassifierResult]:
    results = classify_long_tail(head, TRAIN, TEST, **options)  # type: ignore[arg-type]
    return {result.classifier: result for result in results}


def _unit(row: list[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in row))
    return [value / length for value in row]


def _cosines_by_loops(train: LabeledFeatures, features: Tensor) -> list[list[float]]:
    sums = [[0.0] * 6 for _ in COUNTS]
    for row, label in zip(train.features.tolist(), train.labels.tolist(), strict=True):
        for axis, value in enumerate(_unit(row)):
            sums[label][axis] += value
    means = [_unit(row) for row in sums]
    return [
        [sum(a * b for a, b in zip(_unit(row), mean, strict=True)) for mean in means]
        for row in features.tolist()
    ]


def test_groups_follow_the_number_of_training_images() -> None:
    assert shot_groups([101, 100, 20, 19, 1]) == {"many": [0], "medium": [1, 2], "few": [3, 4]}
    counts = long_tail_counts(500, 100, 0.01)
    sizes = {name: len(classes) for name, classes in shot_groups(counts).items()}
    assert sizes == {"many": 35, "medium": 35, "few": 30}
    # At ratio 0.1 the smallest class of CIFAR-100 has 50 images: there are no few-shot classes.
    assert set(shot_groups(long_tail_counts(500, 100, 0.1))) == {"many", "medium"}


def test_accuracies_equal_those_of_scikit_learn() -> None:
    labels = torch.randint(5, (200,))
    predictions = torch.where(torch.rand(200) < 0.6, labels, torch.randint(5, (200,)))
    expected = recall_score(labels, predictions, average=None)
    assert class_accuracies(predictions, labels, num_classes=5) == pytest.approx(expected.tolist())
    some = torch.isin(labels, torch.tensor([1, 3]))
    assert group_accuracy(predictions, labels, [1, 3]) == pytest.approx(
        accuracy_score(labels[some], predictions[some])
    )


def test_classes_without_images_have_no_accuracy() -> None:
    labels = torch.tensor([0, 2])
    assert class_accuracies(labels, labels, num_classes=4) == [1.0, None, 1.0, None]
    assert group_accuracy(labels, labels, [1, 3]) is None


HEADS = [
    LinearClassifier(6, 4),
    CosineClassifier(6, 4, temperature=0.3),
    CosineClassifier(6, 4, temperature=0.3, learn_temperature=True),
    FixedFrameClassifier(6, 4),
]


@pytest.mark.parametrize("head", HEADS, ids=lambda head: str(head)[:60])
def test_head_and_its_adjustment(head: Head) -> None:
    results = _classify(head, logit_adjustment=0.7)
    logits = head(TEST.features).detach()
    total = sum(COUNTS)
    adjusted = [
        [value - 0.7 * math.log(count / total) for value, count in zip(row, COUNTS, strict=True)]
        for row in logits.tolist()
    ]
    for name, values in (("head", logits.numpy()), ("logit_adjusted_head", np.array(adjusted))):
        result = results[name]
        assert result.predictions.tolist() == values.argmax(1).tolist()
        probabilities = np.exp(values - values.max(1, keepdims=True)).astype(np.float64)
        probabilities /= probabilities.sum(1, keepdims=True)
        assert result.nll == pytest.approx(log_loss(TEST.labels, probabilities), rel=1e-5)
    expected = {"LinearClassifier": None, "CosineClassifier": 0.3, "FixedFrameClassifier": 0.1}
    assert results["head"].temperature == pytest.approx(expected[type(head).__name__])


def test_a_prior_that_is_uniform_changes_nothing() -> None:
    head = LinearClassifier(6, 4)
    train = LabeledFeatures(TEST.features[:4], torch.arange(4))
    results = {one.classifier: one for one in classify_long_tail(head, train, TEST)}
    assert torch.equal(results["head"].predictions, results["logit_adjusted_head"].predictions)


def test_class_means_are_exact_and_calibrated_without_changing_predictions() -> None:
    results = _classify(CosineClassifier(6, 4, temperature=0.3))
    expected = np.array(_cosines_by_loops(TRAIN, TEST.features))
    plain, calibrated = results["class_means"], results["calibrated_class_means"]
    assert plain.predictions.tolist() == expected.argmax(1).tolist()
    assert torch.equal(plain.predictions, calibrated.predictions)
    assert plain.temperature == 0.3
    probabilities = np.exp(expected / 0.3)
    probabilities /= probabilities.sum(1, keepdims=True)
    assert plain.nll == pytest.approx(log_loss(TEST.labels, probabilities), rel=1e-5)
    assert calibrated.nll != pytest.approx(plain.nll)


def _search(cosines: np.ndarray, labels: np.ndarray) -> float:
    """The temperature with the smallest mean over classes of their mean losses."""

    def balanced_loss(log_temperature: float) -> float:
        logits = cosines / math.exp(log_temperature)
        losses = [
            math.log(sum(math.exp(value - row[label]) for value in row))
            for row, label in zip(logits.tolist(), labels.tolist(), strict=True)
        ]
        classes = sorted(set(labels.tolist()))
        return float(np.mean([np.mean(np.array(losses)[labels == one]) for one in classes]))

    options = {"xatol": 1e-10}
    result = minimize_scalar(balanced_loss, bounds=(-5, 3), method="bounded", options=options)
    return math.exp(float(result.x))


def test_the_temperature_is_fitted_to_validation_images() -> None:
    validation = _samples((9, 60, 12, 30), seed=5)
    results = _classify(LinearClassifier(6, 4), validation=validation)
    cosines = np.array(_cosines_by_loops(TRAIN, validation.features))
    expected = _search(cosines, validation.labels.numpy())
    calibrated = results["calibrated_class_means"]
    assert calibrated.temperature == pytest.approx(expected, rel=1e-4)
    assert results["class_means"].temperature == 0.1
    logits = np.array(_cosines_by_loops(TRAIN, TEST.features)) / expected
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert calibrated.nll == pytest.approx(log_loss(TEST.labels, probabilities), rel=1e-4)


def test_without_validation_images_each_half_is_fitted_to_the_other() -> None:
    result = _classify(LinearClassifier(6, 4))["calibrated_class_means"]
    cosines = np.array(_cosines_by_loops(TRAIN, TEST.features))
    labels, half = TEST.labels.numpy(), class_halves(TEST.labels).numpy()
    losses, temperatures = 0.0, 0.0
    for one in (half, ~half):
        temperature = _search(cosines[~one], labels[~one])
        probabilities = np.exp(cosines[one] / temperature)
        probabilities /= probabilities.sum(1, keepdims=True)
        losses += log_loss(labels[one], probabilities, labels=range(4)) * one.sum()
        temperatures += temperature * one.sum()
    assert result.nll == pytest.approx(losses / len(labels), rel=1e-4)
    assert result.temperature == pytest.approx(temperatures / len(labels), rel=1e-4)


def test_halves_have_the_same_number_of_each_class() -> None:
    labels = torch.randint(6, (301,))
    half = class_halves(labels)
    for index in range(6):
        first = int(half[labels == index].sum())
        assert abs(2 * first - int((labels == index).sum())) <= 1
    assert abs(2 * int(half.sum()) - 301) <= 1


def test_weights_act_as_repetitions() -> None:
    logits, labels = torch.randn(12, 3), torch.randint(3, (12,))
    times = torch.randint(4, (12,))
    weighted = fit_temperature(logits, labels, weights=times.float())
    repeated = fit_temperature(logits.repeat_interleave(times, 0), labels.repeat_interleave(times))
    assert weighted.temperature == pytest.approx(repeated.temperature, rel=1e-8)
    assert weighted.nll == pytest.approx(repeated.nll, rel=1e-8)


def test_whitened_class_means_are_those_of_the_classifier() -> None:
    result = _classify(LinearClassifier(6, 4), shrinkage=0.3)["whitened_class_means"]
    expected = whitened_class_means(TRAIN.features, TRAIN.labels, num_classes=4, shrinkage=0.3)
    assert torch.equal(result.predictions, expected.predict(TEST.features))
    assert (result.temperature, result.nll, result.ece) == (None, None, None)


def test_class_means_as_head_are_not_adjusted() -> None:
    head = MeanClassifier(6, 4)
    head.set_means(torch.randn(4, 6))
    assert "logit_adjusted_head" not in _classify(head)
    assert "logit_adjusted_head" not in _classify(LinearClassifier(6, 4), logit_adjustment=None)


def test_class_means_help_the_tail() -> None:
    """A head that knows only the prior predicts the largest class; class means do not."""
    head = LinearClassifier(6, 4)
    with torch.no_grad():
        head.prototypes.zero_()
        assert head.bias is not None
        head.bias.copy_(torch.tensor(COUNTS).log())
    results = _classify(head)
    few = shot_groups(COUNTS)["few"]
    assert group_accuracy(results["head"].predictions, TEST.labels, few) == 0
    helped = group_accuracy(results["class_means"].predictions, TEST.labels, few)
    assert helped is not None
    assert helped > 0.3
    assert balanced_temperature(torch.eye(2), torch.tensor([0, 1])) == 1e-3


@pytest.mark.bad_input
def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 samples to divide, got 1"):
        class_halves(torch.tensor([0]))
    logits, labels = torch.randn(3, 2), torch.tensor([0, 1, 1])
    with pytest.raises(ValueError, match=r"one value per sample, shape \(3,\), got \(2,\)"):
        fit_temperature(logits, labels, weights=torch.ones(2))
    for weights in (torch.zeros(3), torch.tensor([1.0, -1, 1]), torch.tensor([1.0, math.nan, 1])):
        with pytest.raises(ValueError, match="finite, not negative and not all zero"):
            fit_temperature(logits, labels, weights=weights)
