"""Benchmarks of runs on a folder with training and validation images, but without test images."""

import json
from pathlib import Path

import pytest

from support.commands import refusal, run_command, set_options
from support.images import write_drawings

SETTINGS = set_options(
    data__in_memory="true",
    data__workers=0,
    model__backbone="{name: small}",
    augmentation__size=16,
    schedule__epochs=1,
    schedule__warmup_epochs=0,
    training__batch_size=8,
    training__precision="fp32",
    evaluation__metrics="cheap",
)
NOISE = set_options(data__label_noise="{name: symmetric, fraction: 0.4}")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of three classes, one with fewer than 20 of them, and a run with wrong labels."""
    root = tmp_path_factory.mktemp("folder")
    write_drawings(root / "images" / "train", classes=3, per_class=24, size=16)
    write_drawings(root / "images" / "val", classes=3, per_class=6, size=16, seed=1)
    for path in sorted((root / "images" / "train" / "cross").iterdir())[5:]:
        path.unlink()
    where = set_options(data__path=root / "images", data__validation_folder="val")
    run_command("train", "folder-ce", "--out", root / "run", *where, *SETTINGS, *NOISE)
    return root


@pytest.mark.parametrize(
    ("benchmark", "options"),
    [
        ("long-tail", ()),
        ("label-noise", ()),
        ("corruptions", ("--corruption", "contrast", "--severity", 1)),
        ("ood", ("--against", "digits", "--neighbors", 3)),
    ],
)
def test_without_test_images_numbers_are_of_the_validation_images(
    root: Path, benchmark: str, options: tuple[object, ...]
) -> None:
    text = run_command("benchmark", benchmark, root / "run", *options)
    assert "run: numbers of its validation images, not of test images" in text
    (run,) = json.loads(run_command("benchmark", benchmark, root / "run", *options, "--json"))[
        "runs"
    ]
    assert run["split"] == "validation"
    sizes = {"test_images", "num_images", "num_known"}
    counts = [row[key] for row in run["rows"] for key in sizes & set(row)]
    assert not counts or max(counts) == 18


def test_calibration_divides_the_validation_images(root: Path) -> None:
    text = run_command("benchmark", "calibration", root / "run")
    assert "run: T fitted on half of the validation images (9)" in text


def test_with_test_images_numbers_are_of_them(root: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for split in ("train", "val"):
        (tmp_path / "images" / split).symlink_to(root / "images" / split)
    write_drawings(tmp_path / "images" / "test", classes=3, per_class=2, size=16, seed=2)
    moved = set_options(data__path=tmp_path / "images")
    text = run_command("benchmark", "long-tail", root / "run", *moved, "--json")
    (run,) = json.loads(text)["runs"]
    assert run["split"] == "test"
    assert max(row["test_images"] for row in run["rows"]) == 6


@pytest.mark.bad_input
def test_a_folder_that_is_gone_is_named(root: Path, tmp_path: Path) -> None:
    moved = set_options(data__path=tmp_path / "gone")
    message = refusal("benchmark", "long-tail", root / "run", *moved)
    assert message.startswith(f"{tmp_path / 'gone'} must be a folder of images; it does not exist")
