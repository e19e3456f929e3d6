"""Classifiers: heads that hold prototypes, learnable or fixed, and one that is class means and needs no training."""

from typing import TYPE_CHECKING, Any

from protosphere.classifiers.class_means import ClassMeans, class_means
from protosphere.classifiers.cosine import CosineClassifier
from protosphere.classifiers.fixed_etf import FixedFrameClassifier
from protosphere.classifiers.linear import LinearClassifier
from protosphere.classifiers.mean import MeanClassifier

if TYPE_CHECKING:
    from protosphere.classifiers.prototypes import PrototypeClassifier

__all__ = [
    "ClassMeans",
    "CosineClassifier",
    "FixedFrameClassifier",
    "LinearClassifier",
    "MeanClassifier",
    "PrototypeClassifier",
    "class_means",
]


def __getattr__(name: str) -> Any:
    # It needs scikit-learn, which the losses do not.
    if name == "PrototypeClassifier":
        from protosphere.classifiers.prototypes import PrototypeClassifier  # noqa: PLC0415

        return PrototypeClassifier
    raise AttributeError(f"module 'protosphere.classifiers' has no attribute {name!r}")
