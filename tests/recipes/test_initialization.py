"""New training from the weights of an earlier run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from protosphere.recipes import build, catalog
from protosphere.recipes.loading import load_run
from protosphere.recipes.runner import Event, run_recipe
from protosphere.recipes.schema import Recipe, RecipeError, apply_overrides
from protosphere.runs import RunFolder, RunFolderError

FOUR = "data={source: synthetic, num_classes: 4, num_samples: 40, image_size: 8}"
FIVE = "data={source: synthetic, num_classes: 5, num_samples: 40, image_size: 8}"
# So small a learning rate that the weights hardly change.
STILL = ["optimizer.lr=1e-12", "optimizer.weight_decay=0", "schedule.epochs=1"]


def _recipe(*overrides: str, name: str = "digits-nonl") -> Recipe:
    return apply_overrides(catalog.get_recipe(name), ["training.batch_size=20", *overrides])


def _run(recipe: Recipe, folder: Path, **options: Any) -> list[Event]:
    return list(run_recipe(recipe, RunFolder(folder), build.load_dataset(recipe), **options))


def _weights(folder: Path) -> dict[str, Tensor]:
    return load_run(folder).objective.state_dict()


def _same(one: Path, other: Path, part: str) -> bool:
    first, second = _weights(one), _weights(other)
    keys = [key for key in first if key.startswith(part) and key.endswith(("weight", "prototypes"))]
    assert keys
    return all(torch.allclose(first[key], second[key], atol=1e-6) for key in keys)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("earlier") / "run"
    _run(_recipe(FOUR, "schedule.epochs=2", "training.ema_decay=0.5"), folder)
    return folder


def test_the_whole_model_is_taken_if_the_classes_are_the_same(
    earlier: Path, tmp_path: Path
) -> None:
    _run(_recipe(FOUR, "seed=7", *STILL), tmp_path / "new", init_from=earlier)
    assert _same(earlier, tmp_path / "new", "encoder")
    assert _same(earlier, tmp_path / "new", "head")
    note = RunFolder(tmp_path / "new").read_json("init.json")
    assert note == {"run": str(earlier), "step": 4, "parts": ["backbone", "head"]}


def test_other_classes_get_a_new_head(earlier: Path, tmp_path: Path) -> None:
    _run(_recipe(FIVE, *STILL), tmp_path / "new", init_from=earlier)
    assert _same(earlier, tmp_path / "new", "encoder")
    assert RunFolder(tmp_path / "new").read_json("init.json")["parts"] == ["backbone"]


def test_images_are_normalized_as_the_weights_expect(earlier: Path, tmp_path: Path) -> None:
    # Other images, which on their own would be normalized in another way.
    recipe = _recipe(FOUR, "seed=9", *STILL)
    _run(recipe, tmp_path / "alone")
    _run(recipe, tmp_path / "new", init_from=earlier)
    folders = tmp_path / "alone", tmp_path / "new", earlier
    alone, new, first = (load_run(folder).transform for folder in folders)
    assert (new.mean, new.std) == (first.mean, first.std)
    assert (new.mean, new.std) != (alone.mean, alone.std)


def test_as_many_classes_of_other_names_get_a_new_head(earlier: Path, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(40) % 4
    arrays: dict[str, Any] = {"x_train": images, "y_train": labels, "x_test": images}
    np.savez(tmp_path / "images.npz", class_names=np.array(list("abcd")), y_test=labels, **arrays)
    recipe = _recipe(f"data={{source: arrays, path: {tmp_path / 'images.npz'}}}", *STILL)
    _run(recipe, tmp_path / "new", init_from=earlier)
    assert RunFolder(tmp_path / "new").read_json("init.json")["parts"] == ["backbone"]


def test_another_loss_and_projection_keep_the_backbone(earlier: Path, tmp_path: Path) -> None:
    _run(_recipe(FOUR, *STILL, name="digits-scl"), tmp_path / "new", init_from=earlier)
    assert _same(earlier, tmp_path / "new", "encoder.backbone")


def test_a_resumed_run_keeps_its_own_weights(earlier: Path, tmp_path: Path) -> None:
    recipe = _recipe(FOUR, "schedule.epochs=3", "checkpoint.every=1")
    whole = _run(recipe, tmp_path / "whole", init_from=earlier)
    count = iter(range(1, 9))
    _run(recipe, tmp_path / "part", init_from=earlier, should_stop=lambda: next(count) == 3)
    resumed = _run(recipe, tmp_path / "part", init_from=earlier, start="resume")
    assert resumed[-1].progress.loss == whole[-1].progress.loss


@pytest.mark.bad_input
def test_a_resumed_run_does_not_take_the_weights_of_another(earlier: Path, tmp_path: Path) -> None:
    recipe = _recipe(FOUR, "schedule.epochs=1")
    _run(recipe, tmp_path / "alone")
    message = "--init-from has no effect on a run that is resumed: .*alone was started without"
    with pytest.raises(RunFolderError, match=message):
        _run(recipe, tmp_path / "alone", init_from=earlier, start="resume")
    _run(recipe, tmp_path / "second", init_from=earlier)
    message = f"second was started from those of {earlier}, not the weights of .*alone"
    with pytest.raises(RunFolderError, match=message):
        _run(recipe, tmp_path / "second", init_from=tmp_path / "alone", start="resume")


class _KilledError(Exception):
    pass


def _kill() -> bool:
    raise _KilledError


def test_a_run_killed_before_its_first_checkpoint_starts_from_the_same_weights(
    earlier: Path, tmp_path: Path
) -> None:
    recipe = _recipe(FOUR, "schedule.epochs=1")
    whole = _run(recipe, tmp_path / "whole", init_from=earlier)
    with pytest.raises(_KilledError):
        _run(recipe, tmp_path / "part", init_from=earlier, should_stop=_kill)
    resumed = _run(recipe, tmp_path / "part", start="resume")
    assert resumed[-1].progress.loss == whole[-1].progress.loss
    assert RunFolder(tmp_path / "part").read_json("init.json")["run"] == str(earlier)


def test_a_run_started_again_without_earlier_weights_does_not_name_them(
    earlier: Path, tmp_path: Path
) -> None:
    recipe = _recipe(FOUR, "schedule.epochs=1")
    with pytest.raises(_KilledError):
        _run(recipe, tmp_path / "new", init_from=earlier, should_stop=_kill)
    _run(recipe, tmp_path / "new")
    assert not (tmp_path / "new" / "init.json").exists()


@pytest.mark.bad_input
def test_what_is_no_run_or_another_backbone_is_refused(earlier: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="must be a run folder, but has no recipe"):
        _run(_recipe(FOUR), tmp_path / "new", init_from=tmp_path / "nothing")
    other = _recipe(FOUR, "model.backbone.name=resnet10t", "augmentation.size=32")
    with pytest.raises(RunFolderError, match="must be a run with the same backbone"):
        _run(other, tmp_path / "new", init_from=earlier)
    assert not (tmp_path / "new").exists()


@pytest.mark.bad_input
def test_random_weights_are_not_frozen(earlier: Path, tmp_path: Path) -> None:
    recipe = _recipe(FOUR, "model.freeze=backbone", "schedule.epochs=1")
    with pytest.raises(RecipeError, match=r"model\.freeze must be none without .*pretrained"):
        _run(recipe, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    _run(recipe, tmp_path / "new", init_from=earlier)
    assert _same(earlier, tmp_path / "new", "encoder")
