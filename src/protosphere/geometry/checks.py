"""Checks of features, labels and counts, and their conversion, shared by all that takes them.

They read shapes and dtypes only, so they never synchronize with the device.
"""

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

_FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGER_DTYPES = (
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)


def is_floating(values: Tensor | np.ndarray) -> bool:
    """Whether the values are float16, bfloat16, float32 or float64 (or NumPy's wider floats)."""
    if isinstance(values, Tensor):
        return values.dtype in _FLOAT_DTYPES
    return values.dtype.kind == "f"


def is_integer(values: Tensor | np.ndarray) -> bool:
    """Whether the values are signed or unsigned integers; booleans are not."""
    if isinstance(values, Tensor):
        return values.dtype in _INTEGER_DTYPES
    return values.dtype.kind in "iu"


def check_features(features: Any, *, dim: int | None = None) -> None:
    """Check that features are a floating-point matrix with one sample per row.

    Args:
        features: Tensor or NumPy array to check.
        dim: Required number of columns; any number if None.

    Raises:
        TypeError: ``features`` is neither a tensor nor an array.
        ValueError: The shape or the dtype is wrong.

    >>> check_features(torch.ones(4, 3), dim=2)
    Traceback (most recent call last):
    ...
    ValueError: features must have shape (samples, 2), got (4, 3)
    """
    _check_array("features", features)
    shape = tuple(features.shape)
    if not is_floating(features):
        raise ValueError(
            f"features must be float16, bfloat16, float32 or float64, got {features.dtype}"
        )
    if len(shape) != 2 or (dim is not None and shape[1] != dim):
        width = "dim" if dim is None else dim
        raise ValueError(f"features must have shape (samples, {width}), got {shape}")


def check_labels(labels: Any, num_samples: int) -> None:
    """Check that labels are integers, one class index per sample.

    Args:
        labels: Tensor or NumPy array to check.
        num_samples: Number of samples that the labels belong to.

    Raises:
        TypeError: ``labels`` is neither a tensor nor an array.
        ValueError: The shape or the dtype is wrong.

    >>> check_labels(torch.zeros(4), 4)
    Traceback (most recent call last):
    ...
    ValueError: labels must be integer class indices, got torch.float32
    """
    _check_array("labels", labels)
    if not is_integer(labels):
        raise ValueError(f"labels must be integer class indices, got {labels.dtype}")
    if tuple(labels.shape) != (num_samples,):
        raise ValueError(
            f"labels must hold one class index per sample, shape ({num_samples},), "
            f"got {tuple(labels.shape)}"
        )


def check_at_least(name: str, value: Any, minimum: int) -> None:
    """Check that an argument is an integer no smaller than a minimum; booleans are refused.

    >>> check_at_least("num_classes", True, 2)
    Traceback (most recent call last):
    ...
    ValueError: num_classes must be an integer of at least 2, got True
    """
    integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not integer or value < minimum:
        raise ValueError(f"{name} must be an integer of at least {minimum}, got {value!r}")


def _check_array(name: str, values: Any) -> None:
    if not isinstance(values, Tensor | np.ndarray):
        raise TypeError(f"{name} must be a tensor or a NumPy array, got {type(values).__name__}")


def as_tensor(name: str, values: Tensor | np.ndarray) -> Tensor:
    """Return a tensor that shares the memory of an array where torch can, or of a tensor.

    It has no graph.

    Args:
        name: Name of the argument in error messages.
        values: Tensor or NumPy array.

    Raises:
        TypeError: The values are neither a tensor nor an array.
        ValueError: The values are not numbers.
    """
    _check_array(name, values)
    if isinstance(values, Tensor):
        return values.detach()
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold real numbers, got {values.dtype}")
    # torch has neither foreign byte orders nor floats of more than 64 bits.
    dtype = values.dtype.newbyteorder("=") if values.itemsize <= 8 else np.dtype(np.float64)
    values = values.astype(dtype, copy=False)
    if any(stride < 0 or stride % values.itemsize for stride in values.strides):
        values = values.copy()  # Nor does it have such strides.
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return torch.from_numpy(values)  # Warns about read-only memory, which is never written.
