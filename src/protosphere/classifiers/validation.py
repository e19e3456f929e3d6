"""Validation of arrays given to the scikit-learn estimator, with error messages of our own."""

from collections.abc import Hashable
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protosphere.classifiers.checks import check_temperature
from protosphere.classifiers.class_table import ClassTable, join_names
from protosphere.classifiers.whitening import check_rule, check_shrinkage

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import (
        _check_sample_weight,
        _num_samples,
        assert_all_finite,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )
except ImportError as error:  # pragma: no cover
    raise ImportError(
        'PrototypeClassifier needs scikit-learn: pip install "protosphere[train]"'
    ) from error

__all__ = [
    "BaseEstimator",
    "ClassifierMixin",
    "available_if",
    "can_add_samples",
    "check_is_fitted",
    "check_names",
    "class_indices",
    "fitted_table",
    "label_new_class",
    "other_classes",
    "validate_classes",
    "validate_features",
    "validate_labels",
    "validate_options",
    "validate_samples",
]


def validate_features(
    estimator: BaseEstimator,
    features: ArrayLike,
    *,
    reset: bool = False,
) -> NDArray[Any]:
    """Return features as a float array of shape (samples, dim).

    Whether the values are finite is not checked here: it shows in the norms, which are computed
    anyway, and a separate pass over a million features would be noticed.

    Args:
        estimator: Estimator whose ``n_features_in_`` the features must have.
        features: The features.
        reset: Whether to set ``n_features_in_`` instead.
    """
    result: NDArray[Any] = validate_data(
        estimator,
        features,
        reset=reset,
        dtype=[np.float32, np.float64],
        ensure_all_finite=False,
    )
    return result


def validate_labels(labels: ArrayLike, *, num_samples: int) -> NDArray[Any]:
    """Return labels as an array of shape (samples,) of strings or whole numbers.

    Raises:
        ValueError: The labels have another shape, another number of samples or another type.
    """
    try:
        result: NDArray[Any] = column_or_1d(labels, warn=True)
    except ValueError:
        raise ValueError(
            f"y must be one-dimensional, one label per sample; got shape {np.shape(labels)}"
        ) from None
    if len(result) != num_samples:
        raise ValueError(f"y must have one label per sample, {num_samples}; got {len(result)}")
    check_names(result, argument="y")
    return result


def check_names(names: NDArray[Any], *, argument: str) -> None:
    """Raise ValueError unless the names of classes are strings or whole numbers.

    Args:
        names: Class names, or the class of each sample.
        argument: Name of the argument in error messages.
    """
    kind = names.dtype.kind
    if kind == "f":
        assert_all_finite(names, input_name=argument)
        if bool((names != np.floor(names)).any()):
            raise ValueError(
                f"{argument} must hold class names or whole numbers, got continuous values"
            )
    elif kind == "O":
        values = names.tolist()
        if not any(all(isinstance(value, kind) for value in values) for kind in (str, Real)):
            kinds = ", ".join(sorted({type(value).__name__ for value in values}))
            raise ValueError(
                f"{argument} must hold only strings or only whole numbers, got {kinds}"
            )
        numbers = [float(value) for value in values if not isinstance(value, str | int)]
        check_names(np.array(numbers, float), argument=argument)
    elif kind not in "iubUT":
        raise ValueError(f"{argument} must hold class names or whole numbers, got {names.dtype}")


def validate_samples(
    estimator: BaseEstimator,
    features: ArrayLike,
    labels: ArrayLike | None,
    sample_weight: ArrayLike | None,
    *,
    reset: bool,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Return features, labels and sample weights as arrays.

    Args:
        estimator: Estimator whose ``n_features_in_`` the features must have.
        features: The features.
        labels: Class of each sample.
        sample_weight: Weight of each sample, or None.
        reset: Whether to set ``n_features_in_`` instead.

    Raises:
        ValueError: The arrays do not match or are not valid.
    """
    rows = validate_features(estimator, features, reset=reset)
    if labels is None:
        raise ValueError(
            f"{type(estimator).__name__} requires y to be passed, but the target y is None"
        )
    targets = validate_labels(labels, num_samples=len(rows))
    return rows, targets, _validate_sample_weight(sample_weight, rows)


def validate_options(estimator: BaseEstimator) -> dict[str, Any]:
    """Return the options that a prototype classifier is fitted with.

    Args:
        estimator: The classifier.

    Raises:
        ValueError: An option, or the temperature, is not valid.
    """
    check_rule(estimator.rule)
    whitening, shrinkage = estimator.whitening, estimator.shrinkage
    if whitening not in ("none", "shrunk"):
        raise ValueError(f"whitening must be 'none' or 'shrunk', got {whitening!r}")
    check_shrinkage(shrinkage, names=("auto", "cv"))
    if whitening == "none" and shrinkage != "auto":
        raise ValueError(f"shrinkage={shrinkage!r} needs whitening='shrunk'")
    check_temperature(estimator.temperature)
    return {"rule": estimator.rule, "whitening": whitening, "shrinkage": shrinkage}


def can_add_samples(estimator: BaseEstimator) -> bool:
    """Return True if samples can be added to a prototype classifier; raise AttributeError if not.

    Args:
        estimator: The classifier.
    """
    cross_validated = (estimator.whitening, estimator.shrinkage) == ("shrunk", "cv")
    if cross_validated and not estimator.__sklearn_is_fitted__():
        raise AttributeError("shrinkage='cv' needs all samples at once: call fit first")
    return True


def fitted_table(estimator: BaseEstimator, attribute: str) -> ClassTable:
    """Return the table that an attribute of a prototype classifier is read from.

    Args:
        estimator: The classifier.
        attribute: Name of the attribute.

    Raises:
        AttributeError: The classifier is not fitted.
    """
    if not estimator.__sklearn_is_fitted__():
        raise AttributeError(f"{type(estimator).__name__} has no {attribute} before it is fitted")
    table: ClassTable = estimator._table
    return table


def _validate_sample_weight(
    sample_weight: ArrayLike | None, features: NDArray[Any]
) -> NDArray[Any] | None:
    """Return sample weights as a float64 array of shape (samples,), or None."""
    if sample_weight is None:
        return None
    result: NDArray[Any] = _check_sample_weight(
        sample_weight, features, dtype=np.float64, ensure_non_negative=True
    )
    return result


def check_same_kind(names: NDArray[Any], known: NDArray[Any]) -> None:
    """Raise ValueError if one array holds strings and the other numbers: they cannot be sorted."""
    first = [value for array in (names, known) for value in array[:1].tolist()]
    if len({isinstance(value, str | bytes) for value in first}) > 1:
        raise ValueError(
            f"class names must be all strings or all numbers, got {first[0]!r} beside {first[1]!r}"
        )


def validate_classes(
    classes: ArrayLike | None, targets: NDArray[Any], known: NDArray[Any]
) -> NDArray[Any]:
    """Return class names to add, after a check that they and the targets go with the known ones.

    Args:
        classes: Names to add, or None.
        targets: Class of each new sample.
        known: Classes of the classifier, if there are any.

    Raises:
        ValueError: A name is not valid, or strings and numbers are mixed.
    """
    result = targets[:0] if classes is None else np.asarray(classes)
    check_names(result, argument="classes")
    check_same_kind(targets, known)
    check_same_kind(result, known if len(known) else targets)
    return result


def label_new_class(name: Hashable, features: ArrayLike, classes: NDArray[Any]) -> NDArray[Any]:
    """Return the name of a new class once for each row of its features.

    Args:
        name: Name of the class.
        features: Features of its samples.
        classes: Classes of the classifier.

    Raises:
        ValueError: The name is not hashable, or the class exists.
    """
    if not isinstance(name, Hashable):
        raise ValueError(f"name must be one class name, got {type(name).__name__}")
    if name in classes.tolist():
        raise ValueError(f"there is already a class {name!r}; partial_fit adds samples to it")
    return np.array([name] * _num_samples(features))


def other_classes(name: Hashable, classes: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which classes are not the one of a name.

    Raises:
        ValueError: There is no class of this name, or no other one.
    """
    others = np.array([existing != name for existing in classes.tolist()])
    if bool(others.all()):
        raise ValueError(f"there is no class {name!r} to remove")
    if not bool(others.any()):
        raise ValueError(f"a classifier needs at least one class, and {name!r} is its last")
    return others


def class_indices(
    labels: NDArray[Any], classes: NDArray[Any], weights: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return the position of each label in the sorted classes.

    Args:
        labels: Class of each sample.
        classes: Sorted classes.
        weights: Total sample weight of each class.

    Raises:
        ValueError: A label is not a class, or its class has no samples.
    """
    check_same_kind(labels, classes)
    join_names(classes, labels)  # Sorted search compares in this common type.
    indices: NDArray[np.int64] = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    unknown = classes[indices] != labels
    if bool(unknown.any()):
        raise ValueError(f"labels must be classes of the classifier, got {labels[unknown][0]!s}")
    empty = weights[indices] == 0
    if bool(empty.any()):
        name = labels[empty][0]
        raise ValueError(f"labels must be of classes with samples, but {name!s} has none")
    return indices
