"""Synthetic classes of many shapes and sizes to measure."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from protosphere.metrics import CATALOG
from protosphere.metrics.definition import Sign

# Metrics that NeuralCollapse supports: all but those that need a second pass over the samples.
STREAMING = [name for name, row in CATALOG.items() if "samples" not in row.needs]


def defined(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that have a value: ``NeuralCollapse.compute`` has NaN for the others."""
    floats = {name: float(value) for name, value in values.items()}
    return {name: value for name, value in floats.items() if not math.isnan(value)}


class Cloud(NamedTuple):
    """Samples of several classes and a head."""

    features: np.ndarray
    labels: np.ndarray
    prototypes: np.ndarray
    bias: np.ndarray


def cloud(
    counts: list[int],
    dim: int,
    *,
    noise: float = 0.5,
    offset: float = 0.0,
    dtype: type = np.float32,
    sign: Sign = "any",
    seed: int = 0,
) -> Cloud:
    """Return shuffled samples of classes with these sizes, random means and covariances."""
    rng = np.random.default_rng(seed)
    classes = len(counts)
    means = rng.standard_normal((classes, dim)) + offset
    labels = rng.permutation(np.repeat(np.arange(classes), counts))
    scales = np.exp(rng.standard_normal((classes, dim)))
    features = means[labels] + noise * scales[labels] * rng.standard_normal((len(labels), dim))
    if sign == "non-negative":
        features = np.maximum(features, 0)
    prototypes = means + 0.3 * rng.standard_normal((classes, dim))
    return Cloud(
        features.astype(dtype),
        labels,
        prototypes.astype(np.float32),
        rng.standard_normal(classes).astype(np.float32),
    )


CLOUDS: dict[str, dict[str, Any]] = {
    "more samples than dimensions": {"counts": [30, 30, 30, 30], "dim": 7},
    "more dimensions than samples": {"counts": [5, 5, 5], "dim": 40},
    "imbalanced": {"counts": [2, 60, 7, 30, 9], "dim": 12},
    "more classes than dimensions": {"counts": [6] * 15, "dim": 5},
    "one more class than dimensions": {"counts": [6] * 6, "dim": 5},
    "two classes": {"counts": [9, 11], "dim": 6},
    "three classes": {"counts": [9, 11, 4], "dim": 6},
    "float64": {"counts": [8, 8, 8], "dim": 10, "dtype": np.float64},
    "float16": {"counts": [8, 8, 8], "dim": 10, "dtype": np.float16},
    "a common offset": {"counts": [20, 20, 20], "dim": 10, "offset": 100.0, "dtype": np.float64},
    "non-negative": {"counts": [20, 20, 20], "dim": 10, "sign": "non-negative"},
    "nearly collapsed": {
        "counts": [20, 20, 20, 20],
        "dim": 10,
        "noise": 1e-5,
        "dtype": np.float64,
    },
    "as many dimensions as classes": {"counts": [4, 5], "dim": 2},
}
