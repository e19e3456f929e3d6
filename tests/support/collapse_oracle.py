"""Every metric of neural collapse as its definition reads: two passes, float64, NumPy, loops and full matrices."""

import math

import numpy as np


def _unit(rows: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)


def _erank(covariance: np.ndarray) -> float:
    values = np.linalg.svd(covariance, compute_uv=False)
    values = values[values > 0]
    shares = values / values.sum()
    return math.exp(-np.sum(shares * np.log(shares)))


def _entropy(gram: np.ndarray) -> float:
    values = np.linalg.eigvalsh(gram / len(gram))
    values = values[values > 1e-15]
    return float(-np.sum(values * np.log(values)))


def _information(of_weights: np.ndarray, of_means: np.ndarray) -> tuple[float, float]:
    w, m, both = _entropy(of_weights), _entropy(of_means), _entropy(of_weights * of_means)
    return (w + m - both) / min(w, m), abs(w - m) / max(w, m)


def _pairs(matrix: np.ndarray) -> np.ndarray:
    return matrix[~np.eye(len(matrix), dtype=bool)]


def _nc2(vectors: np.ndarray, suffix: str) -> dict[str, float]:
    classes = len(vectors)
    centered = vectors - vectors.mean(0)
    lengths = np.linalg.norm(centered, axis=1)
    cosines = _pairs(_unit(centered) @ _unit(centered).T)
    gram = centered @ centered.T
    simplex = (np.eye(classes) - np.ones((classes, classes)) / classes) / math.sqrt(classes - 1)
    return {
        f"nc2_norms{suffix}": lengths.std() / lengths.mean(),
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
    """All of them, on samples where all of them are defined."""
    u, w = features.astype(np.float64), prototypes.astype(np.float64)
    bias = None if bias is None else bias.astype(np.float64)
    if space == "sphere":
        u, w = _unit(u), _unit(w)
    samples, classes = len(u), len(w)
    own = [u[labels == c] for c in range(classes)]
    means = np.stack([rows.mean(0) for rows in own])
    centered = means - means.mean(0)
    covariances = [(rows - rows.mean(0)).T @ (rows - rows.mean(0)) / len(rows) for rows in own]
    within = (
        sum(len(rows) * covariance for rows, covariance in zip(own, covariances, strict=True))
        / samples
    )
    between = centered.T @ centered / classes
    variances = np.array([np.trace(covariance) for covariance in covariances])
    found: dict[str, float] = {}

    found["nc1_ratio"] = np.trace(within) / np.trace(between)
    rank = max(between.shape) * np.finfo(float).eps
    found["nc1_trace"] = (
        np.trace(within @ np.linalg.pinv(between, rcond=rank, hermitian=True)) / classes
    )
    found["cdnv"] = np.mean(
        [
            (variances[a] + variances[b]) / (2 * np.sum((means[a] - means[b]) ** 2))
            for a in range(classes)
            for b in range(classes)
            if a != b
        ]
    )
    distances = [np.sum((rows[:, None] - rows) ** 2, -1) for rows in own]
    found["instance_alignment"] = sum(map(np.sum, distances)) / sum(
        len(rows) * (len(rows) - 1) for rows in own
    )
    found["intra_effective_rank"] = np.mean([_erank(covariance) for covariance in covariances])
    found["inter_effective_rank"] = _erank(between)
    found["weights_effective_rank"] = _erank(np.cov(w.T, bias=True))
    found |= _nc2(means, "") | _nc2(w, "_weights")
    kernel = _pairs(np.linalg.norm(_unit(centered)[:, None] - _unit(centered), axis=-1))
    found["gnc2_mean"] = np.mean(-np.log(kernel))
    found["gnc2_variance"] = np.var(-np.log(kernel))
    target = _unit(means) if space == "sphere" else means
    found["weight_class_alignment"] = np.mean(np.sum((w - target) ** 2, -1))
    found["weight_instance_alignment"] = np.mean(np.sum((w[labels] - u) ** 2, -1))
    cosines = np.sum(_unit(w) * _unit(centered), -1)
    found["nc3_cosine"] = np.mean(1 - cosines)
    found["nc3_duality"] = np.sum(
        (w / np.linalg.norm(w) - centered / np.linalg.norm(centered)) ** 2
    )
    found["unc3"] = np.var(cosines)
    if classes > 2:
        of_weights = _unit(_unit(w) - _unit(w).mean(0))
        found["mir"], found["hdr"] = _information(
            of_weights @ of_weights.T, _unit(centered) @ _unit(centered).T
        )
        if space == "sphere":
            moved = _unit(_unit(means) - _unit(u.mean(0)))
            found["mir_published"], found["hdr_published"] = _information(w @ w.T, moved @ moved.T)
    decided = (u @ w.T + (0 if bias is None else bias)).argmax(1)
    nearest = np.array([np.argmin(np.sum((row - means) ** 2, -1)) for row in u])
    found["nc4_agreement"] = np.mean(decided == nearest)
    if bias is not None:
        found["bias_spread"] = np.std(bias)
        found["bias_offset"] = np.linalg.norm(w @ means.mean(0) + bias)
    return {name: float(value) for name, value in found.items()}
