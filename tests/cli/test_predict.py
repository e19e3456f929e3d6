"""``protosphere predict``: files, folders and arrays, prepared as in the evaluation of the run."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from protosphere.data.datasets import load_digits
from protosphere.evaluation import Outputs, collect_outputs
from protosphere.geometry import cosines
from protosphere.recipes.build import create_loaders
from protosphere.recipes.loading import Run, load_run
from support.commands import invoke, refusal, run_command, set_options
from support.images import IMAGE_KINDS, write_image_of_kind


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = set_options(schedule__epochs=3)
    run_command("train", "digits-nonl", "--out", folder, "--device", "cpu", *options)
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first twenty test digits as files, and all of them as an array."""
    folder = tmp_path_factory.mktemp("images")
    test = load_digits().test
    for index in range(20):
        Image.fromarray(test.images[index, 0].numpy()).save(folder / f"{index:02}.png")
    np.savez(folder.parent / "all.npz", x=test.images.numpy(), y=test.labels.numpy())
    return folder


def _rows(*arguments: object) -> list[dict[str, str]]:
    output = run_command("predict", *arguments, "--device", "cpu")
    return list(csv.DictReader(io.StringIO(output)))


def _evaluation_outputs(run: Run) -> Outputs:
    _, loader = create_loaders(run.recipe, run.dataset(), run.device)
    return collect_outputs(run.objective, loader)


def _confidences(run: Run, outputs: Outputs) -> list[float]:
    with torch.no_grad():
        confidences: list[float] = run.objective.head(outputs.features).softmax(1).amax(1).tolist()
    return confidences


def test_files_and_arrays_are_classified_as_in_evaluation(run: Path, images: Path) -> None:
    loaded = load_run(run)
    outputs = _evaluation_outputs(loaded)
    classes, confidences = outputs.predictions.tolist(), _confidences(loaded, outputs)
    rows = _rows(run, images)
    assert [Path(row["image"]).name for row in rows] == [f"{index:02}.png" for index in range(20)]
    assert [int(row["class"]) for row in rows] == classes[:20]
    found = [float(row["confidence"]) for row in rows]
    assert found == pytest.approx(confidences[:20], abs=1e-4)
    everything = _rows(run, images.parent / "all.npz", "--batch-size", "100")
    assert [int(row["class"]) for row in everything] == classes
    assert everything[7]["image"].endswith("all.npz:x[7]")


def test_json_has_one_object_per_line(run: Path, images: Path) -> None:
    lines = run_command("predict", run, images, "--format", "json", "--device", "cpu").splitlines()
    records = [json.loads(line) for line in lines]
    rows = _rows(run, images)
    assert [record["class"] for record in records] == [row["class"] for row in rows]
    assert set(records[0]) == {"image", "class", "confidence", "rejection_score"}


def test_the_most_probable_classes_are_columns_and_a_list(run: Path, images: Path) -> None:
    loaded = load_run(run)
    features = _evaluation_outputs(loaded).features[:20]
    with torch.no_grad():
        top = loaded.objective.head(features).softmax(1).topk(3)
    rows = _rows(run, images, "--top-k", 3)
    assert list(rows[0])[4:] == ["class_2", "confidence_2", "class_3", "confidence_3"]
    for rank, suffix in enumerate(("", "_2", "_3")):
        names, probabilities = (
            [row[f"{column}{suffix}"] for row in rows] for column in ("class", "confidence")
        )
        assert [int(name) for name in names] == top.indices[:, rank].tolist()
        expected = top.values[:, rank].tolist()
        assert list(map(float, probabilities)) == pytest.approx(expected, abs=1e-4)
    output = run_command(
        "predict", run, images, "--top-k", 3, "--format", "json", "--device", "cpu"
    )
    record = json.loads(output.splitlines()[4])
    assert [one["class"] for one in record["top_k"]] == [
        rows[4][column] for column in ("class", "class_2", "class_3")
    ]
    assert record["top_k"][0] == {"class": record["class"], "confidence": record["confidence"]}


def test_predictions_are_written_to_a_file(run: Path, images: Path, tmp_path: Path) -> None:
    command = ["predict", run, images, "--device", "cpu", "--top-k", 2]
    table = tmp_path / "table.csv"
    assert run_command(*command, "--out", table) == (f"Wrote the classes of 20 images to {table}\n")
    assert table.read_text() == run_command(*command)
    assert list(tmp_path.iterdir()) == [table]
    run_command(*command, "--out", tmp_path / "list.json", "--batch-size", 7)
    records = json.loads((tmp_path / "list.json").read_text())
    lines = run_command(*command, "--format", "json").splitlines()
    assert records == [json.loads(line) for line in lines]
    table.write_text("mine")
    run_command(*command, "--out", table, "--overwrite")
    assert table.read_text().startswith("image,class,confidence,rejection_score,class_2")


@pytest.mark.bad_input
def test_output_files_that_are_refused(run: Path, images: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("mine")
    (tmp_path / "folder.csv").mkdir()
    for name, message in (
        ("table.txt", "--out must be a file that ends in .csv or .json, got "),
        ("mine.csv", "--out must be a new file, or --overwrite be given, got "),
        ("folder.csv", "--out must be a file, got "),
        ("nowhere/table.csv", "--out must be in a folder that exists, got "),
    ):
        # The file is checked before the run is read.
        assert refusal("predict", tmp_path, images, "--out", tmp_path / name).startswith(message)
    assert (tmp_path / "mine.csv").read_text() == "mine"
    assert refusal("predict", run, images, "--top-k", 11) == (
        "--top-k must be at most 10, the number of classes, got 11"
    )
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"nothing")
    result = invoke("predict", run, broken, "--out", tmp_path / "mine.csv", "--overwrite")
    assert result.exit_code == 1
    assert (tmp_path / "mine.csv").read_text() == "mine"


def test_the_rejection_score_is_minus_the_largest_cosine(run: Path, images: Path) -> None:
    loaded = load_run(run)
    features = _evaluation_outputs(loaded).features[:20]
    largest = cosines(features, loaded.objective.head.prototypes.detach()).amax(1)
    scores = [float(row["rejection_score"]) for row in _rows(run, images)]
    assert scores == pytest.approx((-largest).tolist(), abs=1e-5)


@pytest.mark.parametrize("source", ["arrays", "folder"])
def test_images_of_another_size_are_prepared_as_in_evaluation(source: str, tmp_path: Path) -> None:
    """Equal to the last digit: resized as floating-point numbers; folders by center crops."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 14, 20, 3), dtype=np.uint8)
    labels = np.arange(40) % 2
    np.savez(tmp_path / "data.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    for split in ("train", "val"):
        for index, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            (tmp_path / f"folder/{split}/{label}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(tmp_path / f"folder/{split}/{label}/{index:02}.png")
    path = tmp_path / ("data.npz" if source == "arrays" else "folder")
    options = set_options(data__source=source, data__path=path, schedule__epochs=1)
    if source == "folder":
        options += set_options(data__workers=0)
    out = tmp_path / "run"
    run_command("train", "digits-nonl", "--out", out, "--device", "cpu", *options)
    loaded = load_run(out)
    outputs = _evaluation_outputs(loaded)
    rows = _rows(out, path / "val" if source == "folder" else path)[:40]
    assert [int(row["class"][-1]) for row in rows] == outputs.predictions.tolist()
    found = [float(row["confidence"]) for row in rows]
    assert found == pytest.approx(_confidences(loaded, outputs), abs=2e-6)
    mixed = [tmp_path / "tall.png", tmp_path / "wide.png"]
    for file, image in zip(mixed, (pixels[0].transpose(1, 0, 2), pixels[0]), strict=True):
        Image.fromarray(image).save(file)
    assert _rows(out, *mixed)[1]["confidence"] == rows[0]["confidence"]


@pytest.fixture(scope="module")
def color_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "color"
    data = "{source: synthetic, num_classes: 3, num_samples: 60, image_size: 8}"
    options = set_options(schedule__epochs=1, data=data)
    run_command("train", "digits-nonl", "--out", folder, "--device", "cpu", *options)
    return folder


@pytest.mark.parametrize("fixture", ["run", "color_run"])
def test_python_classifies_files_and_images_as_the_command_does(
    fixture: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = request.getfixturevalue(fixture)
    rng, paths = np.random.default_rng(0), []
    for kind in IMAGE_KINDS:
        paths.append(tmp_path / kind)
        write_image_of_kind(paths[-1], kind, rng.integers(0, 256, (14, 9, 3), dtype=np.uint8))
    rows = _rows(folder, *paths)
    loaded = load_run(folder)
    upright = [ImageOps.exif_transpose(Image.open(path)) for path in paths]
    upright[3] = upright[3].convert("RGB")  # The pixels of a palette are positions in it.
    for images in (
        paths,
        map(str, paths),
        [Image.open(path) for path in paths],
        [np.asarray(image) for image in upright],
    ):
        predictions = loaded.predict(images)
        names = [loaded.class_names[index] for index in predictions.classes]
        assert names == [row["class"] for row in rows]
        for found, column in (
            (predictions.confidences, "confidence"),
            (predictions.rejection_scores, "rejection_score"),
        ):
            assert [f"{value:.6f}" for value in found.tolist()] == [
                f"{float(row[column]):.6f}" for row in rows
            ]


def test_noise_has_larger_rejection_scores_than_digits(
    run: Path, images: Path, tmp_path: Path
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (50, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "noise.npz", x=pixels)
    noise = [float(row["rejection_score"]) for row in _rows(run, tmp_path / "noise.npz")]
    digits = [float(row["rejection_score"]) for row in _rows(run, images)]
    assert np.mean(noise) > np.mean(digits)


def test_other_sizes_and_colors_are_converted(run: Path, images: Path, tmp_path: Path) -> None:
    large = Image.open(images / "03.png").convert("RGB").resize((64, 64), Image.Resampling.NEAREST)
    large.save(tmp_path / "large.png")
    (row,) = _rows(run, tmp_path / "large.png")
    (own,) = _rows(run, images / "03.png")
    assert row["class"] == own["class"]


def test_a_color_array_of_three_axes_is_one_image(run: Path, images: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x=np.array(Image.open(images / "03.png").convert("RGB")))
    (row,) = _rows(run, tmp_path / "one.npz")
    (own,) = _rows(run, images / "03.png")
    assert (row["class"], row["confidence"]) == (own["class"], own["confidence"])


def test_an_image_given_twice_is_classified_twice(run: Path, images: Path) -> None:
    assert len(_rows(run, images / "00.png", images / "00.png")) == 2


def test_unreadable_files_are_skipped(run: Path, images: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG nothing")
    np.savez(tmp_path / "numbers.npz", x=np.zeros(3))
    good, out_of_range = np.zeros((2, 8, 8), np.uint8), np.full((2, 8, 8), 3.5)
    np.savez(tmp_path / "mixed.npz", good=good, loud=out_of_range)
    files = [images / "00.png", images / "01.png"]
    result = invoke("predict", run, tmp_path, *files, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 5
    skipped = [line for line in result.stderr.splitlines() if line.startswith("Skipped: ")]
    assert len(skipped) == 3
    for words in ("broken.png", "numbers.npz", "loud in mixed.npz"):
        assert any(words in line for line in skipped)
    assert result.stderr.splitlines()[-1] == "4 images classified, 3 skipped"


def test_an_empty_folder_among_others_is_a_warning(run: Path, images: Path, tmp_path: Path) -> None:
    result = invoke("predict", run, tmp_path, images / "00.png", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr == f"Warning: {tmp_path} has no images and is skipped\n"


@pytest.mark.bad_input
def test_what_is_refused(run: Path, images: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, message in (
        ([run, empty], "must have images in it"),
        ([run, tmp_path / "nowhere.png"], "does not exist"),
        ([empty, images], "is not a run folder"),
    ):
        assert message in refusal("predict", *arguments, "--device", "cpu")


@pytest.mark.bad_input
def test_no_readable_image_is_an_error(run: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"nothing")
    result = invoke("predict", run, tmp_path / "broken.png", "--device", "cpu")
    assert result.exit_code == 1
    assert result.stderr.endswith("Error: at least one image must be readable, got none\n")
