"""Recipes in run folders: data of several kinds, resuming, refusals, folders of images."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image

from protosphere.data.datasets import DataError
from protosphere.recipes import build, catalog
from protosphere.recipes.loading import load_run
from protosphere.recipes.runner import Event, run_recipe
from protosphere.recipes.schema import (
    Recipe,
    RecipeError,
    apply_overrides,
    find_difference,
    recipe_from_yaml,
)
from protosphere.runs import RunFolder, RunFolderError
from protosphere.training import TrainingError

TINY = [
    "schedule.epochs=2",
    "training.batch_size=8",
    "evaluation.every=1",
    "model.backbone={name: small}",
]


def _recipe(name: str, *overrides: str) -> Recipe:
    return apply_overrides(catalog.get_recipe(name), overrides)


def _run(recipe: Recipe, folder: Path, **options: Any) -> list[Event]:
    return list(run_recipe(recipe, RunFolder(folder), build.load_dataset(recipe), **options))


def _metrics(events: Sequence[Event]) -> dict[str, float]:
    metrics = events[-1].metrics
    assert metrics is not None
    return metrics


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of three classes, each of one color."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 4)):
        for index, name in enumerate(("blue", "green", "red")):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 60, (20, 24, 3), dtype=np.uint8)
                pixels[..., 2 - index] += 180
                Image.fromarray(pixels).save(tmp_path / "images" / split / name / f"{number}.png")
    return tmp_path / "images"


def test_a_folder_of_images_with_a_list_of_classes(images: Path, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("red\nblue\n")
    recipe = _recipe(
        "imagenet100-nonl",
        *TINY,
        f"data.path={images}",
        f"data.classes={tmp_path}/list.txt",
        "data.workers=0",
        "augmentation.size=16",
        "schedule.warmup_epochs=0",
        "optimizer.lr=0.05",
        "schedule.epochs=8",
    )
    metrics = _metrics(_run(recipe, tmp_path / "run"))
    assert metrics["accuracy"] == 1
    assert "intra_effective_rank" not in metrics, "cheap metrics while images are streamed"
    run = load_run(tmp_path / "run")
    assert run.class_names == ("red", "blue")
    assert len(run.dataset().test) == 8


def test_a_folder_of_validation_images_chooses_the_checkpoint(images: Path, tmp_path: Path) -> None:
    overrides = [
        "data.source=folder",
        f"data.path={images}",
        "data.validation_folder=val",
        "data.workers=0",
        "checkpoint.monitor=balanced_accuracy",
        *TINY,
    ]
    recipe = _recipe("cifar10-ce", *overrides)
    _run(recipe, tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert run.split == "validation"
    assert len(run.dataset().test) == 12
    with pytest.raises(DataError, match="must have the folders train and test"):
        run.dataset("test")
    shutil.copytree(images / "val", images / "test")
    (images / "test" / "red" / "0.png").unlink()
    assert len(run.dataset("test").test) == 11
    with pytest.raises(RecipeError, match="validation_fraction must be 0 with a validation_folder"):
        apply_overrides(recipe, ["data.validation_fraction=0.2"])
    with pytest.raises(RecipeError, match=r"data.validation_folder must not be train, the folder"):
        apply_overrides(recipe, ["data.validation_folder=train"])


@pytest.mark.parametrize("fits", [True, False])
def test_a_resumed_run_takes_its_crops_from_where_it_took_them_before(
    fits: bool, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["data.source=folder", f"data.path={images}", "data.workers=0", *TINY]
    recipe = _recipe("cifar10-ce", *overrides, "training.precision=fp32")
    monkeypatch.setattr(build, "fits_in_memory", lambda *_, **__: fits)
    whole = _run(recipe, tmp_path / "whole")
    answers = iter([False, True])
    _run(recipe, tmp_path / "part", should_stop=lambda: next(answers))
    # As if it were resumed on a machine with more or less memory.
    monkeypatch.setattr(build, "fits_in_memory", lambda *_, **__: not fits)
    resumed = _run(recipe, tmp_path / "part", start="resume")
    assert resumed[-1].progress.loss == whole[-1].progress.loss


@pytest.mark.bad_input
def test_a_folder_without_test_images_needs_a_validation_fraction(
    images: Path, tmp_path: Path
) -> None:
    shutil.rmtree(images / "val")
    overrides = ["data.source=folder", f"data.path={images}", "data.workers=0", *TINY]
    with pytest.raises(DataError, match="val or test"):
        build.load_dataset(_recipe("cifar10-ce", *overrides))
    recipe = _recipe("cifar10-ce", *overrides, "data.validation_fraction=0.25")
    _run(recipe, tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert run.split == "validation"
    assert len(run.dataset().test) == 6
    with pytest.raises(DataError, match="val or test"):
        run.dataset("test")


@pytest.mark.bad_input
def test_an_unreadable_image_is_named(images: Path, tmp_path: Path) -> None:
    recipe = _recipe(
        "imagenet100-ce",
        "schedule.warmup_epochs=0",
        *TINY,
        f"data.path={images}",
        "data.classes=null",
        "data.workers=0",
        "augmentation.size=16",
        "training.batch_size=4",
    )
    broken = images / "train/green/3.png"
    broken.write_bytes(broken.read_bytes()[:50])
    with pytest.raises(DataError, match=r"train/green/3\.png"):
        _run(recipe, tmp_path / "run")


def test_synthetic_images_and_cheap_metrics(tmp_path: Path) -> None:
    recipe = _recipe(
        "digits-nonl",
        *TINY,
        "data={source: synthetic, num_samples: 40, num_classes: 4, image_size: 12}",
        "augmentation.crop.name=random_resized",
        "evaluation.metrics=cheap",
    )
    assert "nc4_agreement" not in _metrics(_run(recipe, tmp_path / "run"))


def test_records_say_accuracy_and_split(tmp_path: Path) -> None:
    for name, overrides in (("test", []), ("validation", ["data.validation_fraction=0.2"])):
        recipe = _recipe("digits-nonl", *TINY, *overrides)
        _run(recipe, tmp_path / name)
        records = RunFolder(tmp_path / name).records()
        evaluations = [record for record in records if record["kind"] == "evaluation"]
        assert {record["split"] for record in evaluations} == {name}
        assert all("accuracy" in record for record in evaluations)
        assert not any("test_accuracy" in record for record in records)
        assert all("lr" in record for record in records if record["kind"] == "train")


def test_a_resumed_run_may_change_where_it_computes_but_not_what(tmp_path: Path) -> None:
    recipe = _recipe("digits-nonl", "schedule.epochs=2", "checkpoint.every=1")
    answers = iter([False] * 20 + [True])
    events = _run(recipe, tmp_path / "run", should_stop=lambda: next(answers))
    assert events[-1].progress.stopping
    assert events[-1].progress.step == 21
    other = apply_overrides(recipe, ["evaluation.every=2", "checkpoint.keep=3"])
    assert find_difference(recipe, other) is None
    resumed = _run(other, tmp_path / "run", start="resume")
    assert resumed[0].resumed_at == 21
    assert recipe_from_yaml(RunFolder(tmp_path / "run").recipe.read_text()) == other
    _run(recipe, tmp_path / "whole")
    assert (
        RunFolder(tmp_path / "run").last_evaluation()
        == RunFolder(tmp_path / "whole").last_evaluation()
    )
    wrong = apply_overrides(recipe, ["loss.temperature=0.3"])
    with pytest.raises(RunFolderError, match=r"loss\.temperature is 0\.2 there and 0\.3 here"):
        _run(wrong, tmp_path / "run", start="resume")


def test_a_missing_log_is_reported_at_resume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = _recipe("digits-nonl", "schedule.epochs=2", "checkpoint.every=1")
    answers = iter([False] * 20 + [True])
    _run(recipe, tmp_path / "run", should_stop=lambda: next(answers))
    RunFolder(tmp_path / "run").metrics.unlink()
    _run(recipe, tmp_path / "run", start="resume")
    assert "metrics.jsonl is missing" in caplog.text


def test_as_many_checkpoints_are_kept_as_the_recipe_says(tmp_path: Path) -> None:
    recipe = _recipe("digits-nonl", "schedule.epochs=4", "checkpoint.every=1", "checkpoint.keep=3")
    _run(recipe, tmp_path / "run")
    assert len(list((tmp_path / "run/checkpoints").iterdir())) == 3


def test_the_moving_average_is_evaluated(tmp_path: Path) -> None:
    plain = _recipe("digits-nonl", "schedule.epochs=2")
    averaged = apply_overrides(plain, ["training.ema_decay=0.99"])
    first, second = _run(plain, tmp_path / "plain"), _run(averaged, tmp_path / "ema")
    assert first[-1].progress.loss == second[-1].progress.loss
    assert _metrics(first)["nc1_ratio"] != _metrics(second)["nc1_ratio"]


def _write_arrays(path: Path, images: np.ndarray, labels: np.ndarray, **others: Any) -> None:
    content = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
    np.savez(path, **(content | others))


def _arrays_recipe(path: Path) -> Recipe:
    return _recipe("digits-ce", "data.source=arrays", f"data.path={path}", *TINY)


@pytest.mark.bad_input
def test_a_class_without_training_images_is_named(tmp_path: Path) -> None:
    _write_arrays(tmp_path / "a.npz", np.zeros((4, 8, 8), np.uint8), np.array([0, 0, 2, 2]))
    with pytest.raises(DataError, match="every class must have training images; class 1 has none"):
        build.load_dataset(_arrays_recipe(tmp_path / "a.npz"))


@pytest.mark.bad_input
def test_other_test_images_are_refused_at_resume_only(tmp_path: Path) -> None:
    """A log of two test sets is worthless; a trained run may be evaluated on another one."""
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8), dtype=np.uint8)
    labels = np.arange(12) % 3
    path = tmp_path / "a.npz"
    _write_arrays(path, images, labels)
    _run(_arrays_recipe(path), tmp_path / "run")
    _write_arrays(path, images, labels, x_test=255 - images)
    with pytest.raises(RunFolderError, match="other test images"):
        _run(_arrays_recipe(path), tmp_path / "run", start="resume")
    run = load_run(tmp_path / "run")
    mean, std = (
        torch.tensor(values)[:, None, None] for values in run.dataset().train.channel_statistics()
    )
    pixels = torch.from_numpy(255 - images)[:, None]
    torch.testing.assert_close(run.transform(pixels), (pixels / 255 - mean) / std)


@pytest.mark.bad_input
def test_images_are_normalized_as_the_run_recorded(tmp_path: Path) -> None:
    recipe = _recipe("digits-ce", *TINY)
    _run(recipe, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    stored = folder.read_json("data.json")
    folder.write_json("data.json", stored | {"mean": [0.0], "std": [2.0]})
    pixels = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8)
    run = load_run(tmp_path / "run")
    torch.testing.assert_close(run.transform(pixels), pixels / 255 / 2)
    del stored["channels"]
    folder.write_json("data.json", stored)
    with pytest.raises(RunFolderError, match="channels"):
        load_run(tmp_path / "run")


def test_a_run_without_a_checkpoint_or_record_is_replaced(tmp_path: Path) -> None:
    exploding = _recipe("digits-ce", *TINY, "optimizer.lr=1.0e+30")
    fine = _recipe("digits-ce", *TINY, "optimizer.lr=0.1")
    with pytest.raises(TrainingError, match="there is no checkpoint"):
        _run(exploding, tmp_path / "run")
    _run(fine, tmp_path / "run")
    assert recipe_from_yaml(RunFolder(tmp_path / "run").recipe.read_text()) == fine
    with pytest.raises(RunFolderError, match=r"optimizer\.lr is 0\.1 there"):
        _run(exploding, tmp_path / "run", start="resume")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/recipe.yaml").write_text(exploding.to_yaml())
    with pytest.raises(RunFolderError, match=r"optimizer\.lr is"):
        _run(fine, tmp_path / "own")


@pytest.mark.bad_input
def test_data_that_changed_since_are_refused(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8), dtype=np.uint8)
    path = tmp_path / "a.npz"

    def run(count: int, classes: int, start: Literal["fresh", "resume"]) -> None:
        _write_arrays(path, images[:count], np.arange(count) % classes)
        _run(_arrays_recipe(path), tmp_path / "run", start=start)

    run(12, 3, "fresh")
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    with pytest.raises(RunFolderError, match="its own classes"):
        run(12, 4, "resume")
    assert {file: file.read_bytes() for file in before} == before
    for count in (9, 12):
        images[0] = count
        with pytest.raises(RunFolderError, match="other training images"):
            run(count, 3, "resume")
        with pytest.raises(RunFolderError, match="other training images"):
            load_run(tmp_path / "run").dataset()
    _write_arrays(path, images, np.arange(12) % 4)
    with pytest.raises(RunFolderError, match="its own classes"):
        load_run(tmp_path / "run").evaluate()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.backbone.name=resnet81"], "resnet81"),
        (
            ["augmentation.color_jitter={brightness: 0.4, contrast: 0, saturation: 0, hue: 0}"],
            "needs color images",
        ),
        (["augmentation.grayscale=0.2"], "needs color images; these are grayscale"),
        (["loss.class_weights=[1, 2]"], "one weight for each of the 10 classes"),
    ],
)
def test_refusals_come_before_the_folder_is_touched(
    overrides: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        _run(_recipe("digits-nonl", *overrides), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.bad_input
def test_records_without_a_checkpoint_are_not_overwritten(tmp_path: Path) -> None:
    recipe = _recipe("digits-nonl", "schedule.epochs=2", "checkpoint.every=2")
    events = run_recipe(recipe, RunFolder(tmp_path / "run"), build.load_dataset(recipe))
    next(iter(events))
    events.close()
    with pytest.raises(RunFolderError, match="already has a run"):
        _run(recipe, tmp_path / "run")
    _run(recipe, tmp_path / "run", start="resume")
