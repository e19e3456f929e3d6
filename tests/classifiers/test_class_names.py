"""Class names of PrototypeClassifier: which are valid, and how those of two dtypes are joined."""

from typing import Any

import numpy as np
import pytest

from protosphere.classifiers import PrototypeClassifier

LARGE = 2**60 + np.arange(3)  # Equal when rounded to float64.
FEATURES = np.random.default_rng(0).normal(size=(90, 5))
LABELS = np.arange(90) % 3


def objects(replacement: Any) -> np.ndarray:
    labels = LABELS.astype(object)
    labels[[3, 7, 9]] = replacement
    return labels


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("replacement", "message"),
    [
        (np.nan, "Input y contains NaN"),
        (np.float32(np.nan), "Input y contains NaN"),
        (np.inf, "Input y contains infinity"),
        (0.5, "y must hold class names or whole numbers, got continuous values"),
        (None, "y must hold only strings or only whole numbers, got NoneType, int"),
    ],
    ids=str,
)
def test_objects_that_are_not_whole_numbers_are_refused(replacement: Any, message: str) -> None:
    for method in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match=message):
            getattr(PrototypeClassifier(), method)(FEATURES, objects(replacement))


def test_objects_may_be_whole_numbers_of_any_type() -> None:
    labels = objects(2.0)
    labels[0], labels[1] = np.int16(0), np.float32(1)
    classifier = PrototypeClassifier().fit(FEATURES, labels)
    assert classifier.classes_.tolist() == [0, 1, 2]
    classifier.partial_fit(FEATURES, LABELS).calibrate(FEATURES, LABELS)
    assert classifier.classes_.tolist() == [0, 1, 2]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "others", [np.uint64(2**63 + 5), np.uint64(7), 7.0, np.float32(7)], ids=repr
)
def test_classes_that_a_common_dtype_would_merge_are_refused(others: Any) -> None:
    classifier = PrototypeClassifier().fit(FEATURES, LARGE[LABELS])
    names = np.array([others] * 90)
    message = r"class names must be exact in float64, the common type of int64 and .*, got 11529215"
    with pytest.raises(ValueError, match=message):
        classifier.add_class(names[0], FEATURES)
    with pytest.raises(ValueError, match=message):
        classifier.partial_fit(FEATURES, names)
    with pytest.raises(ValueError, match=message):
        classifier.partial_fit(FEATURES, LARGE[LABELS], classes=names[:1])
    with pytest.raises(ValueError, match="class names must be exact in float64"):
        classifier.calibrate(FEATURES, names)
    assert classifier.classes_.tolist() == LARGE.tolist()


def test_classes_of_different_dtypes_that_stay_exact_are_joined() -> None:
    classifier = PrototypeClassifier().fit(FEATURES, LABELS)
    classifier.partial_fit(FEATURES, LABELS.astype(float)).add_class(np.uint64(7), FEATURES)
    assert classifier.classes_.tolist() == [0, 1, 2, 7]
    assert classifier.weights_.tolist() == [60, 60, 60, 90]
    large = PrototypeClassifier().fit(FEATURES, LARGE[LABELS]).add_class(np.int8(7), FEATURES)
    assert large.classes_.tolist() == [7, *LARGE.tolist()]
