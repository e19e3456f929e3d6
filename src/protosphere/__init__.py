"""Supervised learning as learning class prototypes on the unit sphere.

The common names are available at the top level and imported on first use, so that
``import protosphere`` is quick and does not load torch:

>>> import protosphere
>>> protosphere.nonl_loss.__name__
'nonl_loss'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protosphere.classifiers import (
        CosineClassifier,
        FixedFrameClassifier,
        LinearClassifier,
        MeanClassifier,
        PrototypeClassifier,
    )
    from protosphere.losses import (
        CrossEntropyLoss,
        DotRegressionLoss,
        NONLFromLogits,
        NONLLoss,
        NormFaceFromLogits,
        NormFaceLoss,
        NTCEFromLogits,
        NTCELoss,
        PrototypeLoss,
        SCLLoss,
        cross_entropy_loss,
        dot_regression_loss,
        nonl_from_logits,
        nonl_loss,
        normface_from_logits,
        normface_loss,
        ntce_from_logits,
        ntce_loss,
        prototype_loss,
        scl_loss,
    )
    from protosphere.metrics import NeuralCollapse, measure, measure_detailed
    from protosphere.recipes.loading import load_run

__version__ = "0.2.0"

_PACKAGES = (
    "classifiers",
    "data",
    "encoders",
    "evaluation",
    "geometry",
    "kernels",
    "losses",
    "metrics",
    "recipes",
    "runs",
    "storage",
    "training",
)

# Where each name of the top level is defined.
_NAMES = {
    "CosineClassifier": "classifiers",
    "FixedFrameClassifier": "classifiers",
    "LinearClassifier": "classifiers",
    "MeanClassifier": "classifiers",
    "PrototypeClassifier": "classifiers",
    "CrossEntropyLoss": "losses",
    "DotRegressionLoss": "losses",
    "NONLFromLogits": "losses",
    "NONLLoss": "losses",
    "NTCEFromLogits": "losses",
    "NTCELoss": "losses",
    "NormFaceFromLogits": "losses",
    "NormFaceLoss": "losses",
    "PrototypeLoss": "losses",
    "SCLLoss": "losses",
    "cross_entropy_loss": "losses",
    "dot_regression_loss": "losses",
    "nonl_from_logits": "losses",
    "nonl_loss": "losses",
    "normface_from_logits": "losses",
    "normface_loss": "losses",
    "ntce_from_logits": "losses",
    "ntce_loss": "losses",
    "prototype_loss": "losses",
    "scl_loss": "losses",
    "NeuralCollapse": "metrics",
    "measure": "metrics",
    "measure_detailed": "metrics",
    "load_run": "recipes.loading",
}

__all__ = [  # noqa: PLE0604
    "CosineClassifier",
    "CrossEntropyLoss",
    "DotRegressionLoss",
    "FixedFrameClassifier",
    "LinearClassifier",
    "MeanClassifier",
    "NONLFromLogits",
    "NONLLoss",
    "NTCEFromLogits",
    "NTCELoss",
    "NeuralCollapse",
    "NormFaceFromLogits",
    "NormFaceLoss",
    "PrototypeClassifier",
    "PrototypeLoss",
    "SCLLoss",
    "__version__",
    "cross_entropy_loss",
    "dot_regression_loss",
    "load_run",
    "measure",
    "measure_detailed",
    "nonl_from_logits",
    "nonl_loss",
    "normface_from_logits",
    "normface_loss",
    "ntce_from_logits",
    "ntce_loss",
    "prototype_loss",
    "scl_loss",
    *_PACKAGES,
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"protosphere.{name}")
    if name in _NAMES:
        return getattr(import_module(f"protosphere.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'protosphere' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
