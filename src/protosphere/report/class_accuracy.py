"""Accuracy and confusion of classes as numbers for figures and tables, in float64."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class WorstClass:
    """A class of low accuracy.

    Attributes:
        index: Class index.
        accuracy: Fraction of its images that are classified correctly.
        num_samples: Number of its images.
        confused_with: Class that most of its wrong predictions are of, the first of equals.
        fraction: Fraction of its images that are predicted as this class.
    """

    index: int
    accuracy: float
    num_samples: int
    confused_with: int
    fraction: float


def class_accuracies(confusion: NDArray[Any]) -> NDArray[np.float64]:
    """Return the accuracy of each class, NaN for a class without images.

    Args:
        confusion: Counts with true classes in rows and predicted classes in columns.

    >>> class_accuracies(np.array([[3, 1], [0, 0]])).tolist()
    [0.75, nan]
    """
    counts = np.asarray(confusion, np.float64)
    with np.errstate(invalid="ignore"):
        accuracies: NDArray[np.float64] = counts.diagonal() / counts.sum(1)
    return accuracies


def worst_classes(confusion: NDArray[Any], count: int) -> list[WorstClass]:
    """Return the classes of the lowest accuracy, lowest first.

    Classes without images and classes without a wrong prediction are left out.

    Args:
        confusion: Counts with true classes in rows and predicted classes in columns.
        count: Largest number of classes to return.

    >>> worst_classes(np.array([[3, 1], [0, 2]]), 1)[0].confused_with
    1
    """
    accuracies = class_accuracies(confusion)
    order = [int(i) for i in np.argsort(accuracies, kind="stable") if accuracies[i] < 1]
    worst = []
    for index in order[:count]:
        errors = np.array(confusion[index], np.int64)
        num_samples = int(errors.sum())
        errors[index] = 0
        other = int(errors.argmax())
        worst.append(
            WorstClass(
                index,
                float(accuracies[index]),
                num_samples,
                other,
                int(errors[other]) / num_samples,
            )
        )
    return worst


def confused_columns(confusion: NDArray[Any], rows: Sequence[int], max_columns: int) -> list[int]:
    """Return the classes that the images of some classes are predicted as, the rows first.

    Args:
        confusion: Counts with true classes in rows and predicted classes in columns.
        rows: Classes of which the predictions are.
        max_columns: Largest number of classes to return; others with the most wrong predictions
            follow the rows.

    >>> confused_columns(np.array([[3, 0, 1], [0, 2, 0], [0, 0, 4]]), [0], 3)
    [0, 2]
    """
    errors = np.array(confusion, np.float64)
    np.fill_diagonal(errors, 0)
    chosen = list(rows)
    errors = (
        errors[chosen] / np.maximum(np.asarray(confusion, np.float64)[chosen].sum(1), 1)[:, None]
    )
    largest = errors.max(0) if chosen else np.zeros(len(confusion))
    others = [int(i) for i in np.argsort(-largest, kind="stable") if largest[i] and i not in chosen]
    return chosen + others[: max(max_columns - len(chosen), 0)]


def group_means(
    positions: NDArray[Any], values: NDArray[Any], num_groups: int
) -> list[tuple[float, float]]:
    """Return the mean value of groups of neighboring positions, each with its median position.

    Args:
        positions: Position of each class, such as its number of training images.
        values: Value of each class; classes whose value is NaN are left out.
        num_groups: Number of groups of about equal size.

    >>> group_means(np.array([1, 2, 8, 9]), np.array([0.0, 1.0, 2.0, 4.0]), 2)
    [(1.5, 0.5), (8.5, 3.0)]
    """
    known = np.isfinite(np.asarray(values, np.float64))
    places = np.asarray(positions, np.float64)[known]
    numbers = np.asarray(values, np.float64)[known]
    order = np.argsort(places, kind="stable")
    groups = [group for group in np.array_split(order, num_groups) if len(group)]
    return [(float(np.median(places[group])), float(numbers[group].mean())) for group in groups]
