"""Backbones: timm's by name, with a stem for small images where they are small; and a small network for digits."""

import difflib
from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

Stem = Literal["imagenet", "cifar"]


class SmallConvNet(nn.Module):
    """Three convolutions and a pool, for images of 8 × 8 pixels and a CPU.

    Args:
        in_channels: of the images.
        dim: of the features.
    """

    def __init__(self, in_channels: int = 1, dim: int = 64) -> None:
        super().__init__()
        widths = (in_channels, dim // 2, dim, dim)
        layers: list[nn.Module] = []
        for index, (before, after) in enumerate(pairwise(widths)):
            stride = 2 if index == 1 else 1
            layers += [
                nn.Conv2d(before, after, 3, stride, 1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(inplace=True),
            ]
        self.layers = nn.Sequential(*layers)
        self.num_features = dim

    def forward(self, images: Tensor) -> Tensor:
        """Features, one row an image."""
        features: Tensor = self.layers(images).mean((2, 3))
        return features


def backbone(name: str, *, stem: Stem = "imagenet", in_channels: int = 3) -> nn.Module:
    """A network that turns images into features, (images, num_features).

    Args:
        name: ``"small"`` for :class:`SmallConvNet`, or any model of timm (``resnet18`` … ``resnet152``, ``vit_…``).
        stem: ``"cifar"`` puts a 3 × 3 convolution of stride 1 in place of a ResNet's 7 × 7 of stride 2, and takes the
            pool after it out, as is done for images of 32 pixels.
        in_channels: of the images.

    Returns:
        The module; its ``num_features`` is the width of the features.

    Raises:
        ValueError: there is no such model, or it has no such stem.
        ImportError: timm is missing.

    >>> backbone("small", in_channels=1).num_features
    64
    """
    if stem not in ("imagenet", "cifar"):
        raise ValueError(f"a stem is 'imagenet' or 'cifar'; got {stem!r}")
    if name == "small":
        return SmallConvNet(in_channels)
    try:
        import timm  # noqa: PLC0415
    except ImportError as error:
        raise ImportError('backbones need timm: pip install "protosphere[train]"') from error
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, ["small", *timm.list_models()], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"a backbone must be 'small' or a model of timm; got {name!r}{hint}")
    model: nn.Module = timm.create_model(name, num_classes=0, in_chans=in_channels)
    if stem == "cifar":
        first = getattr(model, "conv1", None)
        if not isinstance(first, nn.Conv2d) or not hasattr(model, "maxpool"):
            raise ValueError(
                f"the cifar stem is for ResNets, which begin with a convolution and a pool; {name} does not"
            )
        model.conv1 = nn.Conv2d(in_channels, first.out_channels, 3, 1, 1, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.maxpool = nn.Identity()
    return model
