"""Reading blocks of samples from memory, disk or a GPU, and counting the progress."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protosphere.geometry.class_statistics import Space
from protosphere.geometry.sphere import min_norm

# A float64 array: NumPy's on the CPU, where work is distributed over cores, torch's on a GPU.
Array = Any
Progress = Callable[[float], None]

# Bytes of rows converted to float64 at a time. On a CPU small enough for the cache and large
# enough for efficient products; on a GPU larger, because each block launches several kernels.
_CPU_BLOCK_BYTES, _GPU_BLOCK_BYTES = 1 << 21, 1 << 28
_CHECKED_ROWS = 1024


@dataclass(frozen=True)
class SampleSource:
    """Features and how to read them.

    Attributes:
        features: One sample per row, in memory or memory-mapped.
        device: Device to compute on.
        space: ``"sphere"`` normalizes rows; ``"raw"`` uses them unchanged.
        positions: Number of each row in error messages; its index if not given.
    """

    features: np.ndarray | Tensor
    device: torch.device
    space: Space
    positions: np.ndarray | None = None

    def block_rows(self, width: int) -> int:
        """Return the number of rows of this width to process at a time."""
        size = _CPU_BLOCK_BYTES if self.device.type == "cpu" else _GPU_BLOCK_BYTES
        return max(1, size // (8 * width))

    def read(self, index: np.ndarray | slice) -> tuple[Array, Array | None]:
        """Return rows in float64 and, on the sphere, the norms to divide them by."""
        rows: Array
        if self.device.type == "cpu" and isinstance(self.features, np.ndarray):
            rows = self.features[index].astype(np.float64)
        else:
            selected = torch.as_tensor(index) if isinstance(index, np.ndarray) else index
            # A slice is a view, and the rows are changed in place.
            copy = isinstance(index, slice)
            rows = torch.as_tensor(self.features[selected])
            rows = rows.to(self.device, torch.float64, copy=copy)
            rows = rows.numpy() if self.device.type == "cpu" else rows
        if self.space == "raw":
            return rows, None
        squares = squared_norms(rows)
        norms = squares**0.5
        # Rows too small to have a direction become zero. Rows whose norm overflows become NaN,
        # which is reported once the class is known.
        norms[norms < min_norm(torch.float64)] = math.inf
        norms[squares == math.inf] = math.nan
        return rows, norms

    def read_normalized(self, index: np.ndarray | slice) -> tuple[Array, float]:
        """Return rows in float64 and in ``space``, and their smallest entry before scaling."""
        rows, norms = self.read(index)
        lowest = float(rows.min())
        if norms is not None:
            # Infinity divided by infinity is reported once the class is known.
            with np.errstate(invalid="ignore"):
                rows /= norms[:, None]
        return rows, lowest

    def describe_non_finite(self, index: np.ndarray) -> str:
        """Return an error message about the first of these rows that is not finite."""
        numbers = index if self.positions is None else self.positions[index]
        for start in range(0, len(index), _CHECKED_ROWS):
            rows, _ = replace(self, space="raw").read(index[start : start + _CHECKED_ROWS])
            bad = torch.nonzero(~torch.isfinite(torch.as_tensor(rows)).all(1)).flatten()
            if len(bad):
                sample = numbers[start + int(bad[0])]
                return f"features must be finite, got NaN or infinity in sample {sample}"
        return (
            f"features must have finite norms, but those of sample {numbers[0]} "
            "or others of its class overflow"
        )


class ProgressCounter:
    """Counts processed samples and reports the fraction of the total.

    Args:
        progress: Function to call with the fraction, or None.
        total: Number of samples to process.
    """

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def add(self, num_samples: int) -> None:
        """Count more processed samples."""
        self._done += num_samples
        if self._progress is not None:
            self._progress(self._done / self._total)


def numpy_view(features: Tensor | np.ndarray) -> Tensor | np.ndarray:
    """Return a NumPy view of a CPU tensor if NumPy supports the dtype."""
    if isinstance(features, Tensor):
        features = features.detach()
        if features.device.type == "cpu" and features.dtype != torch.bfloat16:
            return features.resolve_neg().numpy()
    return features


def squared_norms(rows: Array) -> Array:
    """Return Σ_j x_ij² of each row; on the CPU without a matrix of squares."""
    if isinstance(rows, np.ndarray):
        return np.einsum("ij,ij->i", rows, rows)
    return (rows * rows).sum(1)


def input_eps(features: Tensor | np.ndarray) -> float:
    """Return the machine epsilon of the features, at least that of float64."""
    if isinstance(features, Tensor):
        return torch.finfo(features.dtype).eps
    return max(float(np.finfo(features.dtype).eps), float(np.finfo(np.float64).eps))
