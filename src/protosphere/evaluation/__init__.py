"""Evaluation: accuracy and geometry of a trained objective, predictions, probes.

The probes are in :mod:`protosphere.evaluation.probes`.
"""

from protosphere.evaluation.average_precision import (
    eleven_point_average_precision,
    mean_average_precision,
    mean_per_class_accuracy,
)
from protosphere.evaluation.calibration import (
    Calibration,
    CalibrationMetrics,
    ReliabilityBin,
    adaptive_calibration_error,
    expected_calibration_error,
    measure_calibration,
    reliability_table,
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
from protosphere.evaluation.label_noise import NoiseResult, measure_noise
from protosphere.evaluation.logistic_regression import (
    LogisticRegressionFit,
    fit_logistic_regression,
    fit_one_vs_rest,
    fit_one_vs_rest_path,
    fit_regularization_path,
)
from protosphere.evaluation.long_tail import (
    ClassifierResult,
    balanced_temperature,
    class_accuracies,
    classify_long_tail,
    group_accuracy,
    shot_groups,
)
from protosphere.evaluation.ood import OodDetector, fit_detector
from protosphere.evaluation.predict import Predictions, predict_images
from protosphere.evaluation.regularization import (
    RegularizationChoice,
    choose_one_vs_rest,
    choose_regularization,
    regularization_grid,
)
from protosphere.evaluation.roc import (
    DetectionMetrics,
    auroc,
    detection_metrics,
    false_positive_rate,
)
from protosphere.evaluation.temperature_scaling import TemperatureFit, fit_temperature
from protosphere.metrics.coinciding_prototypes import (
    CoincidingPrototypes,
    PrototypePair,
    find_coinciding_prototypes,
)

__all__ = [
    "Calibration",
    "CalibrationMetrics",
    "ClassResult",
    "ClassifierResult",
    "CoincidingPrototypes",
    "ConfusedPair",
    "DetectionMetrics",
    "Evaluation",
    "ExportError",
    "LabeledFeatures",
    "LogisticRegressionFit",
    "NoiseResult",
    "OodDetector",
    "Outputs",
    "Predictions",
    "PrototypePair",
    "RegularizationChoice",
    "ReliabilityBin",
    "TemperatureFit",
    "adaptive_calibration_error",
    "auroc",
    "balanced_temperature",
    "choose_one_vs_rest",
    "choose_regularization",
    "class_accuracies",
    "class_results",
    "classify_long_tail",
    "collect_outputs",
    "confused_pairs",
    "detection_metrics",
    "eleven_point_average_precision",
    "encode",
    "evaluate",
    "evaluation_mode",
    "expected_calibration_error",
    "export_model",
    "false_positive_rate",
    "find_coinciding_prototypes",
    "fit_detector",
    "fit_head",
    "fit_logistic_regression",
    "fit_one_vs_rest",
    "fit_one_vs_rest_path",
    "fit_regularization_path",
    "fit_temperature",
    "geometry_arrays",
    "group_accuracy",
    "iterate_outputs",
    "mean_average_precision",
    "mean_per_class_accuracy",
    "measure_calibration",
    "measure_noise",
    "predict_images",
    "regularization_grid",
    "reliability_table",
    "shot_groups",
    "to_onnx",
    "to_safetensors",
    "weakest_classes",
]
