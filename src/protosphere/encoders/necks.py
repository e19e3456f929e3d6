"""Necks: the last step of an encoder that ends in a ReLU, so that its features can reach the simplex."""

from typing import Literal

from torch import nn

NeckKind = Literal["none", "batchnorm", "linear"]


def neck(kind: NeckKind, dim: int) -> nn.Module:
    """What stands between the encoder and the head.

    A ReLU encoder has non-negative features, whose cosines are never negative: orthogonal class means are the best it
    can do, and the simplex is out of its reach. A neck without a final ReLU removes the barrier.

    Args:
        kind: ``"none"`` leaves the features as they are; ``"batchnorm"`` centers and scales each of them;
            ``"linear"`` learns a square linear map without bias, which starts as the identity.
        dim: width of the features, before and after.

    Returns:
        The module.

    Raises:
        ValueError: an unknown kind, or a width below 1.

    >>> neck("linear", 512)
    Linear(in_features=512, out_features=512, bias=False)
    """
    if dim < 1:
        raise ValueError(f"a neck needs dim ≥ 1; got {dim}")
    if kind == "none":
        return nn.Identity()
    if kind == "batchnorm":
        return nn.BatchNorm1d(dim)
    if kind == "linear":
        layer = nn.Linear(dim, dim, bias=False)
        nn.init.eye_(layer.weight)
        return layer
    raise ValueError(f'a neck is "none", "batchnorm" or "linear"; got {kind!r}')
