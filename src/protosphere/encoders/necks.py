"""Necks: a last layer without ReLU, so that the features can have negative cosines."""

from typing import Literal

from torch import nn

NeckName = Literal["none", "batchnorm", "linear"]


def create_neck(name: NeckName, dim: int) -> nn.Module | None:
    """Create the module between the backbone and the head.

    A backbone that ends in a ReLU has non-negative features, whose cosines are never negative:
    orthogonal class means are the best it can reach, and the simplex is out of its range. A neck
    without a final ReLU removes this limit.

    Args:
        name: ``"none"`` for no neck; ``"batchnorm"`` centers and scales each feature;
            ``"linear"`` is a square linear layer without bias, initialized as the identity.
        dim: Width of the features, before and after the neck.

    Returns:
        The module, or None for ``"none"``.

    Raises:
        ValueError: The name is unknown or ``dim`` is less than 1.

    >>> create_neck("linear", 512)
    Linear(in_features=512, out_features=512, bias=False)
    """
    if dim < 1:
        raise ValueError(f"dim must be at least 1, got {dim}")
    if name == "none":
        return None
    if name == "batchnorm":
        return nn.BatchNorm1d(dim)
    if name == "linear":
        layer = nn.Linear(dim, dim, bias=False)
        nn.init.eye_(layer.weight)
        return layer
    raise ValueError(f"neck must be 'none', 'batchnorm' or 'linear', got {name!r}")
