"""Checks of what a logistic regression is fitted to, where the data enter."""

from collections.abc import Sequence

import torch
from torch import Tensor


def check_features(features: Tensor) -> None:
    """Raise a ``ValueError`` unless features are finite numbers, one row per sample."""
    if features.ndim != 2 or not features.numel() or not features.is_floating_point():
        raise ValueError(
            "features must be floating-point numbers with one row per sample, got "
            f"{features.dtype} of shape {tuple(features.shape)}"
        )
    # The extremes are NaN if a feature is; unlike ``isfinite`` they need no memory.
    if not torch.stack(features.aminmax()).isfinite().all():
        first = int((~features.isfinite().all(1)).nonzero()[0])
        raise ValueError(f"features must be finite, got NaN or infinity in sample {first}")


def check_weights(sample_weight: Tensor | None, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise a ``ValueError`` unless weights are None or valid and of one of the shapes."""
    if sample_weight is None:
        return
    if tuple(sample_weight.shape) not in shapes:
        expected = " or ".join(map(str, shapes))
        raise ValueError(
            f"sample_weight must have shape {expected}, got {tuple(sample_weight.shape)}"
        )
    if not (sample_weight.isfinite() & (sample_weight >= 0)).all() or not sample_weight.any():
        raise ValueError(
            "sample_weight must be finite and not negative, with a positive sum; got values from "
            f"{float(sample_weight.min()):g} to {float(sample_weight.max()):g}"
        )


def check_labels(features: Tensor, labels: Tensor, num_classes: int) -> None:
    """Raise a ``ValueError`` unless labels are one class index per sample."""
    if labels.shape != features.shape[:1]:
        raise ValueError(
            f"labels must hold one class index per sample, shape ({len(features)},); got "
            f"{tuple(labels.shape)}"
        )
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= num_classes:
        raise ValueError(
            f"labels must be class indices from 0 to {num_classes - 1}, got values from {lowest} "
            f"to {highest}"
        )


def check_targets(features: Tensor, targets: Tensor) -> None:
    """Raise a ``ValueError`` unless targets are 0 or 1 for each sample and label."""
    if targets.ndim != 2 or len(targets) != len(features):
        raise ValueError(
            f"targets must hold one row per sample and one column per label, ({len(features)}, "
            f"labels); got shape {tuple(targets.shape)}"
        )
    if not ((targets == 0) | (targets == 1)).all():
        raise ValueError(
            f"targets must be 0 or 1, got values from {targets.min()} to {targets.max()}"
        )


def check_settings(grid: Sequence[float], tol: float, max_iter: int) -> None:
    """Raise a ``ValueError`` unless the settings of a fit are in range."""
    if not grid or not all(0 < l2 < float("inf") for l2 in grid):
        raise ValueError(f"l2 must be a positive number, got {list(grid)}")
    if not tol > 0 or max_iter < 1:
        raise ValueError(f"tol must be positive and max_iter at least 1, got {tol} and {max_iter}")
