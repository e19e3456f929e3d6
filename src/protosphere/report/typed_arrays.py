"""Arrays in figures: plotly reads base64 of raw bytes, which is smaller than numbers in JSON."""

from base64 import b64encode
from typing import Any

import numpy as np
from numpy.typing import NDArray


def encode(array: NDArray[Any]) -> dict[str, str]:
    """Return an array in plotly's binary form, for the data of a trace.

    Floating-point numbers become float32, and integers and Booleans the smallest integer type that
    holds them; NaN is a gap, as plotly has it.

    Args:
        array: Numbers of one or two dimensions.

    Returns:
        The entries ``dtype`` and ``bdata``, and ``shape`` for two dimensions.

    Raises:
        ValueError: The array has another number of dimensions, or is not of real numbers.

    >>> encode(np.array([1.0, 2.0]))
    {'dtype': 'f4', 'bdata': 'AACAPwAAAEA='}
    >>> encode(np.array([[1, 2], [3, 4]]))
    {'dtype': 'u1', 'bdata': 'AQIDBA==', 'shape': '2, 2'}
    """
    if array.ndim not in (1, 2):
        raise ValueError(f"array must have one or two dimensions, got {array.ndim}")
    if array.dtype.kind not in "fiub":
        raise ValueError(f"array must be of real numbers, got {array.dtype}")
    dtype = np.dtype("<f4")
    if array.dtype.kind in "iub":
        dtype = _integer_dtype(array)
    # Values beyond float32 become infinite, which plotly leaves out.
    with np.errstate(over="ignore"):
        content = np.ascontiguousarray(array, dtype=dtype)
    encoded = {
        "dtype": f"{dtype.kind}{dtype.itemsize}",
        "bdata": b64encode(content.tobytes()).decode("ascii"),
    }
    if array.ndim == 2:
        encoded["shape"] = ", ".join(map(str, array.shape))
    return encoded


def _integer_dtype(array: NDArray[Any]) -> np.dtype[Any]:
    """The smallest of the integer types that plotly reads; float32 beyond 32 bits."""
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    for name in ("u1", "i1", "u2", "i2", "u4", "i4"):
        limits = np.iinfo(name)
        if limits.min <= low and high <= limits.max:
            return np.dtype(f"<{name}")
    return np.dtype("<f4")
