"""A recipe in a run folder: other sources, other circumstances, folders of images from end to end."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from protosphere.data.datasets import DataError
from protosphere.recipes import build, catalog
from protosphere.recipes.loading import load_model, load_run
from protosphere.recipes.runner import execute, fresh_objective, latest
from protosphere.recipes.schema import Recipe, difference, from_yaml, with_settings
from protosphere.runs import RunFolder, RunFolderError
from protosphere.training import TrainingError

TINY = [
    "optimization.epochs=2",
    "optimization.batch=8",
    "evaluate_every=1",
    "encoder.backbone=small",
]


def _run(recipe: Recipe, folder: Path, **options) -> list:
    return list(execute(recipe, RunFolder(folder), build.build_source(recipe), **options))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of three classes, each a color."""
    generator = np.random.default_rng(0)
    for part, count in (("train", 8), ("val", 4)):
        for index, name in enumerate(("blue", "green", "red")):
            (tmp_path / "images" / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 60, (20, 24, 3), dtype=np.uint8)
                pixels[..., 2 - index] += 180
                Image.fromarray(pixels).save(tmp_path / "images" / part / name / f"{number}.png")
    return tmp_path / "images"


def test_a_folder_of_images(images: Path, tmp_path: Path) -> None:
    """An ImageNet recipe, shrunk, on files; evaluated again from its run folder, with a list of classes."""
    (tmp_path / "list.txt").write_text("red\nblue\n")
    settings = [
        f"data.path={images}",
        f"data.classes={tmp_path}/list.txt",
        "data.workers=0",
        "views.size=16",
    ]
    settings += ["optimization.warmup_epochs=0", "optimization.rate=0.05", "optimization.epochs=8"]
    recipe = with_settings(catalog.recipe("imagenet100-nonl"), [*TINY[1:], *settings])
    events = _run(recipe, tmp_path / "run")
    assert events[-1].numbers["test_accuracy"] == 1
    assert "intra_effective_rank" not in events[-1].numbers, "cheap metrics while images stream"
    assert RunFolder(tmp_path / "run").read_json("classes.json") == ["red", "blue"]
    run = load_run(tmp_path / "run")
    assert len(run.test) == 8


@pytest.mark.bad_input
def test_a_folder_without_test_images_and_a_validation_part(images: Path, tmp_path: Path) -> None:
    shutil.rmtree(images / "val")
    folder = [
        "data.source=folder",
        f"data.path={images}",
        "data.workers=0",
        "data.validation_share=0.25",
        *TINY,
    ]
    recipe = with_settings(catalog.recipe("cifar10-ce"), [*folder, "encoder.stem=imagenet"])
    _run(recipe, tmp_path / "run", start="fresh")
    assert len(load_run(tmp_path / "run").test) == 6
    with pytest.raises(DataError, match="there must be test images in"):
        load_run(tmp_path / "run", tested="test")


def test_an_unreadable_image_is_named_and_a_list_that_does_not_match(
    images: Path, tmp_path: Path
) -> None:
    settings = [f"data.path={images}", "data.classes=null", "data.workers=0", "views.size=16"]
    recipe = with_settings(
        catalog.recipe("imagenet100-ce"),
        ["optimization.warmup_epochs=0", *TINY, *settings, "optimization.batch=4"],
    )
    broken = images / "train/green/3.png"
    broken.write_bytes(broken.read_bytes()[:50])
    with pytest.raises(DataError, match=r"train/green/3\.png must be an image; it cannot be read"):
        _run(recipe, tmp_path / "run")
    (tmp_path / "list.txt").write_text("red\nyellow\n")
    with pytest.raises(
        DataError, match=r"must have a folder for each of the 2 classes; it lacks 1 \(yellow\)"
    ):
        build.build_source(with_settings(recipe, [f"data.classes={tmp_path}/list.txt"]))


def test_synthetic_images_and_cheap_metrics(tmp_path: Path) -> None:
    settings = [
        "data.source=synthetic",
        "data.samples=40",
        "data.num_classes=4",
        "data.resolution=12",
        "views.size=8",
    ]
    recipe = with_settings(
        catalog.recipe("digits-nonl"), [*TINY, *settings, "views.crop=resized", "metrics=cheap"]
    )
    assert "nc4_agreement" not in _run(recipe, tmp_path / "run")[-1].numbers


def test_a_run_is_resumed_under_other_circumstances_but_not_as_another(tmp_path: Path) -> None:
    recipe = with_settings(catalog.recipe("digits-nonl"), ["optimization.epochs=2", "save_every=1"])
    asked = [False] * 20 + [True]
    events = _run(recipe, tmp_path / "run", stop=lambda: asked.pop(0))
    assert events[-1].progress.stopping
    assert events[-1].progress.step == 21
    other = with_settings(recipe, ["evaluate_every=2", "data.root=elsewhere"])
    assert difference(recipe, other) is None
    _run(other, tmp_path / "run", start="resume")
    assert from_yaml(RunFolder(tmp_path / "run").recipe.read_text()) == other, "where data are now"
    _run(recipe, tmp_path / "whole")
    assert latest(tmp_path / "run") == latest(tmp_path / "whole")
    wrong = with_settings(recipe, ["loss.temperature=0.3"])
    with pytest.raises(
        RunFolderError, match=r"it holds another one: loss\.temperature is 0\.2 there and 0\.3 here"
    ):
        _run(wrong, tmp_path / "run", start="resume")


def test_the_average_is_what_is_evaluated(tmp_path: Path) -> None:
    settings = ["optimization.epochs=2", "optimization.average=0.99"]
    plain, averaged = (
        with_settings(catalog.recipe("digits-nonl"), settings[:count]) for count in (1, 2)
    )
    one, other = (
        _run(recipe, tmp_path / name)[-1] for name, recipe in (("a", plain), ("b", averaged))
    )
    assert one.progress.loss == other.progress.loss
    assert one.numbers["nc1_ratio"] != other.numbers["nc1_ratio"]


@pytest.mark.bad_input
def test_a_class_without_training_images(tmp_path: Path) -> None:
    arrays = {"x_train": np.zeros((4, 8, 8), np.uint8), "y_train": np.array([0, 0, 2, 2])}
    np.savez(tmp_path / "data.npz", x_test=arrays["x_train"], y_test=arrays["y_train"], **arrays)
    recipe = with_settings(
        catalog.recipe("digits-ce"), [f"data.path={tmp_path}/data.npz", "data.source=arrays"]
    )
    with pytest.raises(DataError, match="every class must have training images; class 1 has none"):
        build.build_source(recipe)


@pytest.mark.bad_input
def test_other_test_images_and_facts_that_are_missing(tmp_path: Path) -> None:
    """A log of two test sets is none; a run may still be evaluated on another one, normalized as its own was."""
    images, labels = (
        np.random.default_rng(0).integers(0, 256, (12, 8, 8), dtype=np.uint8),
        np.arange(12) % 3,
    )
    recipe = with_settings(
        catalog.recipe("digits-ce"), [f"data.path={tmp_path}/data.npz", "data.source=arrays", *TINY]
    )
    for test in (images, 255 - images):
        np.savez(tmp_path / "data.npz", x_train=images, y_train=labels, x_test=test, y_test=labels)
        if test is images:
            _run(recipe, tmp_path / "run", start="fresh")
            continue
        with pytest.raises(
            RunFolderError, match="must be resumed with its own test images; these are others"
        ):
            _run(recipe, tmp_path / "run", start="resume")
    run = load_run(tmp_path / "run")
    mean, std = (
        torch.tensor(part)[:, None, None] for part in run.source.train.channel_statistics()
    )
    (clean, _), *_ = run.test.in_order(12)
    torch.testing.assert_close(clean, (torch.from_numpy(255 - images)[:, None] / 255 - mean) / std)
    facts = RunFolder(tmp_path / "run").read_json("data.json")
    RunFolder(tmp_path / "run").write_json("data.json", facts | {"mean": [0.0], "std": [2.0]})
    (clean, _), *_ = load_run(tmp_path / "run").test.in_order(12)
    torch.testing.assert_close(clean, torch.from_numpy(255 - images)[:, None] / 255 / 2)
    del facts["channels"]
    RunFolder(tmp_path / "run").write_json("data.json", facts)
    for load in (load_run, load_model):
        with pytest.raises(RunFolderError, match=r"data.json in .* must say channels; it does not"):
            load(tmp_path / "run")


def test_a_run_that_came_to_nothing_gives_way(tmp_path: Path) -> None:
    exploding, fine = (
        with_settings(catalog.recipe("digits-ce"), [*TINY, f"optimization.rate={r}"])
        for r in (1e30, 0.1)
    )
    with pytest.raises(TrainingError, match="there is no checkpoint"):
        _run(exploding, tmp_path / "run", start="fresh")
    _run(fine, tmp_path / "run", start="fresh")
    assert from_yaml(RunFolder(tmp_path / "run").recipe.read_text()) == fine
    with pytest.raises(RunFolderError, match="it holds another one"):
        _run(exploding, tmp_path / "run", start="resume")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/recipe.yaml").write_text(exploding.to_yaml())
    with pytest.raises(RunFolderError, match="it holds another one"):
        _run(fine, tmp_path / "own", start="fresh")


@pytest.mark.bad_input
def test_data_that_have_changed_since(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8), dtype=np.uint8)
    recipe = with_settings(
        catalog.recipe("digits-ce"), [f"data.path={tmp_path}/data.npz", "data.source=arrays", *TINY]
    )

    def run(count: int, classes: int, start: str) -> None:
        labels = np.arange(count) % classes
        np.savez(
            tmp_path / "data.npz",
            x_train=images[:count],
            y_train=labels,
            x_test=images[:count],
            y_test=labels,
        )
        _run(recipe, tmp_path / "run", start=start)

    run(12, 3, "fresh")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(
        RunFolderError, match="must have data of its own classes; these have others"
    ):
        run(12, 4, "resume")
    assert {path: path.read_bytes() for path in before} == before
    for change in (9, 12):
        images[0] = change
        with pytest.raises(
            RunFolderError, match="must be given its own training images; these are others"
        ):
            run(change, 3, "resume")
        with pytest.raises(
            RunFolderError, match="must be given its own training images; these are others"
        ):
            load_run(tmp_path / "run")
    np.savez(
        tmp_path / "data.npz",
        x_train=images,
        y_train=np.arange(12) % 4,
        x_test=images,
        y_test=np.arange(12) % 4,
    )
    with pytest.raises(RunFolderError, match="must have data of its own classes"):
        load_run(tmp_path / "run")


def test_the_seed_decides_the_first_weights_and_the_smoothing_is_done() -> None:
    recipe = catalog.recipe("digits-ce")
    source = build.build_source(recipe)
    one, again, other = (
        fresh_objective(with_settings(recipe, [f"seed={seed}"]), source, "cpu").head.prototypes
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    features, labels = torch.randn(6, 64), torch.arange(6)
    losses = []
    for smoothing in (0.0, 0.3):
        objective = fresh_objective(
            with_settings(recipe, [f"loss.label_smoothing={smoothing}"]), source, "cpu"
        )
        scores = torch.log_softmax(objective.head(features), 1)
        expected = -(
            (1 - smoothing) * scores[torch.arange(6), labels] + smoothing * scores.mean(1)
        ).mean()
        losses.append(objective.loss(features, objective.head, labels))
        torch.testing.assert_close(losses[-1], expected)
    assert losses[0] != losses[1]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["encoder.backbone=resnet81"],
            "a backbone must be 'small' or a model of timm; got 'resnet81'",
        ),
        (
            ["encoder.backbone=vit_tiny_patch16_224"],
            "must take images of views.size 8; it does not",
        ),
        (["views.jitter=[0.4, 0.4, 0.4, 0.1]"], "are for images in color; these are gray"),
        (["views.gray_probability=0.2"], "are for images in color; these are gray"),
    ],
)
def test_what_is_wrong_is_found_before_the_folder_is_touched(
    settings: list, message: str, tmp_path: Path
) -> None:
    recipe = with_settings(catalog.recipe("digits-nonl"), settings)
    with pytest.raises(ValueError, match=re.escape(message)):
        _run(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.bad_input
def test_records_without_a_checkpoint_are_not_overwritten(tmp_path: Path) -> None:
    recipe = with_settings(catalog.recipe("digits-nonl"), ["optimization.epochs=2", "save_every=2"])
    next(execute(recipe, RunFolder(tmp_path / "run"), build.build_source(recipe))).progress  # noqa: B018
    with pytest.raises(RunFolderError, match="it has a run already"):
        _run(recipe, tmp_path / "run")
    _run(recipe, tmp_path / "run", start="resume")


@pytest.mark.parametrize("backbone", ["mobilenetv3_small_050", "vit_tiny_patch16_224"])
def test_backbones_that_are_no_resnets(backbone: str) -> None:
    settings = [
        f"encoder.backbone={backbone}",
        "encoder.stem=imagenet",
        "views.size=224",
        "views.padding=4",
    ]
    objective = build.build_objective(
        with_settings(catalog.recipe("digits-nonl"), settings), num_classes=3, in_channels=3
    )
    with torch.no_grad():
        assert objective.eval().scores(torch.zeros(2, 3, 224, 224)).shape == (2, 3)
