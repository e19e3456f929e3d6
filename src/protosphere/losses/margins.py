"""Margins of NormFace: a cosine or an angle that the own class must win by."""

import math
from numbers import Real
from typing import Literal, NoReturn

import torch
from torch import Tensor

from protosphere.kernels.problem import check_choices

MarginKind = Literal["cosine", "angle"]


def with_angle_margin(
    positive_logits: Tensor, squares: Tensor, margin: float, temperature: float | Tensor
) -> Tensor:
    """Return (cos(θ + m) − 1)/τ, or past θ + m = π (cos θ + cos m − 2)/τ.

    Args:
        positive_logits: (cos θ − 1)/τ; the primitive measures cosines from 1.
        squares: Squared chords 2 − 2 cos θ.
        margin: Margin m.
        temperature: Temperature τ.
    """
    cosine, sine = math.cos(margin), math.sin(margin)
    sines = _safe_sqrt(squares) * _safe_sqrt(1 - squares / 4)
    inside = positive_logits * cosine + (cosine - 1 - sines * sine) / temperature
    beyond = positive_logits + (cosine - 1) / temperature
    return torch.where(squares > 2 * (1 + cosine), beyond, inside)


def _safe_sqrt(values: Tensor) -> Tensor:
    """Square root with a zero gradient at 0, where the slope is infinite."""
    positive = values > 0
    return torch.where(positive, torch.where(positive, values, 1).sqrt(), 0)


def check_margin(margin: float, margin_kind: MarginKind, *, label_smoothing: float) -> None:
    """Raise ValueError unless the margin is in its range, and 0 with label smoothing."""
    check_choices(margin_kind=(margin_kind, MarginKind))
    # A larger margin would put the target beyond the opposite of the prototype.
    largest = {"cosine": 2.0, "angle": math.pi}[margin_kind]
    if isinstance(margin, bool) or not isinstance(margin, Real) or not 0 <= margin <= largest:
        raise ValueError(
            f"margin must be a number from 0 to {largest:.4g} for margin_kind={margin_kind!r}, "
            f"got {margin!r}"
        )
    if margin and label_smoothing:
        raise_margin_with_soft_labels(margin)


def raise_margin_with_soft_labels(margin: float) -> NoReturn:
    """Raise the ValueError for a margin with labels that name more than one class."""
    raise ValueError(f"margin must be 0 with soft labels or label smoothing, got {margin!r}")
