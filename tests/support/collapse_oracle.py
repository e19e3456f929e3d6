"""Every metric of neural collapse by its definition: NumPy, float64, loops, full matrices."""

import math
from typing import Any

import numpy as np


def _unit(rows: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)


def _erank(covariance: np.ndarray) -> float:
    values = np.linalg.svd(covariance, compute_uv=False)
    values = values[values > 0]
    probabilities = values / values.sum()
    return math.exp(-np.sum(probabilities * np.log(probabilities)))


def _entropy(gram: np.ndarray) -> float:
    values = np.linalg.eigvalsh(gram / len(gram))
    values = values[values > 1e-15]
    return float(-np.sum(values * np.log(values)))


def _information(weights_gram: np.ndarray, means_gram: np.ndarray) -> tuple[float, float]:
    w, m = _entropy(weights_gram), _entropy(means_gram)
    joint = _entropy(weights_gram * means_gram)
    return (w + m - joint) / min(w, m), abs(w - m) / max(w, m)


def _pairs(matrix: np.ndarray) -> np.ndarray:
    return matrix[~np.eye(len(matrix), dtype=bool)]


def _nc2(vectors: np.ndarray, suffix: str) -> dict[str, float]:
    classes = len(vectors)
    centered = vectors - vectors.mean(0)
    norms = np.linalg.norm(centered, axis=1)
    cosines = _pairs(_unit(centered) @ _unit(centered).T)
    gram = centered @ centered.T
    simplex = (np.eye(classes) - np.ones((classes, classes)) / classes) / math.sqrt(classes - 1)
    return {
        f"nc2_norms{suffix}": norms.std() / norms.mean(),
        f"nc2_angles{suffix}": cosines.std(),
        f"nc2_simplex{suffix}": np.abs(cosines + 1 / (classes - 1)).mean(),
        f"nc2_gram{suffix}": np.linalg.norm(gram / np.linalg.norm(gram) - simplex),
    }


def metrics(
    features: np.ndarray,
    labels: np.ndarray,
    prototypes: np.ndarray,
    *,
    space: str = "sphere",
    bias: np.ndarray | None = None,
) -> dict[str, float]:
    """Return all metrics, for samples that define all of them."""
    u, w = features.astype(np.float64), prototypes.astype(np.float64)
    bias = None if bias is None else bias.astype(np.float64)
    if space == "sphere":
        u, w = _unit(u), _unit(w)
    samples, classes = len(u), len(w)
    by_class = [u[labels == c] for c in range(classes)]
    means = np.stack([rows.mean(0) for rows in by_class])
    centered = means - means.mean(0)
    covariances = [(rows - rows.mean(0)).T @ (rows - rows.mean(0)) / len(rows) for rows in by_class]
    within = (
        sum(len(rows) * covariance for rows, covariance in zip(by_class, covariances, strict=True))
        / samples
    )
    between = centered.T @ centered / classes
    variances = np.array([np.trace(covariance) for covariance in covariances])
    result: dict[str, Any] = {}

    result["nc1_ratio"] = np.trace(within) / np.trace(between)
    rank = max(between.shape) * np.finfo(float).eps
    result["nc1_trace"] = (
        np.trace(within @ np.linalg.pinv(between, rcond=rank, hermitian=True)) / classes
    )
    result["cdnv"] = np.mean(
        [
            (variances[a] + variances[b]) / (2 * np.sum((means[a] - means[b]) ** 2))
            for a in range(classes)
            for b in range(classes)
            if a != b
        ]
    )
    distances = [np.sum((rows[:, None] - rows) ** 2, -1) for rows in by_class]
    result["instance_alignment"] = sum(map(np.sum, distances)) / sum(
        len(rows) * (len(rows) - 1) for rows in by_class
    )
    result["intra_effective_rank"] = np.mean([_erank(covariance) for covariance in covariances])
    result["inter_effective_rank"] = _erank(between)
    result["weights_effective_rank"] = _erank(np.cov(w.T, bias=True))
    result |= _nc2(means, "") | _nc2(w, "_weights")
    result["nc2_coherence"] = _pairs(_unit(centered) @ _unit(centered).T).max() + 1 / (classes - 1)
    kernel = _pairs(np.linalg.norm(_unit(centered)[:, None] - _unit(centered), axis=-1))
    result["gnc2_mean"] = np.mean(-np.log(kernel))
    result["gnc2_variance"] = np.var(-np.log(kernel))
    target = _unit(means) if space == "sphere" else means
    result["weight_class_alignment"] = np.mean(np.sum((w - target) ** 2, -1))
    result["weight_instance_alignment"] = np.mean(np.sum((w[labels] - u) ** 2, -1))
    cosines = np.sum(_unit(w) * _unit(centered), -1)
    result["nc3_cosine"] = np.mean(1 - cosines)
    result["nc3_duality"] = np.sum(
        (w / np.linalg.norm(w) - centered / np.linalg.norm(centered)) ** 2
    )
    result["unc3"] = np.var(cosines)
    if classes > 2:
        unit_weights = _unit(_unit(w) - _unit(w).mean(0))
        result["mir"], result["hdr"] = _information(
            unit_weights @ unit_weights.T, _unit(centered) @ _unit(centered).T
        )
        if space == "sphere":
            shifted = _unit(_unit(means) - _unit(u.mean(0)))
            result["mir_published"], result["hdr_published"] = _information(
                w @ w.T, shifted @ shifted.T
            )
    predicted = (u @ w.T + (0 if bias is None else bias)).argmax(1)
    nearest = np.array([np.argmin(np.sum((row - means) ** 2, -1)) for row in u])
    result["nc4_agreement"] = np.mean(predicted == nearest)
    if bias is not None:
        result["bias_spread"] = np.std(bias)
        result["bias_offset"] = np.linalg.norm(w @ means.mean(0) + bias)
    return {name: float(value) for name, value in result.items()}
