"""Sweeps end to end on digits: resumed as if undisturbed, failures, pruning, storages."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.exceptions import StorageInternalError

from protosphere.data.datasets import DataError
from protosphere.recipes.build import load_dataset
from protosphere.recipes.loading import read_recipe
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.checkpoints import has_checkpoint
from protosphere.runs.metadata import DataMetadata
from protosphere.runs.sweeps import SweepRecord, read_sweep
from protosphere.storage import StorageError
from protosphere.studies.sweep import SweepProgress, run_sweep
from protosphere.studies.sweep_settings import SweepError
from protosphere.studies.sweep_storage import SweepStudy
from support.sweeps import digits_file, quick_recipe, sweep

# After five trials TPE has learned, and the sixth may be pruned.
OVER = ("optimizer.lr=log:0.001..0.3", "optimizer.momentum=0.5..0.95", "loss.temperature=0.1,0.3")
OPTIONS: dict[str, Any] = {"trials": 6, "seed": 3, "prune": True}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> SweepRecord:
    return sweep(tmp_path_factory.mktemp("undisturbed") / "sweep", *OVER, **OPTIONS)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _run_with_interrupts(out: Path, create_report: Callable[[], Any]) -> tuple[SweepRecord, int]:
    """Run the sweep to its end, continuing it after each interrupt; return how many there were."""
    for count in range(100):
        report = create_report()
        try:
            # A journal is quick; the killed process in the tests of the command has SQLite.
            storage = f"journal:{out}.log"
            return sweep(out, *OVER, **OPTIONS, storage=storage, report=report), count
        except KeyboardInterrupt:
            continue
    raise AssertionError("the sweep does not end")


def test_trials_are_chosen_trained_and_recorded(undisturbed: SweepRecord) -> None:
    assert [trial.number for trial in undisturbed.trials] == list(range(6))
    states = [trial.state for trial in undisturbed.trials]
    assert states[:5] == ["complete"] * 5
    assert set(states[5:]) <= {"complete", "pruned"}
    for trial in undisturbed.trials:
        assert set(trial.settings) == {text.partition("=")[0] for text in OVER}
        assert 0.001 <= trial.settings["optimizer.lr"] <= 0.3
        assert 0.5 <= trial.settings["optimizer.momentum"] <= 0.95
        assert trial.settings["loss.temperature"] in (0.1, 0.3)
        assert [epoch for epoch, _ in trial.evaluations] == [1, 2][: len(trial.evaluations)]
        if trial.state == "complete":
            assert trial.value == trial.evaluations[-1][1]
            assert trial.metrics is not None
            assert trial.metrics["accuracy"] == trial.value
    assert len({trial.settings["optimizer.lr"] for trial in undisturbed.trials}) == 6
    best = undisturbed.best
    assert best is not None
    assert best.value == max(trial.value or 0 for trial in undisturbed.trials)


@pytest.mark.long
def test_a_sweep_that_is_interrupted_often_gives_the_same_trials(
    undisturbed: SweepRecord, tmp_path: Path
) -> None:
    """Each process ends at its third report, which comes at all stages of a trial."""

    def create_report() -> Callable[[SweepProgress], None]:
        seen: list[SweepProgress] = []

        def report(progress: SweepProgress) -> None:
            seen.append(progress)
            if len(seen) == 3:
                raise KeyboardInterrupt

        return report

    record, count = _run_with_interrupts(tmp_path / "sweep", create_report)
    assert count >= 6
    assert record == undisturbed
    assert read_sweep(tmp_path / "sweep") == undisturbed


@pytest.mark.long
def test_an_interrupt_at_any_call_of_the_storage_changes_nothing(
    undisturbed: SweepRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupt before and after the first calls of each method that changes the study."""
    pending = {
        (name, when): number
        for number, (name, when) in enumerate(
            (name, when)
            for name in ("create_trial", "choose", "report", "finish")
            for when in ("before", "after")
        )
    }

    def wrap(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        calls = 0

        def called(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls % 3 == 0 and pending.pop((name, "before"), None) is not None:
                raise KeyboardInterrupt
            result = original(*arguments, **options)
            if calls % 3 == 1 and pending.pop((name, "after"), None) is not None:
                raise KeyboardInterrupt
            return result

        return called

    for name in ("create_trial", "choose", "report", "finish"):
        monkeypatch.setattr(SweepStudy, name, wrap(name, getattr(SweepStudy, name)))
    # The first trial is interrupted with one of three settings chosen.
    original = SweepStudy.choose

    def choose_some(self: SweepStudy, trial: Any) -> Any:
        if not trial.params:
            trial.suggest_float("optimizer.lr", 0.001, 0.3, log=True)
            raise KeyboardInterrupt
        return original(self, trial)

    monkeypatch.setattr(SweepStudy, "choose", choose_some)
    record, count = _run_with_interrupts(tmp_path / "sweep", lambda: lambda _: None)
    assert not pending
    assert count == 8 + 6
    assert record == undisturbed


def test_a_request_to_stop_saves_and_the_same_call_continues(
    undisturbed: SweepRecord, tmp_path: Path
) -> None:
    steps = iter(range(1000))  # The second of four steps of the second trial, and from then on.
    record = sweep(tmp_path / "sweep", *OVER, **OPTIONS, should_stop=lambda: next(steps) >= 7)
    assert [trial.state for trial in record.trials] == ["complete", "running"]
    assert has_checkpoint(tmp_path / "sweep/trials/0001/checkpoints")
    assert sweep(tmp_path / "sweep", *OVER, **OPTIONS) == undisturbed


def test_test_images_change_nothing(undisturbed: SweepRecord, tmp_path: Path) -> None:
    recipe = quick_recipe(poisoned=True)
    record = sweep(tmp_path / "sweep", *OVER, recipe=recipe, **OPTIONS | {"trials": 2})
    assert record.trials == undisturbed.trials[:2]
    data = DataMetadata.read(RunFolder(tmp_path / "sweep/trials/0000"))
    assert (data.split, data.num_train, data.num_eval) == ("validation", 180, 20)
    assert record.num_validation == 20


def test_a_grid_runs_all_combinations_and_a_failed_trial_does_not_end_it(tmp_path: Path) -> None:
    over = ("optimizer.lr=0.1,1.0e+30", "optimizer.momentum=0.8,0.9")
    record = sweep(tmp_path / "sweep", *over, recipe=quick_recipe(epochs=1))
    assert record.sampler == "grid"
    assert [tuple(trial.settings.values()) for trial in record.trials] == [
        (0.1, 0.8),
        (0.1, 0.9),
        (1e30, 0.8),
        (1e30, 0.9),
    ]
    assert [trial.state for trial in record.trials] == ["complete", "complete", "failed", "failed"]
    for trial in record.trials[2:]:
        assert trial.error is not None
        assert "finite" in trial.error
        assert trial.value is None
    # Nothing is left to do, and nothing is done again.
    assert sweep(tmp_path / "sweep", *over, recipe=quick_recipe(epochs=1)) == record
    # Weights are kept of the best trial only.
    best = record.best
    assert best is not None
    kept = [path.parent.name for path in tmp_path.glob("sweep/trials/*/checkpoints")]
    assert kept == [f"{best.number:04d}"]
    final = read_recipe(str(tmp_path / "sweep/best.yaml"))
    assert final.optimizer.momentum == best.settings["optimizer.momentum"]  # type: ignore[union-attr]
    assert final.split == "test"


def test_errors_of_any_kind_are_those_of_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA out of memory\nmore lines")

    monkeypatch.setattr("protosphere.studies.sweep.run_recipe", fail)
    record = sweep(tmp_path / "sweep", "optimizer.lr=0.1,0.2")
    assert [trial.error for trial in record.trials] == ["RuntimeError: CUDA out of memory"] * 2
    assert record.best is None
    assert not (tmp_path / "sweep/best.yaml").exists()


def test_a_trial_below_the_median_is_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the process is killed when the evaluation is saved, before it is judged."""
    original = SweepStudy.report

    def report_and_stop(self: SweepStudy, trial: Any, epoch: int, value: float) -> None:
        original(self, trial, epoch, value)
        if trial.number == 5:
            raise KeyboardInterrupt

    over = ("optimizer.lr=0.1,0.11,0.12,0.13,0.14,0.000001",)
    options: dict[str, Any] = {"recipe": quick_recipe("training.batch_size=30"), "prune": True}
    monkeypatch.setattr(SweepStudy, "report", report_and_stop)
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path / "pruned", *over, **options)
    monkeypatch.undo()
    assert has_checkpoint(tmp_path / "pruned/trials/0005/checkpoints")
    record = sweep(tmp_path / "pruned", *over, **options)
    worst = record.trials[5]
    assert (worst.state, worst.value, len(worst.evaluations)) == ("pruned", None, 1)
    assert [trial.state for trial in record.trials].count("pruned") == 1
    whole = sweep(tmp_path / "whole", *over, recipe=options["recipe"])
    assert {trial.state for trial in whole.trials} == {"complete"}
    assert whole.trials[5].evaluations[:1] == worst.evaluations


def test_two_folders_share_the_trials_of_one_storage(
    tmp_path: Path, undisturbed: SweepRecord
) -> None:
    options = {**OPTIONS, "storage": f"journal:{tmp_path / 'shared.log'}"}
    first = sweep(tmp_path / "a", *OVER, **options | {"trials": 1})
    assert len(first.trials) == 1
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path / "a", *OVER, **options, report=_interrupt)
    # The trial that was interrupted belongs to the other folder, whose process may still run.
    second = sweep(tmp_path / "b", *OVER, **options | {"trials": 3})
    assert [trial.state for trial in second.trials] == ["complete", "running", "complete"]
    assert sorted(path.name for path in (tmp_path / "b/trials").glob("0*")) == ["0002"]
    third = sweep(tmp_path / "a", *OVER, **options | {"trials": 3})
    assert third.trials[:2] == undisturbed.trials[:2]


def test_processes_that_share_a_folder_run_each_trial_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads stand for processes: locks are of files that each of them has opened itself."""
    ran: list[str] = []

    def train(recipe: Any, run: RunFolder, *_: object, **__: object) -> list[Any]:
        ran.append(run.path.name)
        run.path.mkdir()
        run.log({"kind": "evaluation", "step": 1, "epoch": 2, "accuracy": recipe.optimizer.lr})
        return []

    monkeypatch.setattr("protosphere.studies.sweep.run_recipe", train)
    over = "optimizer.lr=0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8"
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(sweep, tmp_path / "sweep", over) for _ in range(3)]
        for future in futures:
            future.result()
    assert sorted(ran) == [f"{number:04d}" for number in range(8)]
    record = read_sweep(tmp_path / "sweep")
    assert [trial.value for trial in record.trials] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    assert record.best == record.trials[7]


def test_a_storage_that_fails_ends_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageInternalError("An exception is raised") from OSError("database is locked")

    monkeypatch.setattr(SweepStudy, "report", fail)
    with pytest.raises(StorageError, match=r"cannot use sqlite.*sweep.db: database is locked"):
        sweep(tmp_path / "sweep", "optimizer.lr=0.1,0.2")
    monkeypatch.undo()
    record = sweep(tmp_path / "sweep", "optimizer.lr=0.1,0.2")
    assert [trial.state for trial in record.trials] == ["complete", "complete"]


def test_a_metric_that_is_monitored_is_the_best_of_the_run(tmp_path: Path) -> None:
    recipe = quick_recipe("data.validation_fraction=0.2", "checkpoint.monitor=loss", epochs=3)
    record = sweep(tmp_path / "sweep", "optimizer.lr=0.05,0.5", recipe=recipe)
    assert (record.metric, record.direction) == ("loss", "minimize")
    for trial in record.trials:
        assert trial.value == min(value for _, value in trial.evaluations)
    best = record.best
    assert best is not None
    assert best.value == min(trial.value or 0 for trial in record.trials)


@pytest.mark.bad_input
def test_the_storage_of_another_sweep_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    over = ["optimizer.lr=0.1,0.2"]
    recipe = quick_recipe()
    with pytest.raises(KeyboardInterrupt):
        run_sweep(recipe, over, out, report=_interrupt)
    for changes, message in (
        ({"recipe": quick_recipe("optimizer.momentum=0.5")}, "optimizer.momentum is 0.9 there and"),
        ({"over": ["optimizer.lr=0.1,0.3"]}, "--over optimizer.lr is 0.1,0.2 there and 0.1,0.3"),
        ({"over": [*over, "seed=1,2"]}, "--over seed is None there and 1,2 here"),
        ({"metric": "loss"}, "--metric is accuracy there and loss here"),
        ({"seed": 1}, "--seed is 0 there and 1 here"),
        ({"prune": True}, "--prune is False there and True here"),
        ({"metric": "loss", "seed": 1}, "--metric is accuracy there and loss here"),
    ):
        arguments: dict[str, Any] = {"recipe": recipe, "over": over, "out": out, **changes}
        with pytest.raises(SweepError, match=f"sweep holds another sweep: .*{message}"):
            run_sweep(**arguments)


def test_a_folder_without_trials_takes_another_sweep_until_one_has_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "sweep"
    with pytest.raises(DataError, match=r"none\.npz"):
        sweep(out, "optimizer.lr=1,2", recipe=quick_recipe("data.path=none.npz"))

    def load_after_another_sweep(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        with pytest.raises(KeyboardInterrupt):
            sweep(out, "optimizer.lr=0.1,0.2", report=_interrupt)
        return load_dataset(*arguments, **options)

    monkeypatch.setattr("protosphere.studies.sweep.load_dataset", load_after_another_sweep)
    with pytest.raises(SweepError, match=r"--over optimizer.lr is 0.1,0.2 there and 0.1,0.3 here"):
        sweep(out, "optimizer.lr=0.1,0.3")


@pytest.mark.bad_input
def test_other_images_and_a_damaged_trial_end_the_sweep(tmp_path: Path) -> None:
    """They are no fault of the settings: nothing is recorded as failed."""
    over, out = "optimizer.lr=0.1,0.2", tmp_path / "sweep"
    steps = iter(range(1000))
    sweep(out, over, should_stop=lambda: next(steps) >= 2)
    with np.load(digits_file()) as digits:
        changed = dict(digits)
    changed["x_train"][0] = 0
    np.savez(tmp_path / "changed.npz", **changed)
    with pytest.raises(SweepError, match="training images must be those that the sweep was"):
        sweep(out, over, recipe=quick_recipe(f"data.path={tmp_path / 'changed.npz'}"))
    with pytest.raises(DataError, match=r"none\.npz"):
        sweep(out, over, recipe=quick_recipe(f"data.path={tmp_path / 'none.npz'}"))
    (state,) = out.glob("trials/0000/checkpoints/*/state.pt")
    state.write_bytes(b"damaged")
    with pytest.raises(RunFolderError, match="damaged"):
        sweep(out, over)
    assert [trial.state for trial in read_sweep(out).trials] == ["running"]
    shutil.rmtree(out / "trials/0000")
    assert [trial.state for trial in sweep(out, over).trials] == ["complete"] * 2


@pytest.mark.bad_input
def test_folders_and_storages_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("mine")
    over = "optimizer.lr=0.1,0.2"
    with pytest.raises(SweepError, match=r"must be empty or the folder of a sweep, .* notes.txt"):
        sweep(tmp_path / "other", over)
    with pytest.raises(SweepError, match="--out must be a folder"):
        sweep(tmp_path / "other/notes.txt", over)
    (tmp_path / "no.db").write_text("not a database, but long enough to look like one " * 20)
    for storage in ("nonsense", f"sqlite:///{tmp_path / 'no.db'}", "nosuch://me:secret@host/x"):
        with pytest.raises(SweepError, match="--storage must be a storage that Optuna") as caught:
            sweep(tmp_path / "sweep", over, storage=storage)
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)
    (tmp_path / "stale/trials").mkdir(parents=True)
    (tmp_path / "stale/.sweep").write_text("id")
    (tmp_path / "stale/trials/0000").mkdir()
    with pytest.raises(SweepError, match="trials/0000 exists, but the storage does not know it"):
        sweep(tmp_path / "stale", over)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("over", "options", "message"),
    [
        ("optimizer.lr=0.1..0.2", {}, "--trials must be given, because optimizer.lr is a range"),
        ("optimizer.lr=0.1..0.2", {"sampler": "grid"}, "but optimizer.lr is a range"),
        ("optimizer.lr=0.1,0.2", {"sampler": "grid", "trials": 1}, "runs all 2 combinations"),
        ("optimizer.lr=0.1,0.2", {"trials": 3}, "must be at most 2, the number of combinations"),
        ("optimizer.lr=0.1,0.2", {"trials": 0}, "--trials must be at least 1, got 0"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    tmp_path: Path, over: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SweepError, match=message):
        sweep(tmp_path / "sweep", over, **options)
    assert not (tmp_path / "sweep").exists()
