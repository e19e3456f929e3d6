"""ONNX export of a prototype classifier, written operator by operator without an exporter."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    constants, steps = _operators(classifier)
    dim, classes = constants["weight"].shape
    nodes = [
        helper.make_node(step.operator, step.inputs, [step.output], **step.attributes)
        for step in steps
    ]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", classes])
        for name in ("scores", "probabilities")
    ]
    graph = helper.make_graph(
        nodes,
        "prototypes",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", dim])],
        outputs,
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
    checker.check_model(model)
    save(model, str(path))


class _Step(NamedTuple):
    """One operator of the graph."""

    operator: str
    inputs: list[str]
    output: str
    attributes: dict[str, Any]


def _operators(
    classifier: "PrototypeClassifier",
) -> tuple[dict[str, NDArray[Any]], list[_Step]]:
    """Return the constants and the operators of the graph."""
    form, temperature = classifier.score_form(), classifier.temperature_
    constants: dict[str, NDArray[Any]] = {
        "weight": np.ascontiguousarray(form.weight.T / temperature, np.float32),
        "bias": np.asarray(form.bias / temperature, np.float32),
        "min_norm": np.array(1e-12, np.float32),
        "axes": np.array([1], np.int64),
    }
    steps = _normalize("features", "unit")
    if form.whitening is None:
        steps.append(_Step("Gemm", ["unit", "weight", "bias"], "scores", {}))
    else:
        constants["center"] = form.whitening.center.astype(np.float32)
        constants["matrix"] = np.ascontiguousarray(form.whitening.matrix.T, np.float32)
        steps.append(_Step("Sub", ["unit", "center"], "centered", {}))
        steps.append(_Step("MatMul", ["centered", "matrix"], "whitened", {}))
    if form.whitening is not None and form.rule == "cosine":
        steps += _normalize("whitened", "direction")
        steps.append(_Step("Gemm", ["direction", "weight", "bias"], "scores", {}))
    elif form.whitening is not None:
        constants["temperature"] = np.array(temperature, np.float32)
        steps.append(_Step("Gemm", ["whitened", "weight", "bias"], "products", {}))
        steps.append(_Step("ReduceSumSquare", ["whitened", "axes"], "squares", {"keepdims": 1}))
        steps.append(_Step("Div", ["squares", "temperature"], "scaled_squares", {}))
        steps.append(_Step("Sub", ["products", "scaled_squares"], "scores", {}))
    steps.append(_Step("Softmax", ["scores"], "probabilities", {"axis": 1}))
    return constants, steps


def _normalize(name: str, output: str) -> list[_Step]:
    norms, safe_norms = f"{name}_norms", f"{name}_safe_norms"
    return [
        _Step("ReduceL2", [name, "axes"], norms, {"keepdims": 1}),
        _Step("Max", [norms, "min_norm"], safe_norms, {}),
        _Step("Div", [name, safe_norms], output, {}),
    ]
