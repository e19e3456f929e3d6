"""Trained runs: predictions, features, evaluation; class means of their own weights."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import protosphere
from protosphere.classifiers import class_means
from protosphere.classifiers.protocol import FittedHead
from protosphere.data.datasets import ImageSet, load_digits
from protosphere.encoders import Encoder
from protosphere.evaluation import collect_outputs
from protosphere.recipes import build, catalog, loading
from protosphere.recipes.loading import load_run, read_recipe
from protosphere.recipes.runner import run_recipe
from protosphere.recipes.schema import Recipe, RecipeError, apply_overrides
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.checkpoints import load_checkpoint


def _run(recipe: Recipe, folder: Path, should_stop: Callable[[], bool] = lambda: False) -> None:
    dataset = build.load_dataset(recipe)
    for _ in run_recipe(
        recipe, RunFolder(folder), dataset, start="resume", should_stop=should_stop
    ):
        pass


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run on digits."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    _run(apply_overrides(catalog.get_recipe("digits-nonl"), ["schedule.epochs=5"]), folder)
    return folder


def test_a_run_predicts_evaluates_and_gives_features(digits: Path) -> None:
    run = protosphere.load_run(digits)
    assert (run.class_names, run.channels, run.split) == (tuple("0123456789"), 1, "test")
    test = run.dataset().test
    assert isinstance(test, ImageSet)
    predictions = run.predict(test.images)
    accuracy = float((predictions.classes == test.labels).double().mean())
    result = run.evaluate()
    assert result.metrics["accuracy"] == pytest.approx(accuracy)
    logged = RunFolder(digits).last_evaluation()
    assert logged is not None
    assert logged["accuracy"] == pytest.approx(accuracy)
    assert (predictions.confidences > 0).all()
    assert (predictions.rejection_scores <= 1).all()
    content = run.features("test")
    assert content.features.shape == (len(test), 64)
    assert content.prototypes is not None
    assert content.prototypes.shape == (10, 64)
    assert torch.equal(torch.as_tensor(content.labels), test.labels)
    assert content.class_names == run.class_names


@pytest.mark.bad_input
def test_unknown_splits_are_refused(digits: Path) -> None:
    split: Any = "vall"
    with pytest.raises(ValueError, match="split must be train, validation or test, got 'vall'"):
        load_run(digits).features(split)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("images", "message"),
    [
        ("nowhere.png", "nowhere.png must be an image file; it cannot be read"),
        ([3], "images must be paths, Pillow images, .* got int"),
        ([np.zeros((1, 8, 8), np.uint8)], r"uint8 NumPy arrays .* got shape \(1, 8, 8\)"),
        ([torch.zeros(8, 8, 1, dtype=torch.uint8)], r"1 to 4 channels.* got shape \(8, 8, 1\)"),
        ([torch.zeros(1, 8, 8)], "got torch.float32"),
        ([], "at least one image"),
    ],
)
def test_images_that_cannot_be_predicted(digits: Path, images: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_run(digits).predict(images)


def test_auto_finds_the_device_of_a_run(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert load_run(digits, device="auto").device == torch.device("cpu")
    recipe = read_recipe("digits-nonl", ["schedule.epochs=1"])
    events = run_recipe(
        recipe, digits.parent / "auto", build.load_dataset(recipe), device="auto", start="fresh"
    )
    assert [event.progress.at_epoch_end for event in events] == [True]


@pytest.mark.bad_input
def test_devices_that_are_not_there_are_refused(digits: Path) -> None:
    message = "device must be a device that is available here, such as cpu, got abacus"
    with pytest.raises(ValueError, match=f"^{message}$"):
        load_run(digits, device="abacus")
    recipe = read_recipe("digits-nonl")
    with pytest.raises(ValueError, match=f"^{message}$"):
        next(run_recipe(recipe, digits, build.load_dataset(recipe), device="abacus"))


def test_images_of_other_sizes_are_resized(digits: Path) -> None:
    run = load_run(digits)
    large = torch.randint(0, 256, (1, 20, 30), dtype=torch.uint8)
    predictions = run.predict([large, large[:, :8, :8]])
    assert predictions.classes.shape == (2,)


def test_metrics_can_be_chosen(digits: Path) -> None:
    run = load_run(digits)
    assert "nc4_agreement" in run.evaluate().metrics
    assert "nc4_agreement" not in run.evaluate(metrics="cheap").metrics


@pytest.mark.bad_input
def test_unknown_choices_are_refused(digits: Path) -> None:
    run: Any = load_run(digits)
    with pytest.raises(ValueError, match="metrics must be all or cheap, got 'foo'"):
        run.evaluate(metrics="foo")
    with pytest.raises(ValueError, match="metrics must be all or none, got 'foo'"):
        run.probe(metrics="foo")
    with pytest.raises(ValueError, match="split must be test or validation, got 'val'"):
        run.evaluate(split="val")
    with pytest.raises(ValueError, match="there are no validation images"):
        run.evaluate(split="validation")


def test_data_are_read_only_when_they_are_needed(digits: Path, monkeypatch: Any) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the data were read")

    monkeypatch.setattr(build, "load_dataset", refuse)
    run = load_run(digits)
    run.predict(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    with pytest.raises(AssertionError, match="the data were read"):
        run.evaluate()


def test_a_projection_is_taken_off_by_name(tmp_path: Path) -> None:
    recipe = apply_overrides(catalog.get_recipe("digits-scl"), ["schedule.epochs=1"])
    _run(recipe, tmp_path / "run")
    checkpoint = load_checkpoint(tmp_path / "run/checkpoints")
    assert checkpoint is not None
    prefix = "encoder.backbone."
    weights = {
        name.removeprefix(prefix): value
        for name, value in checkpoint.weights.items()
        if name.startswith(prefix)
    }
    run = load_run(tmp_path / "run")
    backbone = build.create_objective(recipe, num_classes=10, in_channels=1).encoder.backbone
    backbone.load_state_dict(weights)
    images = torch.rand(3, 1, 8, 8)
    encoder = run.objective.encoder
    assert isinstance(encoder, Encoder)
    with torch.no_grad():
        torch.testing.assert_close(backbone.eval()(images), encoder.without_projection()(images))


@pytest.mark.parametrize("projection", ["{name: mlp, out_dim: 16}", "null"])
def test_probes_see_one_view_that_is_only_cropped_and_flipped(
    projection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = apply_overrides(
        catalog.get_recipe("cifar10-scl"),
        [
            "data={source: synthetic, num_classes: 3, num_samples: 24, image_size: 8}",
            "schedule.epochs=1",
            "training.batch_size=8",
            "training.precision=fp32",
            "model={backbone: {name: small}, neck: linear}",
            f"model.projection={projection}",
            "augmentation.size=8",
            "augmentation.auto_augment={name: trivial_augment_wide}",
            "augmentation.random_erasing=0.5",
        ],
    )
    _run(recipe, tmp_path / "run")
    seen: dict[str, Any] = {}

    def record(*arguments: Any, **options: Any) -> Any:
        seen.update(options, arguments=arguments)
        return iter(())

    monkeypatch.setattr(loading, "run_probes", record)
    folder = RunFolder(tmp_path / "run")
    folder.write_json("data.json", folder.read_json("data.json") | {"mean": [0.1, 0.2, 0.3]})
    list(load_run(folder.path).probe())
    _, *loaders, _ = seen["arguments"]
    for loader in loaders:
        policy = loader.augmentation.policy
        assert policy.num_views == 1
        assert (policy.color_jitter, policy.grayscale) == (None, 0)
        assert (policy.auto_augment, policy.random_erasing) == (None, 0)
        assert policy.crop == recipe.augmentation.crop
        assert loader.augmentation.mean == (0.1, 0.2, 0.3), "as recorded, not as measured now"
    assert seen["metrics"] == "all"


def _digits_recipe(path: Path, *overrides: str) -> Recipe:
    """Digits as arrays, which a test can take away, in two epochs of ten steps."""
    dataset = load_digits()
    content = {}
    for name, split in (("train", dataset.train), ("test", dataset.test)):
        assert isinstance(split, ImageSet)
        content[f"x_{name}"] = split.images[:640, 0].numpy()
        content[f"y_{name}"] = split.labels[:640].numpy()
    np.savez(path, **content)  # type: ignore[arg-type]
    return apply_overrides(
        catalog.get_recipe("digits-scl"),
        [
            "data.source=arrays",
            f"data.path={path}",
            "schedule.epochs=2",
            "evaluation.every=1",
            "checkpoint.every=1",
            *overrides,
        ],
    )


@pytest.mark.long
@pytest.mark.parametrize(("ema", "steps"), [("null", 5), ("0.6", 15)])
def test_class_means_are_those_of_the_saved_weights(ema: str, steps: int, tmp_path: Path) -> None:
    """Before the first evaluation, between two, and at the end; resuming makes no difference."""
    recipe = _digits_recipe(tmp_path / "d.npz", f"training.ema_decay={ema}")
    counter = iter(range(1, 100))
    _run(recipe, tmp_path / "run", lambda: next(counter) == steps)

    def check_means() -> None:
        run = load_run(tmp_path / "run")
        train, _ = build.create_loaders(run.recipe, run.dataset(), "cpu")
        outputs = collect_outputs(run.objective, train)
        means = class_means(outputs.features, outputs.labels, num_classes=10).means.float()
        torch.testing.assert_close(run.objective.head.prototypes, means, rtol=0, atol=1e-6)

    check_means()
    (tmp_path / "d.npz").rename(tmp_path / "away.npz")
    with pytest.raises(RunFolderError, match="was stopped between two evaluations"):
        load_run(tmp_path / "run")
    (tmp_path / "away.npz").rename(tmp_path / "d.npz")
    _run(recipe, tmp_path / "run")
    check_means()
    _run(recipe, tmp_path / "whole")
    resumed, whole = (load_checkpoint(tmp_path / name / "checkpoints") for name in ("run", "whole"))
    assert resumed is not None
    assert whole is not None
    for name, value in resumed.weights.items():
        assert torch.equal(value, whole.weights[name]), name
    (tmp_path / "d.npz").unlink()
    head = load_run(tmp_path / "run").objective.head
    assert isinstance(head, FittedHead)
    assert head.is_fitted, "a completed run needs no data"


def test_other_images_to_evaluate_on_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = _digits_recipe(tmp_path / "d.npz", "schedule.epochs=1")
    _run(recipe, tmp_path / "run")
    accuracy = load_run(tmp_path / "run").evaluate().metrics["accuracy"]
    assert not caplog.records
    arrays = dict(np.load(tmp_path / "d.npz"))
    np.savez(tmp_path / "other.npz", **arrays | {"y_test": (arrays["y_test"] + 1) % 10})
    run = load_run(tmp_path / "run", overrides=[f"data.path={tmp_path / 'other.npz'}"])
    run.features("train")
    assert not caplog.records, "the training images are the same"
    assert run.evaluate().metrics["accuracy"] < accuracy / 2
    assert [record.getMessage() for record in caplog.records] == [
        "these test images are not those that the run was evaluated on during training"
    ]


@pytest.mark.bad_input
def test_folders_that_are_no_runs(tmp_path: Path, digits: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a run folder"):
        load_run(tmp_path / "nothing")
    with pytest.raises(RunFolderError) as error:
        load_run(digits, overrides=["schedule.epochs=6"])
    assert str(error.value) == (
        f"{digits}: overrides must not change what was trained: schedule.epochs is 5 there and "
        "6 here"
    )


@pytest.mark.bad_input
def test_a_run_whose_checkpoints_are_damaged_has_no_other_one(digits: Path, tmp_path: Path) -> None:
    shutil.copytree(digits, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob("*/*.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(RunFolderError, match=r"^all checkpoints in .* are damaged") as error:
        load_run(tmp_path / "run")
    assert "--checkpoint last" not in str(error.value)


@pytest.mark.bad_input
def test_recipes_by_name_or_file(tmp_path: Path) -> None:
    recipe = catalog.get_recipe("digits-ce")
    (tmp_path / "own.yaml").write_text(recipe.to_yaml())
    assert read_recipe(str(tmp_path / "own.yaml")) == recipe
    assert read_recipe("digits-ce", ["seed=1"]).seed == 1
    with pytest.raises(RecipeError, match="it does not exist"):
        read_recipe(str(tmp_path / "none.yaml"))


def test_a_run_of_version_0_2_0_is_readable(digits: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(digits, old)
    text = RunFolder(old).recipe.read_text()
    (before,) = re.findall(r"\n  micro_batch_size: null\n", text)
    old_text = text.replace(before, "\n  grad_accum_steps: 1\n")
    RunFolder(old).recipe.write_text(old_text)
    assert load_run(old).recipe == load_run(digits).recipe
    _run(load_run(digits).recipe, old)  # Nothing is left to do, and nothing is refused.
    RunFolder(old).recipe.write_text(old_text.replace("steps: 1", "steps: 4"))
    with pytest.raises(
        RecipeError, match=r"no training.grad_accum_steps; use training.micro_batch"
    ):
        load_run(old)
