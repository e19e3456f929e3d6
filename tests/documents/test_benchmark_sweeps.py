"""The benchmark of sweeps: pruned trials are completed, and the best of all is chosen."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from protosphere.recipes.catalog import names
from protosphere.recipes.loading import read_recipe
from protosphere.recipes.schema import find_difference, recipe_from_yaml
from support.short_runs import logged_run

SETTINGS = {
    "optimizer.lr": 0.25,
    "optimizer.weight_decay": 1e-3,
    "loss.temperature": 0.125,
    "augmentation.mixing": {"name": "mixup", "alpha": 0.2},
    "training.ema_decay": None,
}
OWN = {
    loss: (("loss", "label_smoothing" if loss == "ce" else "temperature"),)
    for loss in ("ce", "normface", "ntce", "nonl", "normface-nonl")
}
MACHINE = {"device": "cpu", "commit": "abc", "versions": {"torch": "2"}}


@pytest.fixture
def sweeps(
    import_benchmark: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Any:
    """The benchmark, with sweeps of two losses: two complete trials and a pruned one each."""
    module = import_benchmark("sweeps")
    monkeypatch.setattr(module, "SWEEPS", tmp_path / "sweeps")
    monkeypatch.setattr(module, "LOSSES", ("ntce", "nonl"))
    for loss in module.LOSSES:
        _write_sweep(tmp_path / "sweeps" / loss)
    return module


def _write_sweep(folder: Path) -> None:
    def trial(number: int, state: str, *accuracies: float) -> dict[str, Any]:
        evaluations = [[10 * i, value] for i, value in enumerate(accuracies, 1)]
        value = accuracies[-1] if state == "complete" else None
        return {
            "number": number,
            "state": state,
            "settings": SETTINGS | {"optimizer.lr": 0.25 + number / 100},
            "value": value,
            "evaluations": evaluations,
            "metrics": None,
            "error": None,
            "run": "",
        }

    trials = [
        trial(0, "complete", 0.3, 0.4, 0.5, 0.75),
        trial(1, "complete", 0.4, 0.5, 0.4, 0.7),
        trial(2, "pruned", 0.2),
    ]
    record = {
        "name": "x",
        "recipe": "",
        "metric": "accuracy",
        "direction": "maximize",
        "num_validation": 5000,
        "sampler": "tpe",
        "seed": 0,
        "prune": True,
        "num_trials": 3,
        "settings": [],
        "trials": trials,
        "best": 0,
    }
    folder.mkdir(parents=True)
    (folder / "sweep.json").write_text(json.dumps(record))
    (folder / "machine.json").write_text(json.dumps(MACHINE))


def _train(runs: Path, name: str, *accuracies: float) -> None:
    evaluations = [(10 * i, value) for i, value in enumerate(accuracies, 1)]
    folder = runs / name
    logged_run(folder, {"accuracy": evaluations}, "schedule.epochs=40", recipe="digits-nonl")
    (folder / "machine.json").write_text(json.dumps(MACHINE))


def test_pruned_trials_are_trained_as_in_the_sweep(sweeps: Any) -> None:
    jobs = sweeps.jobs()
    assert [job.name for job in jobs] == ["trial-ntce-2", "trial-nonl-2"]
    recipe = read_recipe(jobs[1].recipe, ["data.source=arrays", "data.path=x", *jobs[1].overrides])
    assert recipe.loss.name == "nonl"
    assert recipe.optimizer.lr == 0.27
    assert recipe.augmentation.mixing is not None
    assert recipe.schedule.epochs == 40


def test_jobs_have_the_recipe_of_the_trial(import_benchmark: Callable[[str], ModuleType]) -> None:
    """The recipe that each committed sweep records as its best is what the job would train."""
    module: Any = import_benchmark("sweeps")
    for loss in module.LOSSES:
        record = module._read(loss)
        settings = module._as_overrides(record.best.settings)
        expected = read_recipe(
            f"cifar100-strong-{loss}",
            ["data.source=arrays", "data.path=x", *module.overrides(), *settings],
        )
        stored = recipe_from_yaml(record.recipe)
        assert find_difference(_with(stored, expected), expected) is None
        assert stored.data.validation_fraction == expected.data.validation_fraction
        assert stored.schedule == expected.schedule
        assert stored.training.batch_size == expected.training.batch_size


def _with(stored: Any, expected: Any) -> Any:
    """Return a recipe with what the sweeps vary as in another one."""
    sections = ("loss", "optimizer", "augmentation", "training")
    return stored.model_copy(update={name: getattr(expected, name) for name in sections})


def test_best_recipes_have_the_settings_that_the_sweeps_chose(
    import_benchmark: Callable[[str], ModuleType],
) -> None:
    """Rounded to three digits."""
    module: Any = import_benchmark("sweeps")
    for job in import_benchmark("verdict").jobs():
        if job.group == "short" and job.name.endswith("-42"):
            loss = job.recipe.removeprefix("cifar100-strong-")
            trained = read_recipe(job.recipe, list(job.overrides))
            recipe = read_recipe(f"cifar100-best-{loss}")
            for section, key in (("optimizer", "lr"), ("optimizer", "weight_decay"), *OWN[loss]):
                exact = getattr(getattr(trained, section), key)
                rounded = getattr(getattr(recipe, section), key)
                assert rounded == pytest.approx(exact, rel=0.005), (loss, key)
                trained = _replace(trained, section, key, rounded)
            assert find_difference(recipe, trained) is None
    assert {name for name in names() if "-best-" in name} == {
        f"cifar100-best-{loss}" for loss in module.LOSSES
    }


def _replace(recipe: Any, section: str, key: str, value: float) -> Any:
    changed = getattr(recipe, section).model_copy(update={key: value})
    return recipe.model_copy(update={section: changed})


def test_the_best_of_all_complete_trials_is_chosen(sweeps: Any, tmp_path: Path) -> None:
    assert "optimizer.lr=0.25" in sweeps.chosen_settings("nonl")
    runs = tmp_path / "runs"
    _train(runs, "trial-nonl-2", 0.2, 0.3, 0.6, 0.8)
    _train(runs, "trial-ntce-2", 0.2, 0.3)  # Interrupted.
    sweeps.collect(runs)
    assert "optimizer.lr=0.27" in sweeps.chosen_settings("nonl")
    assert "optimizer.lr=0.25" in sweeps.chosen_settings("ntce")
    assert [job.name for job in sweeps.jobs()] == ["trial-ntce-2"]
    assert sweeps.complete_trials("nonl")[0].was_pruned
    # A later collection without the run keeps its result.
    _train(tmp_path / "later", "trial-ntce-2", 0.2, 0.3, 0.6, 0.5)
    sweeps.collect(tmp_path / "later")
    assert sweeps.jobs() == []
    assert "optimizer.lr=0.27" in sweeps.chosen_settings("nonl")
    assert "optimizer.lr=0.25" in sweeps.chosen_settings("ntce")


def test_tables_show_the_trials_that_were_trained_to_the_end(sweeps: Any, tmp_path: Path) -> None:
    _train(tmp_path / "runs", "trial-nonl-2", 0.2, 0.3, 0.6, 0.8)
    sweeps.collect(tmp_path / "runs")
    assert sweeps.table().splitlines()[2:] == [
        "| NTCE | 75.00% | 70.00 | 2 of 3 | 0.25 | 1.0e-03 | 0.125 | yes | no |",
        "| NONL | 80.00% | 75.00, 70.00 | 3 of 3 | 0.27 | 1.0e-03 | 0.125 | yes | no |",
    ]
    # Epoch 10: 0.3, 0.4, 0.2 and at last 0.75, 0.7, 0.8: the reverse order. Epoch 30: the same.
    assert sweeps.ranks_table().splitlines()[2:] == [
        "| NTCE | 2 | -1.00 | -1.00 | 1.00 |",
        "| NONL | 3 | -1.00 | -1.00 | 1.00 |",
    ]
    assert "0.6 points; commit abc." in sweeps.source()
