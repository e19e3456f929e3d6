"""Probabilities of scores at a temperature, and the temperature that fits the true classes best."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def softmax(scores: NDArray[Any], temperature: float) -> NDArray[Any]:
    """Return the softmax of s/τ of each row, without overflow for any temperature.

    Args:
        scores: Scores s of shape (samples, classes); −∞ where a class cannot be predicted.
        temperature: Temperature τ.
    """
    result = _shift(scores / temperature)
    np.exp(result, out=result)
    result /= result.sum(1, keepdims=True)
    return result


def log_softmax(scores: NDArray[Any], temperature: float) -> NDArray[Any]:
    """Return the logarithm of :func:`softmax`, also where that is rounded to zero.

    Args:
        scores: Scores s of shape (samples, classes); −∞ where a class cannot be predicted.
        temperature: Temperature τ.
    """
    result = _shift(scores / temperature)
    result -= np.log(np.exp(result).sum(1, keepdims=True))
    return result


def _shift(logits: NDArray[Any]) -> NDArray[Any]:
    """Subtract the maximum of each row in place, so that no exponential overflows."""
    logits -= logits.max(1, keepdims=True)
    return logits


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
