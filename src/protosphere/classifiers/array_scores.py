"""Scores, class means and temperatures on NumPy arrays, in chunks of rows."""

import warnings
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protosphere.classifiers.checks import nonfinite_error
from protosphere.classifiers.class_means import ClassMeans, class_means

_CHUNK_ROWS = 1 << 16


def array_class_means(
    features: NDArray[Any], labels: NDArray[Any], num_classes: int, weights: NDArray[Any] | None
) -> ClassMeans:
    """Compute class means of arrays; see :func:`protosphere.classifiers.class_means`."""
    return class_means(
        _as_tensor(features),
        _as_tensor(labels),
        num_classes=num_classes,
        weights=None if weights is None else _as_tensor(weights),
    )


def linear_form(
    means: NDArray[np.float64], *, rule: Literal["cosine", "nearest"]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return weight and bias such that the scores of unit features u are u @ weight.T + bias.

    Args:
        means: Class means of unit features; NaN for a class without samples.
        rule: ``"cosine"`` for cos(u, μ_c), ``"nearest"`` for −‖u − μ_c‖².

    Returns:
        Weight of shape (classes, dim) and bias of shape (classes,), which is −∞ for a class
        without samples.
    """
    absent = np.asarray(np.isnan(means).any(axis=1))
    bias, means = np.where(absent, -np.inf, 0.0), np.where(absent[:, None], 0.0, means)
    if rule == "cosine":
        norms = np.linalg.norm(means, axis=1, keepdims=True)
        return means / np.where(norms > 0, norms, 1), bias
    return 2 * means, bias - 1 - (means**2).sum(1)


def array_scores(
    features: NDArray[Any], weight: NDArray[np.float64], bias: NDArray[np.float64]
) -> NDArray[Any]:
    """Return u @ weight.T + bias for unit features u, in the dtype of the features.

    Raises:
        ValueError: A feature is not finite.
    """
    weight, bias = weight.astype(features.dtype), bias.astype(features.dtype)
    result = np.empty((len(features), len(bias)), features.dtype)
    for start in range(0, len(features), _CHUNK_ROWS):
        rows = features[start : start + _CHUNK_ROWS]
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        finite = np.isfinite(norms)
        if not bool(finite.all()):
            raise nonfinite_error(start + int(finite.argmin()))
        norms[norms == 0] = 1
        result[start : start + _CHUNK_ROWS] = rows @ weight.T / norms + bias
    return result


def likeliest_temperature(scores: NDArray[Any], labels: NDArray[np.int64]) -> float:
    """Return the temperature τ that minimizes the mean of lse(s/τ) − s_y/τ.

    Args:
        scores: Scores of shape (samples, classes); −∞ where a class cannot be predicted.
        labels: Index of the true class of each sample.

    Returns:
        A temperature between 1e-5 and 1000.
    """
    values, classes = torch.from_numpy(scores.astype(np.float64)), torch.from_numpy(labels)
    own = values.gather(1, classes[:, None]).squeeze(1)

    def slope(scale: float) -> float:
        expected = ((values * scale).softmax(1) * values.nan_to_num(neginf=0.0)).sum(1)
        return float(expected.mean() - own.mean())

    # The loss is convex in the scale 1/τ, so its slope increases: bisect on a logarithmic axis.
    low, high, middle = 1e-3, 1e5, 10.0
    for _ in range(60):
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
        middle = float(low * high) ** 0.5
    return 1 / middle


def _as_tensor(array: NDArray[Any]) -> Tensor:
    """Return a tensor that shares the memory of an array where torch can."""
    if min(array.strides, default=0) < 0:  # torch has no negative strides.
        array = array.copy()
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return torch.from_numpy(array)  # Warns about read-only memory, which is never written.
