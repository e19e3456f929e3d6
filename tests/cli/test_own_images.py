"""From a folder of drawings to a trained, evaluated and exported model in three commands."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from protosphere.recipes.loading import load_run
from support.commands import run_command, set_options
from support.images import write_drawings

pytestmark = pytest.mark.whole_program


def test_init_train_export(tmp_path: Path) -> None:
    drawings, recipe, run = tmp_path / "drawings", tmp_path / "recipe.yaml", tmp_path / "run"
    write_drawings(drawings, classes=5, per_class=60)
    looked = run_command("init", drawings, "--out", recipe, "--pretrained", "none")
    assert "5 classes" in looked
    # A smaller network and fewer epochs than init suggests: the drawings are easy.
    options = set_options(
        model__backbone="{name: small}",
        schedule__epochs=12,
        schedule__warmup_epochs=1,
        optimizer__lr=0.1,
        evaluation__every=4,
    )
    trained = run_command("train", recipe, "--out", run, "--device", "cpu", *options)
    assert "validation accuracy" in trained
    exported = tmp_path / "drawings.onnx"
    run_command("export", run, "--out", exported)

    evaluated = json.loads(run_command("evaluate", run, "--device", "cpu", "--json"))
    assert evaluated["metrics"]["accuracy"] > 0.8
    loaded = load_run(run)
    image = np.array(Image.open(sorted(drawings.rglob("*.png"))[0]).convert("RGB"))
    pixels = torch.from_numpy(image).permute(2, 0, 1)
    side = loaded.recipe.augmentation.size
    cropped = loaded.transform.crop_pixels(pixels)
    assert cropped.shape == (3, side, side)
    session = onnxruntime.InferenceSession(exported)
    (probabilities,) = session.run(["probabilities"], {"images": (cropped[None] / 255).numpy()})
    assert int(probabilities.argmax()) == int(loaded.predict([pixels]).classes[0])
