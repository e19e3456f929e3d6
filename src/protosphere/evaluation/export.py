"""Export of a trained model: ONNX that is checked against torch, or weights as safetensors."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from protosphere.data import transforms
from protosphere.data.augmentation import EvaluationTransform
from protosphere.evaluation.inference import evaluation_mode
from protosphere.storage import write_atomically
from protosphere.training import Objective

ExportPart = Literal["model", "backbone"]
SUFFIXES = (".onnx", ".safetensors")
OUTPUTS = ("logits", "probabilities", "features")
_OPSET = 18
# Largest difference between onnxruntime and torch, relative to the largest value of an output.
_TOLERANCE = 1e-3
# A protobuf message cannot be larger; a mebibyte is left for the graph.
_MAX_ONNX_BYTES = 2**31 - 2**20


class ExportError(RuntimeError):
    """A model cannot be exported; the message says why. Nothing has been written."""


def export_model(
    objective: Objective,
    transform: EvaluationTransform,
    path: Path | str,
    *,
    class_names: Sequence[str],
    recipe: str,
    backbone: str,
    what: ExportPart = "model",
    overwrite: bool = False,
) -> Path:
    """Write a trained model to a file, and what is needed to use it to a JSON file beside it.

    - ``.onnx``: see :func:`to_onnx`.
    - ``.safetensors``: see :func:`to_safetensors`.

    The JSON file has the name of the file with ``.json`` appended; its values are also in the
    metadata of the file itself: recipe, backbone, head, what was exported, class names, number of
    channels, size of the images in pixels, how they are cropped, mean and standard deviation of
    each channel. Files are written completely or not at all, after everything has succeeded.

    Args:
        objective: The trained objective; it is not changed.
        transform: The transform of its evaluation images.
        path: File to write, ``.onnx`` or ``.safetensors``.
        class_names: Name of each class.
        recipe: Name of the recipe.
        backbone: Name of the backbone.
        what: The whole ``"model"``, or the ``"backbone"`` (``.safetensors`` only).
        overwrite: Whether files that exist are replaced.

    Returns:
        Path of the JSON file.

    Raises:
        ValueError: The suffix is another one, a file exists, or there is no such part to export.
        ExportError: torch cannot export the model, or the exported model gives other results.
        ImportError: A package for ONNX is not installed.
        StorageError: A file could not be written.
    """
    path = Path(path)
    described = description_path(path)
    check_export(path, what)
    for file in (path, described):
        if file.exists() and not overwrite:
            raise ValueError(f"path must be a new file unless overwrite=True, got {file}")
    metadata = {
        "recipe": recipe,
        "what": what,
        "backbone": backbone,
        "head": repr(objective.head),
        "class_names": list(class_names),
        "channels": len(transform.mean),
        "size": transform.size,
        "crop": transform.crop,
        "mean": list(transform.mean),
        "std": list(transform.std),
    }
    if path.suffix == ".onnx":
        content = to_onnx(objective, transform, metadata=metadata)
    else:
        content = to_safetensors(objective, what=what, metadata=metadata)
    write_atomically(path, content)
    write_atomically(described, f"{json.dumps(metadata, indent=2)}\n".encode())
    return described


def description_path(path: Path) -> Path:
    """Return the path of the JSON file that :func:`export_model` writes beside a file.

    >>> description_path(Path("model.onnx")).name
    'model.onnx.json'
    """
    return path.with_name(f"{path.name}.json")


def check_export(path: Path, what: ExportPart) -> None:
    """Check that a file has a known suffix and may hold what is to be exported.

    Args:
        path: The file.
        what: What is to be exported.

    Raises:
        ValueError: It does not.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"the file must end in {' or '.join(SUFFIXES)}, got {path}")
    if what not in ("model", "backbone"):
        raise ValueError(f"what must be 'model' or 'backbone', got {what!r}")
    if what == "backbone" and path.suffix == ".onnx":
        raise ValueError(f"the backbone alone is exported to a .safetensors file, got {path}")


def to_safetensors(
    objective: Objective, *, what: ExportPart = "model", metadata: dict[str, Any] | None = None
) -> bytes:
    """Return the weights of a model as the content of a safetensors file.

    Args:
        objective: The trained objective.
        what: ``"backbone"`` names the tensors as the backbone itself does, for timm models as timm
            does. ``"model"`` names them ``encoder.backbone.``, ``encoder.neck.``,
            ``encoder.projection.`` and ``head.``.
        metadata: Values for the header of the file. Texts are stored as they are, others as JSON.

    Raises:
        ValueError: The encoder has no backbone.
    """
    from safetensors.torch import save  # noqa: PLC0415

    if what == "backbone":
        backbone = getattr(objective.encoder, "backbone", None)
        if not isinstance(backbone, nn.Module):
            kind = type(objective.encoder).__name__
            raise ValueError(f"the encoder must have a backbone to export, got {kind}")
        tensors = backbone.state_dict()
    else:
        tensors = {
            name: tensor
            for name, tensor in objective.state_dict().items()
            if name.startswith(("encoder.", "head."))
        }
    # Copies, because tensors that share memory cannot be saved.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    return save(copies, {"format": "pt", **_as_texts(metadata)})


def to_onnx(
    objective: Objective,
    transform: EvaluationTransform,
    *,
    metadata: dict[str, Any] | None = None,
) -> bytes:
    """Return a model as the content of an ONNX file, after a comparison with torch.

    The model has one input, ``images`` of shape (batch, channels, size, size) with pixels between
    0 and 1 in float32, which it normalizes itself, and the outputs ``logits`` and
    ``probabilities`` of shape (batch, classes) and ``features`` of shape (batch, dim). The number
    of images is free. The results of onnxruntime for random images, in batches of different sizes,
    are compared with those of torch.

    Args:
        objective: The trained objective; it is not changed.
        transform: The transform of its evaluation images.
        metadata: Values for the metadata of the file. Texts are stored as they are, others as JSON.

    Raises:
        ImportError: onnx, onnxruntime or onnxscript is not installed.
        ExportError: torch cannot export the model, it is too large, or the results differ.
    """
    try:
        import onnx  # noqa: PLC0415
        import onnxruntime  # noqa: PLC0415
        import onnxscript  # noqa: F401, PLC0415
    except ImportError as error:
        raise ImportError(
            'ONNX export needs onnx, onnxruntime and onnxscript: pip install "protosphere[export]"'
        ) from error
    model = _ExportedModel(objective, transform)
    num_bytes = sum(tensor.nbytes for tensor in model.state_dict().values())
    if num_bytes > _MAX_ONNX_BYTES:
        raise ExportError(
            "an ONNX file must be smaller than 2 GiB, got weights of "
            f"{num_bytes / 2**30:.1f} GiB; export them to a .safetensors file"
        )
    proto = _trace(model, transform)
    _remove_traces(proto)
    onnx.helper.set_model_props(proto, _as_texts(metadata))
    onnx.checker.check_model(proto)
    content: bytes = proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    _compare(session, objective, transform)
    return content


class _ExportedModel(nn.Module):
    """From pixels between 0 and 1 to logits, probabilities and features, on the CPU."""

    def __init__(self, objective: Objective, transform: EvaluationTransform) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(objective.encoder).cpu()
        self.head = copy.deepcopy(objective.head).cpu()  # type: ignore[attr-defined]
        self.mean, self.std = transform.mean, transform.std
        self.eval()

    def forward(
        self, images: Float[Tensor, "batch channels size size"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        features = self.encoder(transforms.normalize(images, self.mean, self.std)).float()
        logits = self.head(features)
        return logits, logits.softmax(1), features


def _trace(model: nn.Module, transform: EvaluationTransform) -> Any:
    """Return the ONNX model that torch makes of a module."""
    # Two images, because torch treats a size of one as a constant.
    images = torch.rand(2, len(transform.mean), transform.size, transform.size)
    try:
        with torch.no_grad():
            program = torch.onnx.export(
                model,
                (images,),
                input_names=["images"],
                output_names=list(OUTPUTS),
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                opset_version=_OPSET,
                dynamo=True,
                verbose=False,
            )
    except RuntimeError as error:  # All errors of torch.export and torch.onnx are of this type.
        reason = str(error).strip().splitlines()[0]
        raise ExportError(f"torch cannot export this model to ONNX: {reason}") from error
    assert program is not None
    return program.model_proto


def _remove_traces(proto: Any) -> None:
    """Remove what the exporter notes of its own work: source lines with paths of this machine."""
    graph = proto.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info):
        del part.metadata_props[:]
        part.doc_string = ""


def _compare(session: Any, objective: Objective, transform: EvaluationTransform) -> None:
    """Compare the results of onnxruntime with those of the objective for random images."""
    generator = torch.Generator().manual_seed(0)
    device = objective.head.prototypes.device
    shape = (len(transform.mean), transform.size, transform.size)
    for num_images in (1, 3):
        pixels = torch.randint(0, 256, (num_images, *shape), generator=generator).byte()
        found = session.run(list(OUTPUTS), {"images": (pixels / 255).numpy()})
        with evaluation_mode(objective), torch.no_grad():
            features = objective.encoder(transform.normalize(pixels.to(device))).float()
            logits = objective.head(features)
        for name, here, there in zip(
            OUTPUTS, found, (logits, logits.softmax(1), features), strict=True
        ):
            expected = there.cpu().numpy()
            # Logits of classes without samples are −∞ in both.
            differs, is_finite = here != expected, np.isfinite(expected)
            difference = float(np.abs(here[differs] - expected[differs]).max(initial=0))
            largest = float(np.abs(expected[is_finite]).max(initial=1))
            if not difference <= _TOLERANCE * largest:
                raise ExportError(
                    f"the exported model must give the results of the trained one, got {name} that "
                    f"differ by {difference:.2g} in onnxruntime"
                )


def _as_texts(metadata: dict[str, Any] | None) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in (metadata or {}).items()
    }
