"""Evaluation: accuracy and geometry of a trained objective, predictions, probes.

The probes are in :mod:`protosphere.evaluation.probes`.
"""

from protosphere.evaluation.calibration import (
    adaptive_calibration_error,
    expected_calibration_error,
)
from protosphere.evaluation.class_report import (
    ClassResult,
    ConfusedPair,
    class_results,
    confused_pairs,
    weakest_classes,
)
from protosphere.evaluation.evaluate import Evaluation, evaluate, fit_head
from protosphere.evaluation.export import ExportError, export_model, to_onnx, to_safetensors
from protosphere.evaluation.geometry_arrays import geometry_arrays
from protosphere.evaluation.inference import (
    LabeledFeatures,
    Outputs,
    collect_outputs,
    encode,
    evaluation_mode,
    iterate_outputs,
)
from protosphere.evaluation.predict import Predictions, predict_images

__all__ = [
    "ClassResult",
    "ConfusedPair",
    "Evaluation",
    "ExportError",
    "LabeledFeatures",
    "Outputs",
    "Predictions",
    "adaptive_calibration_error",
    "class_results",
    "collect_outputs",
    "confused_pairs",
    "encode",
    "evaluate",
    "evaluation_mode",
    "expected_calibration_error",
    "export_model",
    "fit_head",
    "geometry_arrays",
    "iterate_outputs",
    "predict_images",
    "to_onnx",
    "to_safetensors",
    "weakest_classes",
]
