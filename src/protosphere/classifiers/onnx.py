"""ONNX export of a prototype classifier, written operator by operator without an exporter."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from protosphere.classifiers.prototypes import PrototypeClassifier

_OPSET = 18


def export_onnx(classifier: "PrototypeClassifier", path: Path | str) -> None:
    """Write a classifier as ONNX.

    The model has one input, ``features`` of shape (batch, dim) in float32, of any norm, and two
    outputs of shape (batch, classes) in the order of ``classes_``: ``scores``, the scores divided
    by the temperature, and ``probabilities``.

    Args:
        classifier: A fitted classifier in which every class has samples.
        path: File to write.

    Raises:
        ImportError: onnx is not installed.
        ValueError: A class has no samples, so that its score would be −∞.
    """
    try:
        from onnx import TensorProto, checker, helper, numpy_helper, save  # noqa: PLC0415
    except ImportError as error:
        raise ImportError('ONNX export needs onnx: pip install "protosphere[export]"') from error
    if not bool((classifier.weights_ > 0).all()):
        empty = classifier.classes_[classifier.weights_ == 0][0]
        raise ValueError(f"every class must have samples to be exported, but {empty!s} has none")
    layer = classifier.to_linear()
    weight = layer.weight.detach().numpy().T
    constants = {
        "weight": np.ascontiguousarray(weight),
        "bias": layer.bias.detach().numpy(),
        "min_norm": np.float32(1e-12),
        "axes": np.array([1], np.int64),
    }
    nodes = [
        helper.make_node("ReduceL2", ["features", "axes"], ["norms"], keepdims=1),
        helper.make_node("Max", ["norms", "min_norm"], ["safe_norms"]),
        helper.make_node("Div", ["features", "safe_norms"], ["unit"]),
        helper.make_node("Gemm", ["unit", "weight", "bias"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
    ]
    dim, classes = weight.shape
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", classes])
        for name in ("scores", "probabilities")
    ]
    graph = helper.make_graph(
        nodes,
        "prototypes",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", dim])],
        outputs,
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
    checker.check_model(model)
    save(model, str(path))
