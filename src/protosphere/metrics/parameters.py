"""Prototypes and biases that a streaming metric refers to, and checks of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from protosphere.geometry.class_statistics import Space

Parameters = Tensor | Callable[[], Tensor]


class Reference:
    """A tensor or a function that is shared with copies of the metric instead of copied.

    Args:
        value: The tensor or the function; None for a parameter that is not given.
    """

    def __init__(self, value: Parameters | None) -> None:
        self._value = value

    def __deepcopy__(self, _: dict[int, Any]) -> "Reference":
        return self

    def __repr__(self) -> str:
        if isinstance(self._value, Tensor):
            return f"<{' × '.join(map(str, self._value.shape))} tensor>"
        return "None" if self._value is None else "<function>"

    def get(self) -> Tensor | None:
        """Return the tensor, or what the function returns now."""
        if self._value is None or isinstance(self._value, Tensor):
            return self._value
        return self._value()


def check_bias_space(bias: Parameters | None, space: Space) -> None:
    """Check that a bias is only given for raw space.

    Raises:
        ValueError: It is given for the sphere.
    """
    if bias is not None and space != "raw":
        raise ValueError("bias requires space='raw', because cosines have no bias")


def check_parameters(name: str, values: Tensor | None, shape: tuple[int, ...]) -> None:
    """Check the shape, dtype and values of prototypes or biases.

    Args:
        name: Name of the argument.
        values: The values; None is accepted.
        shape: Required shape.

    Raises:
        ValueError: They have another shape, are not floating-point numbers or not finite.
    """
    if values is None:
        return
    if tuple(values.shape) != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(values.shape)}")
    if not values.is_floating_point():
        raise ValueError(f"{name} must be floating-point numbers, got {values.dtype}")
    if not bool(torch.isfinite(values).all()):
        raise ValueError(f"{name} must be finite, got NaN or infinity")


def is_foreign(state: Tensor) -> bool:
    """Whether a state must not be changed in place.

    A reset in inference mode creates tensors that only inference mode may change, and a metric
    that was sent to several processes has its state in memory that they all share.
    """
    return state.is_inference() or (state.device.type == "cpu" and state.is_shared())
