"""Heads: what turns features into classes, and where prototypes live."""

from protosphere.classifiers.cosine import CosineClassifier
from protosphere.classifiers.fixed import FixedFrameClassifier
from protosphere.classifiers.linear import LinearClassifier

__all__ = ["CosineClassifier", "FixedFrameClassifier", "LinearClassifier"]
