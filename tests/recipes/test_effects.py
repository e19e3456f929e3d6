"""A setting without effect on a new run is refused; a run that has it can still be resumed."""

from pathlib import Path

import pytest

from protosphere.recipes import build, catalog
from protosphere.recipes.effects import check_effects
from protosphere.recipes.loading import load_run
from protosphere.recipes.runner import run_recipe
from protosphere.recipes.schema import Recipe, RecipeError, apply_overrides
from protosphere.runs import RunFolder
from protosphere.studies.compare import run_comparison
from protosphere.studies.sweep_settings import check_settings, parse_setting
from support.commands import refusal

pytestmark = pytest.mark.bad_input

VALIDATED = "data.validation_fraction=0.2"
JITTER = "brightness: 0, contrast: 0, saturation: 0, hue: 0"


def _recipe(*overrides: str) -> Recipe:
    return apply_overrides(catalog.get_recipe("digits-nonl"), overrides)


@pytest.mark.parametrize("name", catalog.names())
def test_every_setting_of_the_catalog_has_an_effect(name: str) -> None:
    check_effects(catalog.get_recipe(name))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [VALIDATED, "checkpoint.monitor=accuracy", "schedule.epochs=5", "evaluation.every=5"],
            r"checkpoint\.monitor has no effect .* evaluation\.every must be less than "
            r"schedule\.epochs \(5\), got 5$",
        ),
        (
            [
                VALIDATED,
                "checkpoint={monitor: accuracy, patience: 8}",
                "schedule.epochs=30",
                "evaluation.every=10",
            ],
            r"checkpoint\.patience must be at most 1 or null for a run with 3 evaluations "
            r"\(schedule\.epochs 30, evaluation\.every 10\), .*, got 8$",
        ),
        (
            [
                VALIDATED,
                "checkpoint={monitor: accuracy, patience: 1}",
                "schedule.epochs=1",
                "evaluation.every=1",
            ],
            r"checkpoint\.patience must be null for a run with 1 evaluation ",
        ),
        (
            ["schedule={name: multistep, epochs: 4, milestones: [1, 3], warmup_epochs: 2}"],
            r"schedule\.milestones must be at least schedule\.warmup_epochs \(2\), got \[1, 3\]$",
        ),
        (
            ["augmentation.mixing={name: mixup, alpha: 1, p: 0}"],
            r"augmentation\.mixing must be null or have a p greater than 0",
        ),
        (
            ["augmentation.mixing={name: mixup_or_cutmix, cutmix_p: 1, mixup_alpha: 1}"],
            r"mixing\.mixup_alpha has no effect with augmentation\.mixing\.cutmix_p 1$",
        ),
        (
            ["augmentation.mixing={name: mixup_or_cutmix, cutmix_p: 0, cutmix_alpha: 0.5}"],
            r"mixing\.cutmix_alpha has no effect with augmentation\.mixing\.cutmix_p 0$",
        ),
        (
            ["augmentation.color_jitter={brightness: 1, contrast: 1, saturation: 0, hue: 0, p: 0}"],
            r"augmentation\.color_jitter must be null or have a p greater than 0",
        ),
        (
            [f"augmentation.color_jitter={{{JITTER}}}"],
            r"augmentation\.color_jitter must be null or have a brightness, contrast",
        ),
        (
            ["training={batch_size: 2000, micro_batch_size: 1500}"],
            r"training\.micro_batch_size must be less than the number of training images \(1000\)",
        ),
        (
            ["training.batch_size=100", "loss.queue={size: 400, max_age: 4}"],
            r"loss\.queue\.max_age has no effect with loss\.queue\.size 400, .* less than 4 or "
            r"null, got 4$",
        ),
    ],
)
def test_settings_without_effect_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        check_effects(_recipe(*overrides), num_train=1000)


@pytest.mark.parametrize(
    "overrides",
    [
        [VALIDATED, "checkpoint.monitor=accuracy", "schedule.epochs=1", "evaluation.every=10"],
        [
            VALIDATED,
            "checkpoint={monitor: accuracy, patience: 1}",
            "schedule.epochs=3",
            "evaluation.every=1",
        ],
        ["schedule={name: multistep, epochs: 4, milestones: [2], warmup_epochs: 2}"],
        ["augmentation.mixing={name: mixup_or_cutmix, cutmix_p: 1}"],
        ["training={batch_size: 2000, micro_batch_size: 999}"],
        ["training.batch_size=100", "loss.queue={size: 400, max_age: 3}"],
    ],
)
def test_settings_at_the_limit_are_accepted(overrides: list[str]) -> None:
    check_effects(_recipe(*overrides), num_train=1000)


def test_a_new_run_is_refused_before_its_folder_is_written(tmp_path: Path) -> None:
    recipe = _recipe(
        VALIDATED,
        "data={source: synthetic, num_classes: 2, num_samples: 20, image_size: 8}",
        "training.batch_size=10",
        "schedule.epochs=1",
        "loss.queue={size: 10, max_age: 3}",
    )
    with pytest.raises(RecipeError, match=r"loss\.queue\.max_age has no effect"):
        next(run_recipe(recipe, RunFolder(tmp_path / "run"), build.load_dataset(recipe)))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("override", ["checkpoint.keep=3", "training.fsdp=true"])
def test_a_trained_run_takes_no_settings_of_training(override: str) -> None:
    with pytest.raises(RecipeError, match="has no effect on a run that has been trained"):
        load_run("run", overrides=[override])


def test_recipes_sweeps_and_comparisons_are_refused_at_once(tmp_path: Path) -> None:
    late = "evaluation.every=9"
    settings = [VALIDATED, "checkpoint.monitor=accuracy", "schedule.epochs=5"]
    options = [word for text in [*settings, late] for word in ("--set", text)]
    assert "evaluation.every must be less" in refusal("recipes", "digits-nonl", *options)
    with pytest.raises(RecipeError, match=r"checkpoint\.monitor has no effect"):
        check_settings(_recipe(*settings), [parse_setting("evaluation.every=1,9")])
    with pytest.raises(RecipeError, match=r"checkpoint\.monitor has no effect"):
        run_comparison(["digits-nonl"], out=tmp_path / "out", overrides=[*settings, late])
    assert not (tmp_path / "out").exists()
