"""A prototype classifier as ONNX: four operators, written down rather than traced, so that no exporter is needed."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from protosphere.classifiers.prototypes import PrototypeClassifier

_OPSET = 18


def export_onnx(classifier: "PrototypeClassifier", path: Path | str) -> None:
    """Write a classifier as ONNX.

    Its input ``features`` is (batch, dim), float32, of any length and any batch; its outputs are ``scores``, divided by
    the temperature, and ``probabilities``, both (batch, classes) in the order of ``classes_``.

    Args:
        classifier: fitted, every class with samples.
        path: where.

    Raises:
        ImportError: onnx is missing.
        ValueError: a class has no samples, so that its score would be −∞.
    """
    try:
        from onnx import TensorProto, checker, helper, numpy_helper, save  # noqa: PLC0415
    except ImportError as error:
        raise ImportError('exporting needs onnx: pip install "protosphere[export]"') from error
    if not bool((classifier.weights_ > 0).all()):
        raise ValueError("every class must have samples to be exported; some have none")
    layer = classifier.to_linear()
    weight = layer.weight.detach().numpy().T
    constants = {
        "weight": np.ascontiguousarray(weight),
        "bias": layer.bias.detach().numpy(),
        "least": np.float32(1e-12),
        "axes": np.array([1], np.int64),
    }
    nodes = [
        helper.make_node("ReduceL2", ["features", "axes"], ["lengths"], keepdims=1),
        helper.make_node("Max", ["lengths", "least"], ["safe"]),
        helper.make_node("Div", ["features", "safe"], ["unit"]),
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
