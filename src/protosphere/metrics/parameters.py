"""Prototypes and biases that a streaming metric refers to, and checks of them."""

import copy
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from protosphere.geometry.checks import as_tensor, is_floating
from protosphere.geometry.class_statistics import Space


@runtime_checkable
class HasPrototypes(Protocol):
    """A head, or another object with prototypes."""

    @property
    def prototypes(self) -> Tensor | np.ndarray:
        """One prototype per class."""
        ...


@runtime_checkable
class HasBias(Protocol):
    """A head, or another object with a bias."""

    @property
    def bias(self) -> Tensor | np.ndarray | None:
        """One number per class, or None."""
        ...


Values = Tensor | np.ndarray | Callable[[], Tensor | np.ndarray]
Prototypes = Values | HasPrototypes
Bias = Values | HasBias


class Reference:
    """Prototypes or a bias that a metric reads at ``compute()``.

    In a copy of a module that has the metric and what it refers to, the copied metric refers to the
    copied head or tensor. A metric that is copied without them shares them with its copies.

    Args:
        name: Name of the argument, and of the attribute of a head.
        source: A tensor, an array, a head or a function; None if not given.
        shape: Shape of the values.

    Raises:
        ValueError: The source is none of these, or its values do not have the shape or are not
            floating-point numbers. A function is not called.
    """

    def __init__(self, name: str, source: Any, shape: tuple[int, ...]) -> None:
        self._name, self._source, self._shape = name, source, shape
        self._memo: dict[int, Any] | None = None
        is_head = hasattr(source, name)
        is_function = callable(source) and not isinstance(source, nn.Module) and not is_head
        is_values = source is None or isinstance(source, Tensor | np.ndarray)
        if not (is_head or is_function or is_values):
            raise ValueError(
                f"{name} must be a tensor, a NumPy array, a head with {name}, or a function that "
                f"returns {name}, got {type(source).__name__}"
            )
        if not is_function:
            values = self.get()
            if isinstance(source, np.ndarray) and values is not None:
                self._source = values.clone()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Reference":
        other = copy.copy(self)
        if id(other._source) in memo:
            other._source = memo[id(other._source)]
        elif other._source is not None:
            # A head that is copied after the metric is looked up when the copy is first used.
            other._memo = memo
        return other

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_source": self._find_source(), "_memo": None}

    def __repr__(self) -> str:
        source = self._find_source()
        if isinstance(source, Tensor):
            return f"<{' × '.join(map(str, source.shape))} tensor>"
        if hasattr(source, self._name):
            return f"<{type(source).__name__}>"
        return "None" if source is None else "<function>"

    def get(self) -> Tensor | None:
        """Return the values as they are now.

        Raises:
            ValueError: They do not have the shape or are not floating-point numbers.
        """
        values = self._find_source()
        if hasattr(values, self._name):
            values = getattr(values, self._name)
        elif callable(values):
            values = values()
        return to_parameters(self._name, values, self._shape)

    def _find_source(self) -> Any:
        """Return the source, or its copy if it has been copied with the metric."""
        if self._memo is not None:
            self._source = self._memo.get(id(self._source), self._source)
            self._memo = None
        return self._source


def check_bias_space(bias: object, space: Space) -> None:
    """Check that a bias is only given for raw space.

    Raises:
        ValueError: It is given for the sphere.
    """
    if bias is not None and space != "raw":
        raise ValueError("bias requires space='raw', because cosines have no bias")


def to_parameters(name: str, values: Any, shape: tuple[int, ...]) -> Tensor | None:
    """Check prototypes or biases, without reading their values, and return them as a tensor.

    Args:
        name: Name of the argument.
        values: A tensor or an array; None is accepted.
        shape: Required shape.

    Raises:
        ValueError: They have another type or shape, or are not floating-point numbers.
    """
    if values is None:
        return None
    if not isinstance(values, Tensor | np.ndarray):
        raise ValueError(f"{name} must be a tensor or a NumPy array, got {type(values).__name__}")
    if tuple(values.shape) != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(values.shape)}")
    if not is_floating(values):
        raise ValueError(f"{name} must be floating-point numbers, got {values.dtype}")
    return as_tensor(name, values)


def check_finite(name: str, values: Tensor | None) -> None:
    """Check that prototypes or biases are finite; None is accepted.

    Raises:
        ValueError: They are not.
    """
    if values is not None and not bool(torch.isfinite(values).all()):
        raise ValueError(f"{name} must be finite, got NaN or infinity")


def is_foreign(state: Tensor) -> bool:
    """Whether a state must not be changed in place.

    A reset in inference mode creates tensors that only inference mode may change, and a metric
    that was sent to several processes has its state in memory that they all share.
    """
    return state.is_inference() or (state.device.type == "cpu" and state.is_shared())
