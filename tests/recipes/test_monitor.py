"""Which checkpoint: the best one is kept and loaded, and training stops early, resumed or not."""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from protosphere.recipes import build, catalog, reports, runner
from protosphere.recipes.loading import load_run
from protosphere.recipes.monitor import BestEvaluation, find_best, is_patience_exhausted
from protosphere.recipes.runner import Event, run_recipe
from protosphere.recipes.schema import Recipe, RecipeError, apply_overrides
from protosphere.recipes.schema.sections import CheckpointSettings
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.arrays import (
    ARRAYS_FILE,
    BEST_ARRAYS_FILE,
    read_arrays_of,
    write_arrays,
)
from protosphere.runs.checkpoints import load_checkpoint

SETTINGS = [
    "data={source: synthetic, num_classes: 4, num_samples: 80, image_size: 8, "
    "validation_fraction: 0.25}",
    "schedule.epochs=12",
    "training.batch_size=20",
    "training.ema_decay=0.9",
    "evaluation={every: 1, metrics: cheap}",
    # The accuracy of an unstable run goes up and down.
    "optimizer.lr=3",
]


def _recipe(*overrides: str) -> Recipe:
    return apply_overrides(catalog.get_recipe("digits-ce"), [*SETTINGS, *overrides])


def _run(recipe: Recipe, folder: Path, **options: Any) -> list[Event]:
    return list(run_recipe(recipe, RunFolder(folder), build.load_dataset(recipe), **options))


def _evaluations(values: list[float], metric: str = "accuracy") -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for step, value in enumerate(values, 1):
        records.append({"kind": "train", "step": step, "loss": -100.0, "accuracy": 100.0})
        records.append({"kind": "evaluation", "step": step, metric: value})
    return records


@pytest.mark.parametrize(
    ("monitor", "values", "step"),
    [
        ("accuracy", [0.1, 0.5, 0.5, 0.3], 2),
        ("balanced_accuracy", [0.6, 0.5], 1),
        ("loss", [2.0, 1.0, 3.0], 2),
        ("loss", [float("nan"), 5.0, float("nan")], 2),
    ],
)
def test_the_best_evaluation(monitor: Any, values: list[float], step: int) -> None:
    settings = CheckpointSettings(monitor=monitor)
    best = find_best(settings, _evaluations(values, monitor))
    assert best == BestEvaluation(step, values[step - 1])


def test_nothing_is_best_without_a_monitor_or_an_evaluation() -> None:
    assert find_best(CheckpointSettings(), _evaluations([0.5])) is None
    assert find_best(CheckpointSettings(monitor="accuracy"), []) is None


@pytest.mark.parametrize(
    ("values", "stops"),
    [([0.5], False), ([0.5, 0.4], False), ([0.5, 0.4, 0.4], True), ([0.5, 0.4, 0.6, 0.5], False)],
)
def test_patience_counts_evaluations_since_the_best(values: list[float], stops: bool) -> None:
    settings = CheckpointSettings(monitor="accuracy", patience=2)
    assert is_patience_exhausted(settings, _evaluations(values)) is stops


def test_the_best_and_the_last_checkpoint_are_kept(tmp_path: Path) -> None:
    recipe = _recipe("checkpoint={every: 1, keep: 1, monitor: accuracy}")
    events = _run(recipe, tmp_path / "run")
    evaluated = {e.progress.step: e.metrics["accuracy"] for e in events if e.metrics}
    best = max(evaluated, key=lambda step: (evaluated[step], -step))
    last = events[-1].progress.step
    assert best != last, "the test needs a run whose best evaluation is not its last"
    kept = sorted(int(path.name[5:]) for path in (tmp_path / "run/checkpoints").iterdir())
    assert kept == [best, last]
    assert events[-1].best == BestEvaluation(best, evaluated[best])
    run = load_run(tmp_path / "run")
    assert run.step == best
    assert run.evaluate().metrics["accuracy"] == evaluated[best]
    assert load_run(tmp_path / "run", checkpoint="last").step == last


def test_a_best_between_two_checkpoints_is_saved(tmp_path: Path) -> None:
    recipe = _recipe("checkpoint={every: 100, keep: 1, monitor: loss}")
    events = _run(recipe, tmp_path / "run")
    assert events[-1].best is not None
    assert load_run(tmp_path / "run").step == events[-1].best.step


class KilledError(BaseException):
    """Nothing catches it to clean up, as nothing does after SIGKILL."""


def _kill_at(write: int, patch: pytest.MonkeyPatch) -> None:
    """Let the process die at one of the moments at which a file is flushed to disk."""
    count = iter(range(1, write + 1))

    def flush(descriptor: int) -> None:
        if next(count) == write:
            raise KilledError

    patch.setattr(os, "fsync", flush)


def test_the_arrays_of_the_best_evaluation_survive_every_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = _recipe("checkpoint={every: 4, keep: 1, monitor: accuracy}", "schedule.epochs=5")
    evaluated: dict[int, bytes] = {}

    def write(folder: RunFolder, arrays: Any, *, step: int) -> None:
        evaluated.setdefault(step, arrays["class_means"].tobytes())
        write_arrays(folder, arrays, step=step)

    monkeypatch.setattr(reports, "write_arrays", write)
    monkeypatch.setattr(os, "fsync", lambda _: None)

    def check(folder: Path) -> int:
        records = RunFolder(folder).records()
        best = find_best(recipe.checkpoint, records)
        if best is not None:
            arrays, step = read_arrays_of(RunFolder(folder), best.step)
            assert step == best.step
            assert arrays["class_means"].tobytes() == evaluated[step]
        return -1 if best is None else best.step

    events = _run(recipe, tmp_path / "reference")
    best, last = check(tmp_path / "reference"), events[-1].progress.step
    assert best < last, "the test needs a run whose best evaluation is not its last"
    assert len(set(evaluated.values())) == 5
    for moment in range(10, 100, 5):
        folder = tmp_path / f"killed-{moment}"
        with monkeypatch.context() as patch:
            _kill_at(moment, patch)
            try:
                _run(recipe, folder)
            except KilledError:
                check(folder)
            else:
                break
        _run(recipe, folder, start="resume")
        assert check(folder) == best
    assert moment > 30, "the loop has killed the run at least five times"


def test_no_file_of_an_earlier_best_evaluation_is_left(tmp_path: Path) -> None:
    recipe = _recipe("checkpoint={every: 4, monitor: accuracy}", "schedule.epochs=5")
    kept = []
    for event in run_recipe(recipe, tmp_path, build.load_dataset(recipe)):
        assert event.best is not None
        is_best = event.best.step == event.progress.step
        assert (tmp_path / BEST_ARRAYS_FILE).exists() is not is_best
        kept.append(not is_best)
    assert {(True, False), (False, True)} <= set(pairwise(kept)), "it is written and removed"


def test_without_a_monitor_there_is_one_file_of_arrays(tmp_path: Path) -> None:
    events = _run(_recipe("schedule.epochs=2"), tmp_path)
    assert [path.name for path in tmp_path.glob("*.safetensors")] == [ARRAYS_FILE]
    assert read_arrays_of(RunFolder(tmp_path), None).step == events[-1].progress.step


def test_a_run_of_an_earlier_version_is_resumed(tmp_path: Path) -> None:
    recipe = _recipe("checkpoint={every: 1, monitor: accuracy}", "schedule.epochs=4")
    count = iter(range(100))
    events = _run(recipe, tmp_path, should_stop=lambda: next(count) == 5)
    assert events[-1].progress.epoch == 2
    arrays = read_arrays_of(RunFolder(tmp_path), None).arrays
    write_arrays(RunFolder(tmp_path), arrays)  # Without the step.
    (tmp_path / BEST_ARRAYS_FILE).unlink(missing_ok=True)
    last = _run(recipe, tmp_path, start="resume")[-1]
    assert last.best is not None
    found = read_arrays_of(RunFolder(tmp_path), last.best.step).step
    known = last.best.step > events[-1].progress.step
    assert found == (last.best.step if known else last.progress.step)


def test_a_resumed_run_stops_early_at_the_same_step(tmp_path: Path) -> None:
    recipe = _recipe("checkpoint={every: 2, keep: 1, monitor: accuracy, patience: 2}")
    events = _run(recipe, tmp_path / "reference")
    assert events[-1].stopped_early
    steps = events[-1].progress.step
    assert steps < 12 * 3, "stopped before its last epoch"
    for interrupted_at in range(1, steps, 4):
        count = iter(range(1, steps + 1))
        folder = tmp_path / f"run-{interrupted_at}"
        stop = lambda count=count, at=interrupted_at: next(count) == at  # noqa: E731
        assert _run(recipe, folder, should_stop=stop)[-1].progress.step == interrupted_at
        resumed = _run(recipe, folder, start="resume")
        assert resumed[-1].progress.step == steps
        assert resumed[-1].stopped_early
        assert resumed[-1].best == events[-1].best
    one, other = (
        load_checkpoint(tmp_path / name / "checkpoints") for name in ("reference", "run-1")
    )
    assert one is not None
    assert other is not None
    assert all(torch.equal(value, other.weights[key]) for key, value in one.weights.items())
    assert _run(recipe, folder, start="resume") == [], "there is nothing left to do"


def test_an_evaluation_whose_checkpoint_was_not_saved_is_not_the_best(tmp_path: Path) -> None:
    recipe = _recipe("checkpoint.monitor=accuracy", "schedule.epochs=2", "optimizer.lr=1e-12")
    _run(recipe, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    saved = load_run(folder.path).step
    # As if the process had been killed between the evaluation and the checkpoint.
    folder.log({"kind": "evaluation", "step": 999, "accuracy": 2.0})
    assert load_run(folder.path).step == saved
    assert load_run(folder.path, checkpoint="best").step == saved
    again = _run(recipe, tmp_path / "again", init_from=folder.path)
    assert len(again) == 2
    assert RunFolder(tmp_path / "again").read_json("init.json")["step"] == saved


def test_a_run_that_has_done_all_its_epochs_has_not_stopped_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_exhausted(_: CheckpointSettings, records: list[dict[str, Any]]) -> bool:
        return len([record for record in records if record["kind"] == "evaluation"]) == 2

    monkeypatch.setattr(runner, "is_patience_exhausted", is_exhausted)
    recipe = _recipe("checkpoint={monitor: accuracy, patience: 1}")
    for epochs, stopped_early in ((3, True), (2, False)):
        shorter = apply_overrides(recipe, [f"schedule.epochs={epochs}"])
        events = _run(shorter, tmp_path / str(epochs))
        assert len(events) == 2
        assert events[-1].stopped_early == stopped_early


def test_more_patience_continues_a_stopped_run(tmp_path: Path) -> None:
    recipe = _recipe("checkpoint={every: 2, keep: 1, monitor: accuracy, patience: 1}")
    first = _run(recipe, tmp_path / "run")[-1].progress.step
    patient = apply_overrides(recipe, ["checkpoint.patience=50"])
    assert _run(patient, tmp_path / "run", start="resume")[-1].progress.step == 36 > first


@pytest.mark.bad_input
def test_another_monitor_cannot_resume(tmp_path: Path) -> None:
    recipe = _recipe("checkpoint.monitor=accuracy", "schedule.epochs=2")
    _run(recipe, tmp_path / "run")
    other = apply_overrides(recipe, ["checkpoint.monitor=loss"])
    with pytest.raises(RunFolderError, match=r"checkpoint\.monitor is accuracy there and loss"):
        _run(other, tmp_path / "run", start="resume")


@pytest.mark.bad_input
def test_bad_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"monitor needs validation images.*validation_fraction"):
        apply_overrides(catalog.get_recipe("digits-ce"), ["checkpoint.monitor=accuracy"])
    folder = ["data={source: folder, path: photos, validation_folder: test}"]
    with pytest.raises(RecipeError, match="validation_folder must not be test, the folder of test"):
        apply_overrides(catalog.get_recipe("digits-ce"), folder)
    with pytest.raises(RecipeError, match="patience has no effect without monitor"):
        _recipe("checkpoint.patience=3")
    _run(_recipe("schedule.epochs=1"), tmp_path / "run")
    with pytest.raises(RunFolderError, match="its recipe monitors nothing"):
        load_run(tmp_path / "run", checkpoint="best")
