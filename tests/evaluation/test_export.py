"""Export: ONNX equal to torch for any batch, timm's names in safetensors, atomic files."""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier, MeanClassifier
from protosphere.data.augmentation import EvaluationTransform
from protosphere.encoders import Encoder, create_backbone, create_projection
from protosphere.evaluation import ExportError, export, export_model, predict_images
from protosphere.storage import StorageError
from protosphere.training import Objective

NAMES = ("ant", "bee", "cat\n", "dög")
TRANSFORM = EvaluationTransform(8, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1))
OPTIONS: dict[str, Any] = {"class_names": NAMES, "recipe": "toy", "backbone": "small"}


class _Loss(nn.Module):
    """A loss with a buffer, which is not part of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.ones(4))

    def forward(self, features: Tensor, *_: object) -> Tensor:
        return features.sum()


def create_objective(backbone: str = "small", head: type = CosineClassifier) -> Objective:
    module = create_backbone(backbone, in_channels=3)
    dim = Encoder(module).out_dim
    encoder = Encoder(module, projection=create_projection("mlp", dim, out_dim=16))
    objective = Objective(encoder, head(16, len(NAMES)), _Loss())
    objective.train()(torch.randn(8, 3, 8, 8), torch.arange(8) % 4)  # Moves the batch norms.
    if isinstance(objective.head, MeanClassifier):
        objective.head.set_means(torch.randn(len(NAMES), 16))
    return objective


@pytest.fixture(scope="module")
def objective() -> Objective:
    return create_objective()


@pytest.fixture(scope="module")
def onnx_file(objective: Objective, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    described = export_model(objective, TRANSFORM, path, **OPTIONS)
    assert objective.training, "the objective is not changed"
    assert described == path.with_name("model.onnx.json")
    assert set(path.parent.iterdir()) == {path, described}
    return path


@pytest.mark.compiled
@pytest.mark.parametrize("num_images", [1, 2, 5])
def test_onnx_gives_the_predictions_of_the_run(
    objective: Objective, onnx_file: Path, num_images: int
) -> None:
    pixels = torch.randint(0, 256, (num_images, 3, 8, 8), dtype=torch.uint8)
    session = onnxruntime.InferenceSession(onnx_file)
    logits, probabilities, features = session.run(None, {"images": (pixels / 255).numpy()})
    predictions = predict_images(objective, TRANSFORM, pixels, top_k=4)
    assert logits.argmax(1).tolist() == predictions.classes.tolist()
    ranked = np.take_along_axis(probabilities, predictions.top_classes.numpy(), 1)
    np.testing.assert_allclose(ranked, predictions.top_probabilities, atol=1e-5)
    assert features.shape == (num_images, 16)
    head = objective.head(torch.from_numpy(features)).detach()
    np.testing.assert_allclose(logits, head, atol=1e-4)


@pytest.mark.compiled
def test_onnx_has_names_shapes_and_metadata_and_no_paths(onnx_file: Path) -> None:
    session = onnxruntime.InferenceSession(onnx_file)
    (image,) = session.get_inputs()
    assert (image.name, image.shape, image.type) == (
        "images",
        ["batch", 3, 8, 8],
        "tensor(float)",
    )
    shapes = {output.name: output.shape for output in session.get_outputs()}
    assert shapes == {
        "logits": ["batch", 4],
        "probabilities": ["batch", 4],
        "features": ["batch", 16],
    }
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata["recipe"] == "toy"
    described = json.loads(onnx_file.with_name("model.onnx.json").read_text())
    assert tuple(described["class_names"]) == NAMES
    assert (described["size"], described["crop"]) == (8, "resize")
    assert (described["mean"], described["std"]) == (list(TRANSFORM.mean), list(TRANSFORM.std))
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in described.items()
    }
    assert texts == metadata
    content = onnx_file.read_bytes()
    assert b".py" not in content
    assert str(Path(__file__).parent).encode() not in content


@pytest.mark.compiled
def test_onnx_of_a_head_of_class_means(tmp_path: Path) -> None:
    """The comparison with torch is part of the export."""
    objective = create_objective(head=MeanClassifier)
    export_model(objective, TRANSFORM, tmp_path / "model.onnx", **OPTIONS)
    metadata = json.loads((tmp_path / "model.onnx.json").read_text())
    assert metadata["head"] == "MeanClassifier(dim=16, num_classes=4, temperature=0.1)"
    # Without samples of a class its logit is −∞ in both.
    means = torch.randn(len(NAMES), 16)
    means[2] = torch.nan
    objective.head.set_means(means)
    export_model(objective, TRANSFORM, tmp_path / "empty.onnx", **OPTIONS)
    session = onnxruntime.InferenceSession(tmp_path / "empty.onnx")
    logits, probabilities, *_ = session.run(None, {"images": np.zeros((1, 3, 8, 8), np.float32)})
    assert np.isneginf(logits[0]).tolist() == [False, False, True, False]
    assert probabilities[0, 2] == 0


@pytest.mark.compiled
def test_onnx_that_differs_from_torch_is_not_kept(
    objective: Objective, onnx_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("mine")
    other = copy.deepcopy(objective)
    with torch.no_grad():
        other.head.prototypes.neg_()
    # What torch makes of one model is compared with another one.
    monkeypatch.setattr(export, "_trace", lambda *_: onnx.load(onnx_file))
    with pytest.raises(ExportError, match=r"must give the results of the trained one, got logits"):
        export_model(other, TRANSFORM, path, **OPTIONS, overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_text() == "mine"


@pytest.mark.compiled
def test_a_model_that_torch_cannot_export_is_one_sentence(tmp_path: Path) -> None:
    class Unfriendly(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1)[:, :16] * (2 if images.sum() > 0 else 3)

    objective = Objective(Unfriendly(), CosineClassifier(16, 4), _Loss())
    with pytest.raises(ExportError, match=r"^torch cannot export this model to ONNX: .*[^\n]$"):
        export_model(objective, TRANSFORM, tmp_path / "model.onnx", **OPTIONS)
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named(
    objective: Objective, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r'pip install "protosphere\[export\]"'):
        export_model(objective, TRANSFORM, tmp_path / "model.onnx", **OPTIONS)


def test_a_model_of_two_gibibytes_is_refused(
    objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_MAX_ONNX_BYTES", 1000)
    with pytest.raises(ExportError, match=r"smaller than 2 GiB, got weights of 0.0 GiB"):
        export.to_onnx(objective, TRANSFORM)


def test_a_backbone_has_the_names_of_timm(tmp_path: Path) -> None:
    """Also behind a projection; timm loads the file strictly."""
    objective = create_objective("resnet10t")
    path = tmp_path / "backbone.safetensors"
    export_model(objective, TRANSFORM, path, **OPTIONS, what="backbone")
    model = timm.create_model("resnet10t", num_classes=0, checkpoint_path=path).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = objective.encoder.backbone.eval()(images)
        assert torch.equal(model(images), expected)
    again = create_backbone("resnet10t", pretrained=path).eval()
    with torch.no_grad():
        assert torch.equal(again(images), expected)


def test_the_whole_model_can_be_loaded_strictly(objective: Objective, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    described = export_model(objective, TRANSFORM, path, **OPTIONS)
    tensors = load_file(path)
    assert set(tensors) == {name for name in objective.state_dict() if not name.startswith("loss.")}
    other = create_objective()
    missing, unexpected = other.load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == (["loss.weights"], [])
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in tensors.items())
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert metadata.pop("format") == "pt"
    assert json.loads(metadata["class_names"]) == list(NAMES)
    assert set(metadata) == set(json.loads(described.read_text()))


def test_tensors_that_share_memory_are_saved(tmp_path: Path) -> None:
    encoder = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    encoder[1].weight = encoder[0].weight
    objective = Objective(encoder, CosineClassifier(4, 4), _Loss())
    export_model(objective, TRANSFORM, tmp_path / "model.safetensors", **OPTIONS)
    tensors = load_file(tmp_path / "model.safetensors")
    assert torch.equal(tensors["encoder.0.weight"], tensors["encoder.1.weight"])
    with pytest.raises(ValueError, match="must have a backbone to export, got Sequential"):
        export_model(objective, TRANSFORM, tmp_path / "x.safetensors", **OPTIONS, what="backbone")


def test_a_file_that_cannot_be_written_leaves_the_old_one(
    objective: Objective, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("mine")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(StorageError, match=r"cannot write .*: no space left on device"):
        export_model(objective, TRANSFORM, path, **OPTIONS, overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    assert path.read_text() == "mine"


@pytest.mark.bad_input
def test_what_is_refused(objective: Objective, tmp_path: Path) -> None:
    (tmp_path / "mine.onnx").write_text("mine")
    (tmp_path / "other.onnx.json").write_text("mine")
    cases: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("model.pt", {}, r"must end in .onnx or .safetensors, got .*model.pt"),
        ("mine.onnx", {}, r"must be a new file unless overwrite=True, got .*mine.onnx"),
        ("other.onnx", {}, r"must be a new file unless overwrite=True, got .*other.onnx.json"),
        ("x.onnx", {"what": "backbone"}, r"backbone alone is exported to a .safetensors file"),
        ("x.onnx", {"what": "head"}, r"what must be 'model' or 'backbone', got 'head'"),
    )
    for name, options, message in cases:
        with pytest.raises(ValueError, match=message):
            export_model(objective, TRANSFORM, tmp_path / name, **OPTIONS, **options)
    assert len(list(tmp_path.iterdir())) == 2
