"""``protosphere predict``: files, folders and arrays, as the run's own evaluation sees them; bad files passed over."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from protosphere.cli.app import app
from protosphere.data.sources import load
from protosphere.evaluation import outputs
from protosphere.recipes.trained import load_run

runner = CliRunner()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    arguments = ["train", "digits-nonl", "--out", str(folder), "--set", "optimisation.epochs=3", "--device", "cpu"]
    assert runner.invoke(app, arguments).exit_code == 0
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first twenty test digits as files, and all of them as an array."""
    folder = tmp_path_factory.mktemp("images")
    test = load("digits").test
    for index in range(20):
        Image.fromarray(test.images[index, 0].numpy()).save(folder / f"{index:02}.png")
    np.savez(folder.parent / "all.npz", x=test.images.numpy(), y=test.labels.numpy())
    return folder


def _rows(*arguments: str | Path) -> list[dict]:
    result = runner.invoke(app, ["predict", *map(str, arguments), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    return list(csv.DictReader(io.StringIO(result.stdout)))


def test_files_and_arrays_are_classified_as_in_evaluation(run: Path, images: Path) -> None:
    taken = load_run(run)
    found = outputs(taken.objective, taken.test)
    with torch.no_grad():
        shares = taken.objective.head(found.features).softmax(1)
    rows = _rows(run, images)
    assert [Path(row["image"]).name for row in rows] == [f"{index:02}.png" for index in range(20)]
    assert [int(row["class"]) for row in rows] == found.decisions[:20].tolist()
    assert [float(row["confidence"]) for row in rows] == pytest.approx(shares[:20].amax(1).tolist(), abs=1e-4)
    everything = _rows(run, images.parent / "all.npz", "--batch", "100")
    assert [int(row["class"]) for row in everything] == found.decisions.tolist()
    assert everything[7]["image"].endswith("all.npz:x[7]")
    lines = runner.invoke(app, ["predict", str(run), str(images), "--format", "json", "--device", "cpu"]).stdout
    assert [json.loads(line)["class"] for line in lines.splitlines()] == [row["class"] for row in rows]


def test_noise_is_farther_from_every_prototype_than_digits(run: Path, images: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "noise.npz", x=np.random.default_rng(0).integers(0, 256, (50, 8, 8), dtype=np.uint8))
    noise = [float(row["rejection"]) for row in _rows(run, tmp_path / "noise.npz")]
    digits = [float(row["rejection"]) for row in _rows(run, images)]
    assert np.mean(noise) > np.mean(digits)


def test_other_sizes_and_colours_are_converted(run: Path, images: Path, tmp_path: Path) -> None:
    large = Image.open(images / "03.png").convert("RGB").resize((64, 64), Image.Resampling.NEAREST)
    large.save(tmp_path / "large.png")
    (row,) = _rows(run, tmp_path / "large.png")
    (own,) = _rows(run, images / "03.png")
    assert row["class"] == own["class"]


def test_bad_files_are_told_and_the_rest_goes_on(run: Path, images: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG nothing")
    np.savez(tmp_path / "numbers.npz", x=np.zeros(3))
    result = runner.invoke(
        app, ["predict", str(run), str(tmp_path), str(images / "00.png"), str(images / "01.png"), "--device", "cpu"]
    )
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 3
    assert "broken.png must be an image; it cannot be read" in result.stderr
    assert "numbers.npz must hold arrays of images; it holds none" in result.stderr
    assert "2 images classified, 2 passed over." in result.stderr


def test_an_empty_folder_among_others_is_passed_over(
    run: Path, images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = runner.invoke(app, ["predict", str(run), str(tmp_path), str(images / "00.png"), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 2
    assert "has no images in it and is passed over" in caplog.text


@pytest.mark.bad_input
def test_what_is_refused(run: Path, images: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.png").write_bytes(b"nothing")
    for arguments, message in (
        ([run, tmp_path / "empty"], "must have images in it; it has none"),
        ([run, tmp_path / "nowhere.png"], "must be a file or a folder; there is none"),
        ([tmp_path / "empty", images], "must be a run folder, with a recipe; it is none"),
        ([run, images, "--format", "xml"], "--format must be csv or json; got xml"),
        ([run, tmp_path / "broken.png"], "there must be an image that can be read; there was none"),
    ):
        result = runner.invoke(app, ["predict", *map(str, arguments), "--device", "cpu"])
        assert result.exit_code == 1, result.output
        assert message in result.stderr
