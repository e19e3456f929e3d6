"""Freezing: parts of a backbone that training must not change, running statistics included."""

from typing import Literal, TypeAlias

from torch import nn

from protosphere.encoders.encoder import Encoder
from protosphere.encoders.timm_models import layer_ids

Freeze: TypeAlias = Literal["none", "backbone"] | int


def freeze_backbone(encoder: Encoder, freeze: Freeze) -> None:
    """Freeze the backbone of an encoder or its first stages, in place.

    Frozen parameters do not require gradients. Frozen modules stay in evaluation mode after
    ``encoder.train()``, so that their batch norms neither use nor change batch statistics and their
    dropout does nothing. Nothing that is frozen already is trained again.

    Args:
        encoder: The encoder.
        freeze: ``"none"``, ``"backbone"``, or a number of stages: the stem and as many of the first
            stages of the backbone. 0 is the stem alone.

    Raises:
        ValueError: ``freeze`` is something else, the backbone has no stages, or not as many.
        ImportError: A number of stages is given and timm is not installed.

    >>> from protosphere.encoders import create_backbone
    >>> encoder = Encoder(create_backbone("small"))
    >>> freeze_backbone(encoder, 1)
    >>> [name for name, weight in encoder.named_parameters() if weight.requires_grad]
    ['backbone.layers.6.weight', 'backbone.layers.7.weight', 'backbone.layers.7.bias']
    """
    backbone = encoder.backbone
    names = _frozen_parameters(backbone, freeze)
    if freeze == "none":
        return
    for name, parameter in backbone.named_parameters():
        if name in names:
            parameter.requires_grad_(False)
    # Also what has no parameters, such as dropout, if everything is frozen.
    frozen = [backbone] if freeze == "backbone" else _frozen_modules(backbone)
    encoder.frozen_modules = tuple(frozen)
    for module in frozen:
        module.eval()


def _frozen_parameters(backbone: nn.Module, freeze: Freeze) -> set[str]:
    """Return the names of the parameters to freeze."""
    if freeze == "none":
        return set()
    if freeze == "backbone":
        return {name for name, _ in backbone.named_parameters()}
    if isinstance(freeze, bool) or not isinstance(freeze, int):
        raise ValueError(f"freeze must be 'none', 'backbone' or a number of stages, got {freeze!r}")
    try:
        ids, num_layers = layer_ids(backbone, coarse=True)
    except ValueError:
        kind = type(backbone).__name__
        raise ValueError(
            f"freeze must be 'none' or 'backbone' for a backbone without stages ({kind}), "
            f"got {freeze}"
        ) from None
    if not 0 <= freeze < num_layers:
        raise ValueError(
            f"freeze must be 'none', 'backbone' or a number of stages from 0 to {num_layers - 1} "
            f"for this backbone, got {freeze}"
        )
    return {name for name, layer in ids.items() if layer <= freeze}


def _frozen_modules(module: nn.Module) -> list[nn.Module]:
    """Return the largest submodules that have parameters of which none requires a gradient."""
    frozen = []
    for child in module.children():
        required = [parameter.requires_grad for parameter in child.parameters()]
        if required and not any(required):
            frozen.append(child)
        else:
            frozen += _frozen_modules(child)
    return frozen
