"""Results by class against loops over labels and predictions."""

from collections import Counter

import numpy as np
import pytest

from protosphere.evaluation.class_report import class_results, confused_pairs, weakest_classes

NAMES = [f"class {index}" for index in range(6)]
Arrays = dict[str, np.ndarray]


@pytest.fixture
def labels() -> np.ndarray:
    """Classes of different sizes; the last one has no images."""
    return np.repeat(np.arange(5), [4, 9, 2, 30, 7])


@pytest.fixture
def predictions(labels: np.ndarray) -> np.ndarray:
    """Class 4 is classified without an error."""
    random = np.random.default_rng(0).integers(0, 6, len(labels))
    return np.where((labels == 4) | (np.arange(len(labels)) % 3 == 0), labels, random)


@pytest.fixture
def arrays(labels: np.ndarray, predictions: np.ndarray) -> Arrays:
    confusion = np.zeros((6, 6), np.int32)
    np.add.at(confusion, (labels, predictions), 1)
    return {
        "confusion": confusion,
        "class_confidence": np.array([0.5, 0.6, 0.7, 0.8, 0.9, np.nan], np.float32),
    }


def test_each_class_is_counted(arrays: Arrays, labels: np.ndarray, predictions: np.ndarray) -> None:
    before = {name: array.copy() for name, array in arrays.items()}
    for index, result in enumerate(class_results(arrays, NAMES)):
        given = predictions[labels == index]
        assert (result.name, result.num_samples) == (NAMES[index], len(given))
        assert result.num_correct == (given == index).sum()
        wrong = Counter(NAMES[one] for one in given.tolist() if one != index)
        assert result.num_confused == max(wrong.values(), default=0)
        if wrong:
            assert result.confused_with is not None
            assert wrong[result.confused_with] == result.num_confused
        else:
            assert result.confused_with is None
        if len(given):
            assert result.accuracy == pytest.approx((given == index).mean())
            assert result.mean_confidence == pytest.approx(arrays["class_confidence"][index])
        else:
            assert (result.accuracy, result.mean_confidence) == (None, None)
    assert all(np.array_equal(before[name], arrays[name], equal_nan=True) for name in arrays)


def test_the_weakest_classes_come_first_and_have_errors(arrays: Arrays) -> None:
    results = class_results(arrays, NAMES)
    weakest = weakest_classes(results)
    accuracies = [one.accuracy for one in weakest]
    assert accuracies == sorted(one.accuracy for one in results[:4] if one.accuracy is not None)
    assert {one.name for one in weakest} == set(NAMES[:4])
    assert weakest_classes(results, 2) == weakest[:2]


def test_confused_pairs_are_the_largest_counts(
    arrays: Arrays, labels: np.ndarray, predictions: np.ndarray
) -> None:
    counts = Counter(
        (NAMES[label], NAMES[prediction])
        for label, prediction in zip(labels.tolist(), predictions.tolist(), strict=True)
        if label != prediction
    )
    pairs = confused_pairs(arrays, NAMES, count=100)
    assert {(one.name, one.predicted): one.num_confused for one in pairs} == counts
    sizes = [one.num_confused for one in pairs]
    assert sizes == sorted(sizes, reverse=True)
    assert [one.num_samples for one in pairs] == [
        (labels == NAMES.index(one.name)).sum() for one in pairs
    ]
    assert confused_pairs(arrays, NAMES) == pairs[:5]


def test_without_errors_nothing_is_weak_or_confused() -> None:
    arrays = {"confusion": np.diag([3, 0, 2]), "class_confidence": np.ones(3)}
    assert weakest_classes(class_results(arrays, NAMES[:3])) == []
    assert confused_pairs(arrays, NAMES[:3]) == []
