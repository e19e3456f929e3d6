"""Projection heads: what stands between encoder and loss in contrastive training."""

from typing import Literal

from torch import nn

ProjectionKind = Literal["none", "linear", "mlp"]


def projection(
    kind: ProjectionKind, dim: int, *, hidden: int | None = None, out: int = 128
) -> nn.Module:
    """A projection head.

    Args:
        kind: ``"mlp"`` is linear, ReLU, linear; ``"linear"`` one linear map; ``"none"`` leaves the features.
        dim: of the features.
        hidden: the width between the two maps of an MLP; without it ``dim``.
        out: the width of what comes out, unless the kind is ``"none"``.

    Returns:
        The module.

    Raises:
        ValueError: an unknown kind, or a width below 1.

    >>> projection("mlp", 512)[-1]
    Linear(in_features=512, out_features=128, bias=True)
    """
    hidden = dim if hidden is None else hidden
    if min(dim, hidden, out) < 1:
        raise ValueError(f"a projection needs widths ≥ 1; got {dim}, {hidden} and {out}")
    if kind == "none":
        return nn.Identity()
    if kind == "linear":
        return nn.Linear(dim, out)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, out))
    raise ValueError(f'a projection is "none", "linear" or "mlp"; got {kind!r}')
