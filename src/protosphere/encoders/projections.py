"""Projection heads: the layers between the features and the loss in contrastive training."""

from typing import Literal

from torch import nn

ProjectionName = Literal["linear", "mlp"]


def create_projection(
    name: ProjectionName, dim: int, *, hidden_dim: int | None = None, out_dim: int = 128
) -> nn.Module:
    """Create a projection head.

    Args:
        name: ``"mlp"`` is linear, ReLU, linear; ``"linear"`` is one linear layer.
        dim: Width of the features.
        hidden_dim: Width of the hidden layer (``"mlp"`` only). None means ``dim``.
        out_dim: Width of the output.

    Returns:
        The module.

    Raises:
        ValueError: The name is unknown, a width is less than 1, or ``hidden_dim`` is given for a
            projection without a hidden layer.

    >>> create_projection("mlp", 512)[-1]
    Linear(in_features=512, out_features=128, bias=True)
    """
    widths = {"dim": dim, "hidden_dim": dim if hidden_dim is None else hidden_dim}
    for key, width in (widths | {"out_dim": out_dim}).items():
        if width < 1:
            raise ValueError(f"{key} must be at least 1, got {width}")
    if name == "linear":
        if hidden_dim is not None:
            raise ValueError(f"hidden_dim is for the projection 'mlp' only, got {hidden_dim}")
        return nn.Linear(dim, out_dim)
    if name == "mlp":
        hidden = widths["hidden_dim"]
        return nn.Sequential(
            nn.Linear(dim, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, out_dim)
        )
    raise ValueError(f"projection must be 'linear' or 'mlp', got {name!r}")
