"""What every head asks of its arguments."""

from torch import Tensor


def check_head(dim: int, num_classes: int) -> None:
    """Raise ValueError unless a head of this size makes sense."""
    if dim < 1 or num_classes < 2:
        raise ValueError(
            f"a classifier needs dim ≥ 1 and num_classes ≥ 2; got dim={dim}, num_classes={num_classes}"
        )


def check_width(features: Tensor, dim: int) -> None:
    """Raise ValueError unless the features are a matrix as wide as the head."""
    if features.ndim != 2 or features.shape[1] != dim:
        raise ValueError(
            f"features must be a matrix (samples, {dim}), as wide as the head; got {tuple(features.shape)}"
        )


def check_positive(value: float, name: str) -> None:
    """Raise ValueError unless this is a positive, finite number."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be a positive number; got {value}")
