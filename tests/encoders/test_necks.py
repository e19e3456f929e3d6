"""Necks let non-negative features reach negative cosines."""

from typing import Any

import pytest
import torch
from torch import nn

from protosphere.encoders import create_neck


def test_none_is_no_module() -> None:
    assert create_neck("none", 5) is None


def test_the_linear_neck_starts_as_the_identity() -> None:
    neck = create_neck("linear", 5)
    assert isinstance(neck, nn.Linear)
    features = torch.rand(8, 5)
    torch.testing.assert_close(neck(features), features)


def test_the_batchnorm_neck_centers_and_scales() -> None:
    neck = create_neck("batchnorm", 5)
    assert neck is not None
    features = neck(torch.rand(100, 5))
    torch.testing.assert_close(features.mean(0), torch.zeros(5), rtol=0, atol=1e-5)
    torch.testing.assert_close(features.std(0), torch.ones(5), rtol=0, atol=0.01)


@pytest.mark.parametrize("name", ["batchnorm", "linear"])
def test_a_neck_can_make_cosines_negative_where_relu_cannot(name: Any) -> None:
    from protosphere.classifiers import CosineClassifier
    from protosphere.geometry import cosines
    from protosphere.losses import nonl_loss

    labels = torch.arange(30) % 3
    inputs = torch.eye(3)[labels] + 0.1 * torch.randn(30, 3)
    off_diagonal = {}
    for neck in (None, create_neck(name, 16)):
        layers = [nn.Linear(3, 16), nn.ReLU(), *([] if neck is None else [neck])]
        encoder = nn.Sequential(*layers)
        head = CosineClassifier(16, 3)
        optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=0.02)
        for _ in range(150):
            optimizer.zero_grad()
            nonl_loss(encoder(inputs), head.prototypes, labels, temperature=0.5).backward()
            optimizer.step()
        features = encoder(inputs).detach()
        means = torch.stack([features[labels == label].mean(0) for label in range(3)])
        pairs = cosines(means, means)[~torch.eye(3, dtype=torch.bool)]
        off_diagonal[neck is None] = pairs
    assert off_diagonal[True].min() >= 0
    assert off_diagonal[False].max() < -0.3


@pytest.mark.bad_input
def test_invalid_settings_are_refused() -> None:
    message = "neck must be 'none', 'batchnorm' or 'linear', got 'mlp'"
    with pytest.raises(ValueError, match=message):
        create_neck("mlp", 4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dim must be at least 1, got 0"):
        create_neck("none", 0)
