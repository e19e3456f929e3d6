"""Backbones: timm models by name, with a stem for small images, and a small network for digits."""

from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from protosphere.encoders.pretrained import create_pretrained, load_backbone_weights
from protosphere.encoders.timm_models import check_model_name, import_timm

Stem = Literal["imagenet", "cifar"]


class SmallConvNet(nn.Module):
    """Three convolutions and global average pooling, for 8 × 8 images on a CPU.

    Args:
        in_channels: Number of image channels.
        dim: Width of the features.
    """

    def __init__(self, in_channels: int = 1, dim: int = 64) -> None:
        super().__init__()
        widths = (in_channels, dim // 2, dim, dim)
        layers: list[nn.Module] = []
        for index, (in_width, out_width) in enumerate(pairwise(widths)):
            stride = 2 if index == 1 else 1
            layers += [
                nn.Conv2d(in_width, out_width, 3, stride, 1, bias=False),
                nn.BatchNorm2d(out_width),
                nn.ReLU(inplace=True),
            ]
        self.layers = nn.Sequential(*layers)
        self.num_features = dim

    def forward(
        self, images: Float[Tensor, "images channels height width"]
    ) -> Float[Tensor, "images dim"]:
        """Return one feature vector per image."""
        features: Tensor = self.layers(images).mean((2, 3))
        return features

    def group_matcher(self, *, coarse: bool = False) -> dict[str, Any]:  # noqa: ARG002
        """Return the layers as timm's models do: a stem and two stages of one block each."""
        blocks = [(r"^layers\.[34]\.", (0,)), (r"^layers\.[67]\.", (1,))]
        return {"stem": r"^layers\.[01]\.", "blocks": blocks}


def create_backbone(
    name: str,
    *,
    stem: Stem = "imagenet",
    in_channels: int = 3,
    zero_init_residual: bool | None = None,
    pretrained: bool | str | Path = False,
) -> nn.Module:
    """Create a network that maps images to features of shape ``(images, num_features)``.

    Args:
        name: ``"small"`` for :class:`SmallConvNet`, or the name of a timm model (``resnet18``,
            ``vit_tiny_patch16_224``, ...).
        stem: ``"cifar"`` replaces the 7 × 7 convolution of stride 2 at the start of a ResNet by a
            3 × 3 convolution of stride 1 and removes the max pooling, for images of about 32
            pixels.
        in_channels: Number of image channels.
        zero_init_residual: True initializes the weight of the last norm of each residual block
            with zero (timm's ``zero_init_last``) and a CIFAR stem with Kaiming fan-out. False is
            torchvision's initialization: the norms start at one, and a CIFAR stem has torch's
            default initialization. The other convolutions are initialized with Kaiming fan-out
            either way. None means the backbone's own default, which is True for timm's ResNets.
        pretrained: True for timm's own weights, or the path of a ``.safetensors`` file or of a
            state dict. The weights of a classifier are left out, and the first convolution is
            adapted to ``in_channels`` as timm does it.

    Returns:
        The module, randomly initialized or with the pretrained weights.

    Raises:
        ValueError: The model is unknown, does not have this stem, does not have the option
            ``zero_init_residual`` and it is given, or the pretrained weights cannot be loaded, are
            of another model or are combined with an option of the initialization.
        ImportError: timm is not installed.

    >>> create_backbone("small", in_channels=1).num_features
    64
    """
    if stem not in ("imagenet", "cifar"):
        raise ValueError(f"stem must be 'imagenet' or 'cifar', got {stem!r}")
    if pretrained is not False:
        _check_pretrained(name, stem, zero_init_residual, pretrained)
    if name == "small":
        if zero_init_residual is not None:
            raise _no_zero_init(name, zero_init_residual)
        if stem != "imagenet":
            raise _no_cifar_stem(name)
        model: nn.Module = SmallConvNet(in_channels)
    else:
        model = _create_timm_model(
            name, in_channels, zero_init_residual, timm_weights=pretrained is True
        )
    if stem == "cifar":
        _replace_stem(model, name, in_channels, fan_out=zero_init_residual is not False)
    if not isinstance(pretrained, bool):
        load_backbone_weights(model, pretrained, name=name, in_channels=in_channels)
    return model


def _check_pretrained(
    name: str, stem: Stem, zero_init: bool | None, pretrained: bool | str | Path
) -> None:
    if stem == "cifar":
        raise ValueError(
            "pretrained needs the stem 'imagenet'; the stem 'cifar' has no pretrained weights"
        )
    if zero_init is not None:
        raise ValueError(
            "zero_init_residual must not be given together with pretrained, which sets all weights"
        )
    if name == "small" and pretrained is True:
        raise ValueError(
            "pretrained must be the path of a file for the backbone 'small', which timm does not "
            "have, got true"
        )


def _create_timm_model(
    name: str, in_channels: int, zero_init: bool | None, *, timm_weights: bool
) -> nn.Module:
    check_model_name(name)
    options = {"num_classes": 0, "in_chans": in_channels}
    if timm_weights:
        return create_pretrained(name, **options)
    timm = import_timm()
    model: nn.Module
    if zero_init is None:
        model = timm.create_model(name, **options)
        return model
    try:
        model = timm.create_model(name, zero_init_last=zero_init, **options)
    except TypeError as error:  # The model's constructor does not have this argument.
        if "zero_init_last" not in str(error):
            raise
        raise _no_zero_init(name, zero_init) from error
    return model


def _replace_stem(model: nn.Module, name: str, in_channels: int, *, fan_out: bool) -> None:
    """Replace the stem of a ResNet in place."""
    first = getattr(model, "conv1", None)
    if not isinstance(first, nn.Conv2d) or not hasattr(model, "maxpool"):
        raise _no_cifar_stem(name)
    model.conv1 = nn.Conv2d(in_channels, first.out_channels, 3, 1, 1, bias=False)
    if fan_out:
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()


def _no_cifar_stem(name: str) -> ValueError:
    return ValueError(
        "stem 'cifar' needs a ResNet that starts with one convolution and a max pooling, "
        f"got {name!r}"
    )


def _no_zero_init(name: str, value: bool) -> ValueError:
    return ValueError(
        f"zero_init_residual does not apply to the backbone {name!r}, got {str(value).lower()}"
    )
