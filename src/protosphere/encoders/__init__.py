"""Encoders: what turns inputs into features."""

from protosphere.encoders.necks import neck

__all__ = ["neck"]
