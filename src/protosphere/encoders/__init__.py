"""Encoders: what turns inputs into features."""

from protosphere.encoders.backbones import backbone
from protosphere.encoders.necks import neck
from protosphere.encoders.projections import projection

__all__ = ["backbone", "neck", "projection"]
