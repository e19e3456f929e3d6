"""Backbones: widths, stems, initialization, and names that do not exist."""

import pytest
import torch
from torch import Tensor, nn

from protosphere.encoders import create_backbone
from protosphere.encoders.backbones import Stem

FAN_OUT_STD = (2 / (9 * 64)) ** 0.5  # 3 × 3 kernels to 64 channels
DEFAULT_STD = (3 * 9 * 3) ** -0.5  # torch's default: uniform, variance 1 / (3 · fan-in)


def norm_weights(model: nn.Module, *, last: bool) -> list[Tensor]:
    """Return the norm weights of a ResNet-18: at the end of the blocks, or all others."""
    norms = [pair for pair in model.named_modules() if isinstance(pair[1], nn.BatchNorm2d)]
    return [norm.weight.detach() for name, norm in norms if name.endswith("bn2") == last]


@pytest.mark.parametrize(
    ("name", "stem", "channels", "side"),
    [
        ("small", "imagenet", 1, 8),
        ("small", "imagenet", 3, 32),
        ("resnet18", "cifar", 3, 32),
        ("resnet18", "imagenet", 1, 64),
    ],
)
def test_features_have_the_stated_width(name: str, stem: Stem, channels: int, side: int) -> None:
    backbone = create_backbone(name, stem=stem, in_channels=channels)
    features = backbone(torch.randn(2, channels, side, side))
    assert features.shape == (2, backbone.num_features)


def test_other_families() -> None:
    backbone = create_backbone("vit_tiny_patch16_224")
    assert backbone(torch.randn(1, 3, 224, 224)).shape == (1, 192)


def test_the_cifar_stem_keeps_the_resolution() -> None:
    images = torch.randn(1, 3, 32, 32)
    sizes: list[tuple[Stem, int]] = [("cifar", 4), ("imagenet", 1)]
    for stem, size in sizes:
        backbone = create_backbone("resnet18", stem=stem).eval()
        assert backbone.forward_features(images).shape[-1] == size  # type: ignore[operator]
    backbone = create_backbone("resnet18", stem="cifar")
    num_weights = sum(weight.numel() for weight in backbone.parameters())
    # ResNet-18 without its classifier, with 3·64·9 stem weights in place of 3·64·49.
    assert num_weights == 11_168_832


@pytest.mark.parametrize(
    ("zero_init_residual", "last_norm", "stem_std"),
    [(True, 0.0, FAN_OUT_STD), (None, 0.0, FAN_OUT_STD), (False, 1.0, DEFAULT_STD)],
)
def test_residual_blocks_start_as_the_identity_or_as_torchvisions(
    zero_init_residual: bool | None, last_norm: float, stem_std: float
) -> None:
    backbone = create_backbone("resnet18", stem="cifar", zero_init_residual=zero_init_residual)
    assert len(norm_weights(backbone, last=True)) == 8
    for weight in norm_weights(backbone, last=True):
        assert weight.unique().tolist() == [last_norm]
    for weight in norm_weights(backbone, last=False):
        assert weight.unique().tolist() == [1.0]
    stem = backbone.get_parameter("conv1.weight").detach()
    assert float(stem.std()) == pytest.approx(stem_std, rel=0.06)


@pytest.mark.parametrize("zero_init_residual", [True, False])
def test_convolutions_start_with_kaiming_fan_out(zero_init_residual: bool) -> None:
    backbone = create_backbone("resnet18", zero_init_residual=zero_init_residual)
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            expected = (2 / fan_out) ** 0.5
            assert float(module.weight.detach().std()) == pytest.approx(expected, rel=0.05)


def test_torchvisions_initialization_has_the_same_distribution() -> None:
    """The same norms, and convolutions with the same deviation, layer by layer."""
    from torchvision.models import resnet18

    found, expected = create_backbone("resnet18", zero_init_residual=False), resnet18()
    theirs = dict(expected.named_parameters())
    for name, weight in found.named_parameters():
        reference = theirs[name]
        assert weight.shape == reference.shape
        if weight.ndim == 4:
            assert float((weight.std() / reference.std()).detach()) == pytest.approx(1, abs=0.05)
        else:
            assert torch.equal(weight, reference)


@pytest.mark.parametrize("name", ["small", "vit_tiny_patch16_224"])
def test_options_that_a_backbone_does_not_have_are_refused(name: str) -> None:
    create_backbone(name, zero_init_residual=None)
    for value in (True, False):
        message = f"zero_init_residual does not apply to the backbone '{name}', got"
        with pytest.raises(ValueError, match=message):
            create_backbone(name, zero_init_residual=value)
    with pytest.raises(ValueError, match="stem 'cifar' needs a ResNet"):
        create_backbone(name, stem="cifar")


@pytest.mark.bad_input
def test_unknown_names_are_refused() -> None:
    message = "backbone must be 'small' or a timm model, got 'resnet81'; did you mean 'resnet"
    with pytest.raises(ValueError, match=message):
        create_backbone("resnet81")
    with pytest.raises(ValueError, match=r"stem 'cifar' needs a ResNet .*, got 'vit_tiny_patch16"):
        create_backbone("vit_tiny_patch16_224", stem="cifar")
    with pytest.raises(ValueError, match="stem must be 'imagenet' or 'cifar', got 'mnist'"):
        create_backbone("resnet18", stem="mnist")  # type: ignore[arg-type]
