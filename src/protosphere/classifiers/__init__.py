"""Classifiers: heads with learned, fixed or fitted prototypes, and a scikit-learn estimator."""

from typing import TYPE_CHECKING, Any

from protosphere.classifiers.class_means import ClassMeans, class_means, empty_means
from protosphere.classifiers.class_scatter import ClassScatter, class_scatter, empty_scatter
from protosphere.classifiers.cosine import CosineClassifier
from protosphere.classifiers.fixed_etf import FixedFrameClassifier
from protosphere.classifiers.linear import LinearClassifier
from protosphere.classifiers.mean import MeanClassifier
from protosphere.classifiers.protocol import FittedHead, Head
from protosphere.classifiers.scores import rejection_score
from protosphere.classifiers.sharded import ShardedCosineClassifier
from protosphere.classifiers.shrinkage import cross_validated_shrinkage
from protosphere.classifiers.whitening import (
    WhitenedClassMeans,
    Whitening,
    whitened_class_means,
)

if TYPE_CHECKING:
    from protosphere.classifiers.prototypes import PrototypeClassifier

__all__ = [
    "ClassMeans",
    "ClassScatter",
    "CosineClassifier",
    "FittedHead",
    "FixedFrameClassifier",
    "Head",
    "LinearClassifier",
    "MeanClassifier",
    "PrototypeClassifier",
    "ShardedCosineClassifier",
    "WhitenedClassMeans",
    "Whitening",
    "class_means",
    "class_scatter",
    "cross_validated_shrinkage",
    "empty_means",
    "empty_scatter",
    "rejection_score",
    "whitened_class_means",
]


def __getattr__(name: str) -> Any:
    # PrototypeClassifier needs scikit-learn; the heads do not.
    if name == "PrototypeClassifier":
        from protosphere.classifiers.prototypes import PrototypeClassifier  # noqa: PLC0415

        return PrototypeClassifier
    raise AttributeError(f"module 'protosphere.classifiers' has no attribute {name!r}")
