"""``protosphere export``: ONNX and safetensors of a run, refusals that write nothing."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from safetensors.torch import load_file

from protosphere.encoders import create_backbone
from protosphere.recipes.loading import load_run
from support.commands import invoke, refusal, run_command, set_options


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = set_options(schedule__epochs=1)
    run_command("train", "digits-ce", "--out", folder, "--device", "cpu", *options)
    return folder


def test_onnx_predicts_as_the_run_does(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    output = run_command("export", run, "--out", path)
    loaded = load_run(run)
    assert output.splitlines() == [
        f"Wrote the model of digits-ce, step {loaded.step}, to {path}, checked in onnxruntime",
        f"Wrote class names, normalization and size of the images to {path}.json",
    ]
    images = loaded.dataset().test.images[:50]
    session = onnxruntime.InferenceSession(path)
    logits, probabilities, _ = session.run(None, {"images": (images / 255).numpy()})
    predictions = loaded.predict(images)
    assert logits.argmax(1).tolist() == predictions.classes.tolist()
    np.testing.assert_allclose(probabilities.max(1), predictions.confidences, atol=1e-5)
    described = json.loads((tmp_path / "model.onnx.json").read_text())
    assert described["class_names"] == [str(digit) for digit in range(10)]
    assert (described["recipe"], described["size"], described["channels"]) == ("digits-ce", 8, 1)
    assert described["mean"] == list(loaded.transform.mean)


def test_the_backbone_is_exported_alone(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "backbone.safetensors"
    output = run_command("export", run, "--out", path, "--what", "backbone")
    assert output.startswith("Wrote the backbone of digits-ce, step ")
    assert "onnxruntime" not in output
    create_backbone("small", in_channels=1).load_state_dict(load_file(path))
    path.write_text("old")
    run_command("export", run, "--out", path, "--overwrite")
    assert {name.split(".")[0] for name in load_file(path)} == {"encoder", "head"}


@pytest.mark.bad_input
def test_what_is_refused_before_the_run_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine.onnx").write_text("mine")
    (tmp_path / "other.onnx.json").write_text("mine")
    for name, options, message in (
        ("model.pt", [], "--out must be a file that ends in .onnx or .safetensors, got "),
        ("mine.onnx", [], "--out must be a new file, or --overwrite be given, got "),
        ("other.onnx", [], "--out must be a new file, or --overwrite be given, got "),
        ("nowhere/model.onnx", [], "--out must be in a folder that exists, got "),
        (
            "model.onnx",
            ["--what", "backbone"],
            "the backbone alone is exported to a .safetensors file, got ",
        ),
        ("model.onnx", [], f"{tmp_path} is not a run folder"),
    ):
        message_found = refusal("export", tmp_path, "--out", tmp_path / name, *options)
        assert message_found.startswith(message)
    assert {file.read_text() for file in tmp_path.iterdir()} == {"mine"}
    assert len(list(tmp_path.iterdir())) == 2
    assert invoke("export", tmp_path).exit_code == 2, "--out is required"
