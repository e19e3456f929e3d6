"""Results by class: accuracy, confusion and confidence of each, the weakest, the confused pairs."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class ClassResult(NamedTuple):
    """The result of one class.

    Attributes:
        name: Name of the class.
        num_samples: Number of its images.
        num_correct: Number of its images that are classified correctly.
        accuracy: Their fraction; None for a class without images.
        confused_with: The class that most of its other images are assigned to, the first of equals;
            None if all are correct.
        num_confused: Number of these images.
        mean_confidence: Mean softmax probability of the predicted classes of its images; None for a
            class without images.
    """

    name: str
    num_samples: int
    num_correct: int
    accuracy: float | None
    confused_with: str | None
    num_confused: int
    mean_confidence: float | None


class ConfusedPair(NamedTuple):
    """A class whose images are assigned to another one.

    Attributes:
        name: Name of the true class.
        predicted: Name of the predicted class.
        num_confused: Number of images of the true class that are assigned to the predicted one.
        num_samples: Number of images of the true class.
    """

    name: str
    predicted: str
    num_confused: int
    num_samples: int


def class_results(
    arrays: Mapping[str, NDArray[Any]], class_names: Sequence[str]
) -> list[ClassResult]:
    """Return the result of each class, in the order of the classes.

    Args:
        arrays: Arrays of an evaluation, ``confusion`` and ``class_confidence``; see
            :func:`protosphere.evaluation.geometry_arrays`.
        class_names: Name of each class.

    >>> confusion = np.array([[3, 1], [0, 2]])
    >>> arrays = {"confusion": confusion, "class_confidence": np.array([0.9, 0.8])}
    >>> first, second = class_results(arrays, ["ant", "bee"])
    >>> first.accuracy, first.confused_with, first.num_confused, second.confused_with
    (0.75, 'bee', 1, None)
    """
    confusion = np.asarray(arrays["confusion"], np.int64)
    errors = confusion.copy()
    np.fill_diagonal(errors, 0)
    results = []
    for index, name in enumerate(class_names):
        num_samples, num_correct = int(confusion[index].sum()), int(confusion[index, index])
        other = int(errors[index].argmax())
        num_confused = int(errors[index, other])
        confidence = float(arrays["class_confidence"][index])
        results.append(
            ClassResult(
                name,
                num_samples,
                num_correct,
                num_correct / num_samples if num_samples else None,
                class_names[other] if num_confused else None,
                num_confused,
                confidence if num_samples else None,
            )
        )
    return results


def weakest_classes(results: Sequence[ClassResult], count: int = 5) -> list[ClassResult]:
    """Return the classes of the lowest accuracy, none of which is classified without an error.

    Args:
        results: Result of each class.
        count: Largest number of classes to return.
    """
    imperfect = [result for result in results if result.num_correct < result.num_samples]
    return sorted(imperfect, key=lambda result: result.num_correct / result.num_samples)[:count]


def confused_pairs(
    arrays: Mapping[str, NDArray[Any]], class_names: Sequence[str], count: int = 5
) -> list[ConfusedPair]:
    """Return the pairs of true and predicted class with the most images, the largest first.

    Args:
        arrays: Arrays of an evaluation, with ``confusion``.
        class_names: Name of each class.
        count: Largest number of pairs to return.

    >>> confused_pairs({"confusion": np.array([[3, 1], [0, 2]])}, ["ant", "bee"])
    [ConfusedPair(name='ant', predicted='bee', num_confused=1, num_samples=4)]
    """
    confusion = np.asarray(arrays["confusion"], np.int64)
    errors = confusion.copy()
    np.fill_diagonal(errors, 0)
    largest = np.argsort(-errors, axis=None, kind="stable")[:count]
    rows, columns = np.unravel_index(largest, errors.shape)
    return [
        ConfusedPair(
            class_names[row],
            class_names[column],
            int(errors[row, column]),
            int(confusion[row].sum()),
        )
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
        if errors[row, column]
    ]
