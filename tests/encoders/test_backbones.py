"""Backbones and projection heads: shapes, stems, and names that do not exist."""

import pytest
import torch

from protosphere.encoders import backbone, projection


@pytest.mark.parametrize(
    ("name", "stem", "channels", "side"),
    [
        ("small", "imagenet", 1, 8),
        ("small", "cifar", 3, 32),
        ("resnet18", "cifar", 3, 32),
        ("resnet18", "imagenet", 1, 64),
    ],
)
def test_features_are_as_wide_as_promised(name: str, stem: str, channels: int, side: int) -> None:
    encoder = backbone(name, stem=stem, in_channels=channels)
    features = encoder(torch.randn(2, channels, side, side))
    assert features.shape == (2, encoder.num_features)


def test_the_cifar_stem_keeps_small_images_large() -> None:
    sizes = {}
    for stem in ("cifar", "imagenet"):
        encoder = backbone("resnet18", stem=stem)
        sizes[stem] = encoder.eval().forward_features(torch.randn(1, 3, 32, 32)).shape[-1]
    assert sizes == {"cifar": 4, "imagenet": 1}
    weights = sum(weight.numel() for weight in backbone("resnet18", stem="cifar").parameters())
    assert backbone("resnet18", stem="cifar").conv1.weight.std().item() == pytest.approx(
        (2 / (9 * 64)) ** 0.5, rel=0.1
    )
    assert weights == 11_168_832  # ResNet-18 without its classifier: 3·64·9 in place of 3·64·49


def test_other_families() -> None:
    encoder = backbone("vit_tiny_patch16_224")
    assert encoder(torch.randn(1, 3, 224, 224)).shape == (1, 192)


def test_projections() -> None:
    features = torch.randn(3, 20)
    assert projection("none", 20)(features) is features
    assert projection("linear", 20, out=7)(features).shape == (3, 7)
    head = projection("mlp", 20, hidden=11, out=7)
    assert head(features).shape == (3, 7)
    assert head[0].out_features == 11


@pytest.mark.bad_input
def test_what_does_not_exist() -> None:
    with pytest.raises(
        ValueError,
        match=r"a backbone must be 'small' or a model of timm; got 'resnet81'; did you mean 'resnet",
    ):
        backbone("resnet81")
    with pytest.raises(ValueError, match="the cifar stem is for ResNets"):
        backbone("vit_tiny_patch16_224", stem="cifar")
    with pytest.raises(ValueError, match="a stem is 'imagenet' or 'cifar'; got 'mnist'"):
        backbone("resnet18", stem="mnist")
    with pytest.raises(ValueError, match='a projection is "none", "linear" or "mlp"; got \'conv\''):
        projection("conv", 4)
    with pytest.raises(ValueError, match="a projection needs widths ≥ 1"):
        projection("mlp", 0)
