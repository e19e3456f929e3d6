"""Argument checks shared by the heads."""

from numbers import Real

from torch import Tensor

from protosphere.geometry.checks import check_at_least


def check_head_size(dim: int, num_classes: int) -> None:
    """Raise ValueError unless a head of this size can exist."""
    check_at_least("dim", dim, 1)
    check_at_least("num_classes", num_classes, 2)


def check_feature_dim(features: Tensor, dim: int) -> None:
    """Raise ValueError unless the last axis of the features has the size of the head."""
    if features.ndim < 1 or features.shape[-1] != dim:
        raise ValueError(
            f"features must have shape (..., {dim}) for this head, got {tuple(features.shape)}"
        )


def check_temperature(temperature: float, *, name: str = "temperature") -> None:
    """Raise ValueError unless the temperature is a positive, finite number."""
    is_number = isinstance(temperature, Real) and not isinstance(temperature, bool)
    if not is_number or not 0 < temperature < float("inf"):
        raise ValueError(f"{name} must be a positive number, got {temperature!r}")


def check_learned_temperature(
    temperature: float, learn_temperature: bool, min_temperature: float | None
) -> None:
    """Raise ValueError unless a temperature that may be learned fits its lower bound."""
    check_temperature(temperature)
    if min_temperature is not None:
        check_temperature(min_temperature, name="min_temperature")
        if not learn_temperature:
            raise ValueError("min_temperature has no effect without learn_temperature=True")
        if temperature < min_temperature:
            raise ValueError(
                f"temperature must be at least min_temperature ({min_temperature}), "
                f"got {temperature}"
            )


def nonfinite_error(row: int) -> ValueError:
    """Return the error for features with NaN, infinity or a norm that overflows."""
    return ValueError(
        f"features must be finite, without NaN, inf or overflowing norms; row {row} is not"
    )
