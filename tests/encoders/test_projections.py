"""Projection heads: layers, widths, and settings that do not apply."""

from typing import Any

import pytest
import torch
from torch import nn

from protosphere.encoders import create_projection


def test_linear_is_one_layer() -> None:
    projection = create_projection("linear", 20, out_dim=7)
    assert isinstance(projection, nn.Linear)
    assert projection(torch.randn(3, 20)).shape == (3, 7)


@pytest.mark.parametrize(("hidden_dim", "width"), [(11, 11), (None, 20)])
def test_mlp_is_linear_relu_linear(hidden_dim: int | None, width: int) -> None:
    projection = create_projection("mlp", 20, hidden_dim=hidden_dim, out_dim=7)
    assert isinstance(projection, nn.Sequential)
    assert [type(layer) for layer in projection] == [nn.Linear, nn.ReLU, nn.Linear]
    assert projection[0].out_features == width
    assert projection(torch.randn(3, 20)).shape == (3, 7)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("name", "dim", "options", "message"),
    [
        ("conv", 4, {}, "projection must be 'linear' or 'mlp', got 'conv'"),
        ("none", 4, {}, "projection must be 'linear' or 'mlp', got 'none'"),
        ("mlp", 0, {}, "dim must be at least 1, got 0"),
        ("mlp", 4, {"hidden_dim": 0}, "hidden_dim must be at least 1, got 0"),
        ("mlp", 4, {"out_dim": -1}, "out_dim must be at least 1, got -1"),
        ("linear", 4, {"hidden_dim": 8}, "hidden_dim is for the projection 'mlp' only, got 8"),
    ],
)
def test_invalid_settings_are_refused(
    name: Any, dim: int, options: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        create_projection(name, dim, **options)
