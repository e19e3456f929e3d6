"""Encoders: networks that map images to features."""

from protosphere.encoders.backbones import create_backbone
from protosphere.encoders.encoder import Encoder
from protosphere.encoders.freezing import freeze_backbone
from protosphere.encoders.necks import create_neck
from protosphere.encoders.pretrained import InputConfig, input_config
from protosphere.encoders.projections import create_projection

__all__ = [
    "Encoder",
    "InputConfig",
    "create_backbone",
    "create_neck",
    "create_projection",
    "freeze_backbone",
    "input_config",
]
