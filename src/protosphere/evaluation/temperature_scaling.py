"""Temperature scaling: the one number that calibrates the softmax of a trained classifier."""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor

_CHUNK_ROWS = 8192
_MAX_STEPS = 200
_PRECISION = 1e-12


class TemperatureFit(NamedTuple):
    """The result of :func:`fit_temperature`.

    Attributes:
        temperature: The temperature T that the logits are divided by.
        nll: Mean negative log-likelihood with this temperature.
        bound: Which bound the temperature lies on; ``"none"`` for a minimum between them.
    """

    temperature: float
    nll: float
    bound: Literal["none", "lower", "upper"]


class _Derivatives(NamedTuple):
    """Mean negative log-likelihood at an inverse temperature, with its first two derivatives."""

    value: float
    slope: float
    curvature: float


def fit_temperature(
    logits: Float[Tensor, "samples classes"],
    labels: Integer[Tensor, "samples"],
    *,
    weights: Float[Tensor, "samples"] | None = None,
    bounds: tuple[float, float] = (1e-3, 1e3),
) -> TemperatureFit:
    """Find the temperature T whose softmax(z/T) has the smallest negative log-likelihood.

    NLL(β) = mean_i [lse_c(β z_ic) − β z_{i y_i}] with β = 1/T is convex, so its slope
    mean_i (E_p[z_i] − z_{i y_i}) has one zero. It is found by Newton's method in float64, kept
    inside a bracket that each step narrows. Predictions do not change.

    Fit it on images that the model was not trained on and that are not those the calibration is
    reported on.

    Args:
        logits: One logit per sample and class, on a device that supports float64.
        labels: True class index of each sample.
        weights: Weight of each sample in the mean, such as 1/n_c for classes that count alike; 1
            if not given.
        bounds: Smallest and largest temperature. If every sample is classified correctly, the
            likelihood grows as T → 0; if the logits are no better than chance, as T → ∞.

    Returns:
        The temperature, accurate to 1e-9 relative, and whether it is one of the bounds.

    Raises:
        ValueError: There are no samples, the shapes or labels do not match, logits are not finite,
            weights are negative or all zero, or the bounds are not two positive numbers in
            increasing order.

    >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    >>> fit = fit_temperature(logits, torch.tensor([0, 0, 0, 1]))
    >>> round(fit.temperature, 4), fit.bound  # softmax(4/T) = 3/4 at T = 4/ln 3
    (3.641, 'none')

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017.
    """
    _check(logits, labels, bounds)
    weights = _unit_mean(weights, labels)
    low, high = 1 / bounds[1], 1 / bounds[0]
    at_low, at_high = (_derivatives(logits, labels, weights, inverse) for inverse in (low, high))
    if at_low.slope >= 0:
        return TemperatureFit(bounds[1], at_low.value, "upper")
    if at_high.slope <= 0:
        return TemperatureFit(bounds[0], at_high.value, "lower")
    inverse = min(max(1.0, low), high)
    for _ in range(_MAX_STEPS):
        point = _derivatives(logits, labels, weights, inverse)
        low, high = (inverse, high) if point.slope < 0 else (low, inverse)
        newton = inverse - point.slope / point.curvature if point.curvature > 0 else math.inf
        following = newton if low < newton < high else math.sqrt(low * high)
        step, inverse = abs(following - inverse), following
        if step <= _PRECISION * inverse:
            break
    return TemperatureFit(1 / inverse, _derivatives(logits, labels, weights, inverse).value, "none")


def _unit_mean(weights: Tensor | None, labels: Tensor) -> Tensor:
    """Return the weights in float64, divided by their mean."""
    if weights is None:
        return torch.ones(len(labels), dtype=torch.float64, device=labels.device)
    if weights.shape != labels.shape:
        raise ValueError(
            f"weights must hold one value per sample, shape ({len(labels)},), got "
            f"{tuple(weights.shape)}"
        )
    values = weights.to(labels.device, torch.float64)
    if not bool((values >= 0).all()) or not 0 < float(values.sum()) < math.inf:
        raise ValueError("weights must be finite, not negative and not all zero")
    return values / values.mean()


def _derivatives(logits: Tensor, labels: Tensor, weights: Tensor, inverse: float) -> _Derivatives:
    sums = torch.zeros(3, dtype=torch.float64, device=logits.device)
    # In chunks: float64 doubles the memory of the logits.
    chunks = (tensor.split(_CHUNK_ROWS) for tensor in (logits, labels, weights))
    for rows, targets, weight in zip(*chunks, strict=True):
        values = rows.double()
        # Relative to the true class, whose logit would otherwise be subtracted from a sum near it.
        values = values - values.gather(1, targets.long()[:, None])
        log_normalizers = (inverse * values).logsumexp(1, keepdim=True)
        probabilities = (inverse * values - log_normalizers).exp()
        means = (probabilities * values).sum(1, keepdim=True)
        variances = (probabilities * (values - means).square()).sum(1)
        sums += torch.stack([log_normalizers[:, 0], means[:, 0], variances]) @ weight
    return _Derivatives(*(sums / len(labels)).tolist())


def _check(logits: Tensor, labels: Tensor, bounds: tuple[float, float]) -> None:
    if logits.ndim != 2 or not len(logits) or labels.shape != logits.shape[:1]:
        raise ValueError(
            "logits and labels must have one row per sample and at least one sample, got shapes "
            f"{tuple(logits.shape)} and {tuple(labels.shape)}"
        )
    if not bool(torch.isfinite(logits).all()):
        raise ValueError("logits must be finite, got NaN or infinity")
    smallest, largest = int(labels.min()), int(labels.max())
    if smallest < 0 or largest >= logits.shape[1]:
        raise ValueError(
            f"labels must lie between 0 and {logits.shape[1] - 1}, got {smallest} to {largest}"
        )
    if not 0 < bounds[0] < bounds[1] < math.inf:
        raise ValueError(
            f"bounds must be two positive numbers in increasing order, got {bounds[0]} and "
            f"{bounds[1]}"
        )
