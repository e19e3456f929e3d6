"""Necks let non-negative features reach negative cosines."""

import pytest
import torch

from protosphere.encoders import neck


def test_none_and_linear_start_as_the_identity() -> None:
    features = torch.rand(8, 5)
    assert torch.equal(neck("none", 5)(features), features)
    torch.testing.assert_close(neck("linear", 5)(features), features)


@pytest.mark.parametrize("kind", ["batchnorm", "linear"])
def test_a_neck_can_make_cosines_negative_where_relu_cannot(kind: str) -> None:
    from protosphere.classifiers import CosineClassifier
    from protosphere.geometry import cosines
    from protosphere.losses import nonl_loss

    labels = torch.arange(30) % 3
    inputs = torch.eye(3)[labels] + 0.1 * torch.randn(30, 3)
    means = {}
    for name in ("none", kind):
        encoder = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), neck(name, 16))
        head = CosineClassifier(16, 3)
        optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=0.02)
        for _ in range(150):
            optimizer.zero_grad()
            nonl_loss(encoder(inputs), head.prototypes, labels, temperature=0.5).backward()
            optimizer.step()
        features = encoder(inputs).detach()
        centers = torch.stack([features[labels == c].mean(0) for c in range(3)])
        means[name] = cosines(centers, centers)[~torch.eye(3, dtype=torch.bool)]
    assert means["none"].min() >= 0
    assert means[kind].max() < -0.3


@pytest.mark.bad_input
def test_unknown_necks() -> None:
    with pytest.raises(ValueError, match='a neck is "none", "batchnorm" or "linear"; got \'mlp\''):
        neck("mlp", 4)
    with pytest.raises(ValueError, match="a neck needs dim ≥ 1; got 0"):
        neck("none", 0)
