"""The objectives: alignment minus repulsion on the unit sphere, each a function and a thin module."""

from protosphere.losses.dot_regression import DotRegressionLoss, dot_regression_loss
from protosphere.losses.prototype_contrast import (
    NONLFromLogits,
    NONLLoss,
    NTCEFromLogits,
    NTCELoss,
    nonl_from_logits,
    nonl_loss,
    ntce_from_logits,
    ntce_loss,
)
from protosphere.losses.sample_contrast import PrototypeLoss, SCLLoss, prototype_loss, scl_loss
from protosphere.losses.softmax import (
    CrossEntropyLoss,
    NormFaceFromLogits,
    NormFaceLoss,
    cross_entropy_loss,
    normface_from_logits,
    normface_loss,
)

__all__ = [
    "CrossEntropyLoss",
    "DotRegressionLoss",
    "NONLFromLogits",
    "NONLLoss",
    "NTCEFromLogits",
    "NTCELoss",
    "NormFaceFromLogits",
    "NormFaceLoss",
    "PrototypeLoss",
    "SCLLoss",
    "cross_entropy_loss",
    "dot_regression_loss",
    "nonl_from_logits",
    "nonl_loss",
    "normface_from_logits",
    "normface_loss",
    "ntce_from_logits",
    "ntce_loss",
    "prototype_loss",
    "scl_loss",
]
