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
from protosphere.data.datasets import load
from protosphere.evaluation import outputs
from protosphere.geometry import cosines
from protosphere.recipes.loading import load_run

runner = CliRunner()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    arguments = [
        "train",
        "digits-nonl",
        "--out",
        str(folder),
        "--set",
        "optimization.epochs=3",
        "--device",
        "cpu",
    ]
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
    assert [float(row["confidence"]) for row in rows] == pytest.approx(
        shares[:20].amax(1).tolist(), abs=1e-4
    )
    everything = _rows(run, images.parent / "all.npz", "--batch", "100")
    assert [int(row["class"]) for row in everything] == found.decisions.tolist()
    assert everything[7]["image"].endswith("all.npz:x[7]")
    lines = runner.invoke(
        app, ["predict", str(run), str(images), "--format", "json", "--device", "cpu"]
    ).stdout
    assert [json.loads(line)["class"] for line in lines.splitlines()] == [
        row["class"] for row in rows
    ]


def test_rejection_is_minus_the_highest_cosine(run: Path, images: Path) -> None:
    taken = load_run(run)
    features = outputs(taken.objective, taken.test).features[:20]
    highest = cosines(features, taken.objective.head.prototypes.detach()).amax(1)
    assert [float(row["rejection"]) for row in _rows(run, images)] == pytest.approx(
        (-highest).tolist(), abs=1e-5
    )


@pytest.mark.parametrize("source", ["arrays", "folder"])
def test_images_of_another_size_are_prepared_as_in_evaluation(source: str, tmp_path: Path) -> None:
    """To the last digit that is printed: resized as numbers, not as bytes; of folders the middle."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 14, 20, 3), dtype=np.uint8)
    labels = np.arange(40) % 2
    np.savez(tmp_path / "data.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    for part in ("train", "val"):
        for index, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            (tmp_path / f"folder/{part}/{label}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(tmp_path / f"folder/{part}/{label}/{index:02}.png")
    place = tmp_path / ("data.npz" if source == "arrays" else "folder")
    settings = {
        "data.source": source,
        "data.path": place,
        "data.workers": 0,
        "optimization.epochs": 1,
    }
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    arguments = [
        "train",
        "digits-nonl",
        "--out",
        str(tmp_path / "run"),
        "--device",
        "cpu",
        *options,
    ]
    ran = runner.invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    taken = load_run(tmp_path / "run")
    found = outputs(taken.objective, taken.test)
    with torch.no_grad():
        shares = taken.objective.head(found.features).softmax(1).amax(1)
    rows = _rows(tmp_path / "run", place / "val" if source == "folder" else place)[:40]
    assert [int(row["class"][-1]) for row in rows] == found.decisions.tolist()
    assert [float(row["confidence"]) for row in rows] == pytest.approx(shares.tolist(), abs=2e-6)
    mixed = [tmp_path / "tall.png", tmp_path / "wide.png"]
    for path, image in zip(mixed, (pixels[0].transpose(1, 0, 2), pixels[0]), strict=True):
        Image.fromarray(image).save(path)
    assert _rows(tmp_path / "run", *mixed)[1]["confidence"] == rows[0]["confidence"]


def test_noise_is_farther_from_every_prototype_than_digits(
    run: Path, images: Path, tmp_path: Path
) -> None:
    np.savez(
        tmp_path / "noise.npz",
        x=np.random.default_rng(0).integers(0, 256, (50, 8, 8), dtype=np.uint8),
    )
    noise = [float(row["rejection"]) for row in _rows(run, tmp_path / "noise.npz")]
    digits = [float(row["rejection"]) for row in _rows(run, images)]
    assert np.mean(noise) > np.mean(digits)


def test_other_sizes_and_colors_are_converted(run: Path, images: Path, tmp_path: Path) -> None:
    large = Image.open(images / "03.png").convert("RGB").resize((64, 64), Image.Resampling.NEAREST)
    large.save(tmp_path / "large.png")
    (row,) = _rows(run, tmp_path / "large.png")
    (own,) = _rows(run, images / "03.png")
    assert row["class"] == own["class"]


def test_one_image_in_color_is_one_image(run: Path, images: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x=np.array(Image.open(images / "03.png").convert("RGB")))
    (row,) = _rows(run, tmp_path / "one.npz")
    (own,) = _rows(run, images / "03.png")
    assert (row["class"], row["confidence"]) == (own["class"], own["confidence"])


def test_bad_files_are_told_and_the_rest_goes_on(run: Path, images: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG nothing")
    np.savez(tmp_path / "numbers.npz", x=np.zeros(3))
    np.savez(
        tmp_path / "mixed.npz", good=np.zeros((2, 8, 8), np.uint8), loud=np.full((2, 8, 8), 3.5)
    )
    result = runner.invoke(
        app,
        [
            "predict",
            str(run),
            str(tmp_path),
            str(images / "00.png"),
            str(images / "01.png"),
            "--device",
            "cpu",
        ],
    )
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 5
    assert "floating images of loud in mixed.npz must lie between 0 and 1" in result.stderr
    assert "broken.png must be an image; it cannot be read" in result.stderr
    assert "numbers.npz must hold arrays of images; it holds none" in result.stderr
    assert "4 images classified, 3 passed over." in result.stderr


def test_an_empty_folder_among_others_is_passed_over(
    run: Path, images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = runner.invoke(
        app, ["predict", str(run), str(tmp_path), str(images / "00.png"), "--device", "cpu"]
    )
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
