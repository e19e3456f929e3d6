"""Few-shot classification: draws, means and deviations by plain loops."""

from statistics import mean, stdev

import pytest
import torch
from sklearn.datasets import load_digits

from protosphere.data.splits import DataError
from protosphere.evaluation.few_shot import check_shots, draw_shots, evaluate_few_shot
from protosphere.evaluation.transfer import TransferFeatures, evaluate_transfer


@pytest.fixture(scope="module")
def digits() -> TransferFeatures:
    data = load_digits()
    features, labels = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)
    return TransferFeatures(
        features[:600],
        labels[:600],
        features[600:900],
        labels[600:900],
        torch.zeros(600, dtype=torch.bool),
        num_classes=10,
        metric="top1",
    )


def _accuracy(features: TransferFeatures, index: torch.Tensor) -> float:
    unit = torch.nn.functional.normalize(features.train[index].double())
    labels = features.train_targets[index]
    means = torch.stack([unit[labels == label].mean(0) for label in range(10)])
    scores = features.test.double() @ torch.nn.functional.normalize(means).T
    return float((scores.argmax(1) == features.test_targets).double().mean())


def test_mean_and_deviation_over_draws(digits: TransferFeatures) -> None:
    accuracies = [
        _accuracy(digits, draw_shots(digits.train_targets, shots=3, seed=7, draw=draw))
        for draw in range(4)
    ]
    result = evaluate_few_shot(digits, "class_means", shots=3, num_draws=4, seed=7)
    assert result.score.value == pytest.approx(mean(accuracies))
    assert result.std == pytest.approx(stdev(accuracies))
    assert (result.shots, result.num_draws) == (3, 4)


def test_draws_have_as_many_of_each_class_and_none_twice(digits: TransferFeatures) -> None:
    labels = digits.train_targets
    draws = [draw_shots(labels, shots=5, seed=0, draw=draw) for draw in range(3)]
    for index in draws:
        assert torch.bincount(labels[index]).tolist() == [5] * 10
        assert len(index.unique()) == 50
    assert len({tuple(index.tolist()) for index in draws}) == 3
    assert torch.equal(draws[0], draw_shots(labels, shots=5, seed=0, draw=0))
    assert not torch.equal(draws[0], draw_shots(labels, shots=5, seed=1, draw=0))
    assert set(draw_shots(labels, shots=2, seed=0, draw=0).tolist()) < set(draws[0].tolist())


def test_all_images_of_equal_classes_are_the_classifier_of_all_images() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(4).repeat(6)
    features = torch.randn(24, 5, generator=generator) + torch.eye(5)[labels]
    whole = TransferFeatures(
        features, labels, features, labels, torch.zeros(24, dtype=torch.bool), 4, "mean_per_class"
    )
    for classifier in ("class_means", "whitened_class_means"):
        few = evaluate_few_shot(whole, classifier, shots=6, num_draws=2)
        assert few.score == pytest.approx(evaluate_transfer(whole, classifier).score)
        assert few.std == pytest.approx(0)


def test_more_images_are_better_and_whitening_helps(digits: TransferFeatures) -> None:
    values = [
        evaluate_few_shot(digits, "class_means", shots=shots, num_draws=5).score.value
        for shots in (1, 5, 20)
    ]
    assert values == sorted(values)
    whitened = evaluate_few_shot(digits, "whitened_class_means", shots=20, num_draws=5).score.value
    assert whitened > values[-1]


def test_a_single_draw_has_no_deviation(digits: TransferFeatures) -> None:
    assert evaluate_few_shot(digits, "class_means", shots=1, num_draws=1).std is None


@pytest.mark.bad_input
def test_what_cannot_be_drawn_is_refused(digits: TransferFeatures) -> None:
    with pytest.raises(DataError, match="shots must be at most 2, the number of training images"):
        check_shots(torch.tensor([3, 3, 1, 1, 1]), [1, 3])
    with pytest.raises(ValueError, match="shots must be at least 1, got 0"):
        check_shots(torch.tensor([0]), [0])
    with pytest.raises(ValueError, match="num_draws must be at least 1, got 0"):
        evaluate_few_shot(digits, "class_means", shots=1, num_draws=0)
