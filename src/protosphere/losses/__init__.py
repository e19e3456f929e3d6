"""The objectives, alignment minus repulsion on the unit sphere: functions and modules."""

from protosphere.losses.dot_regression import DotRegressionLoss, dot_regression_loss
from protosphere.losses.from_logits import (
    NONLFromLogits,
    NormFaceFromLogits,
    NTCEFromLogits,
    nonl_from_logits,
    normface_from_logits,
    ntce_from_logits,
)
from protosphere.losses.normface_nonl import NormFaceNONLLoss, normface_nonl_loss
from protosphere.losses.prototype_contrast import NONLLoss, NTCELoss, nonl_loss, ntce_loss
from protosphere.losses.queue import FeatureQueue, QueuedFeatures
from protosphere.losses.sample_contrast import PrototypeLoss, SCLLoss, prototype_loss, scl_loss
from protosphere.losses.softmax import (
    CrossEntropyLoss,
    NormFaceLoss,
    cross_entropy_loss,
    normface_loss,
)
from protosphere.losses.targets import MixedLabels

__all__ = [
    "CrossEntropyLoss",
    "DotRegressionLoss",
    "FeatureQueue",
    "MixedLabels",
    "NONLFromLogits",
    "NONLLoss",
    "NTCEFromLogits",
    "NTCELoss",
    "NormFaceFromLogits",
    "NormFaceLoss",
    "NormFaceNONLLoss",
    "PrototypeLoss",
    "QueuedFeatures",
    "SCLLoss",
    "cross_entropy_loss",
    "dot_regression_loss",
    "nonl_from_logits",
    "nonl_loss",
    "normface_from_logits",
    "normface_loss",
    "normface_nonl_loss",
    "ntce_from_logits",
    "ntce_loss",
    "prototype_loss",
    "scl_loss",
]
