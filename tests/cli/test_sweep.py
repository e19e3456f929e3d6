"""``protosphere sweep``: table, JSON, files, a killed process, and input that is refused."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from protosphere.cli import signals
from protosphere.cli.sweep_text import print_trials
from protosphere.recipes.loading import read_recipe
from protosphere.runs.sweeps import read_sweep
from support.commands import invoke, refusal, run_command
from support.sweeps import quick_overrides, sweep, train_nothing

OVER = ["--over", "optimizer.lr=log:0.01..0.3", "loss.temperature=0.1..0.3", "--trials", "3"]


def _arguments(out: Path, *arguments: str, epochs: int = 2) -> list[str]:
    words = ["sweep", "digits-ntce", "--out", str(out), "--device", "cpu", *arguments]
    for override in quick_overrides(epochs=epochs):
        words += ["--set", override]
    return words


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    out = tmp_path_factory.mktemp("sweep") / "sweep"
    plot = out.parent / "sweep.svg"
    result = invoke(*_arguments(out, *OVER, "--plot", str(plot)), columns=120)
    assert result.exit_code == 0, result.output
    return out, result


def test_the_table_has_all_trials_the_best_first(finished: tuple[Path, Any]) -> None:
    out, result = finished
    record = read_sweep(out)
    lines = result.stdout.splitlines()
    assert lines[0] == "digits-ntce: validation accuracy, 3 of 3 trials complete"
    assert lines[1].split() == ["trial", "optimizer.lr", "loss.temperature", "accuracy"]
    assert record.best is not None
    assert lines[2].split()[0] == f"{record.best.number:04d}"
    assert lines[2].split()[-1] == "best"
    assert f"{100 * (record.best.value or 0):.2f}%" in lines[2]
    assert sorted(line.split()[0] for line in lines[2:5]) == ["0000", "0001", "0002"]
    assert f"Next: protosphere train {out / 'best.yaml'} --out RUN" in lines[-1]
    assert f"protosphere report {out / 'trials'} for the curves" in lines[-1]
    assert result.stderr.count("trial 000") == 3
    assert "the best so far" in result.stderr


def test_the_files_of_a_sweep(finished: tuple[Path, Any]) -> None:
    out, _ = finished
    best = read_sweep(out).best
    assert best is not None
    recipe = read_recipe(str(out / "best.yaml"))
    assert recipe.optimizer.lr == best.settings["optimizer.lr"]
    assert recipe.data.validation_fraction == 0
    page = (out / "sweep.html").read_text(encoding="utf-8")
    assert "trial 0002: optimizer.lr=" in page
    assert 'src="http' not in page
    assert "<svg" in (out.parent / "sweep.svg").read_text(encoding="utf-8")


def test_the_table_says_when_a_trial_was_pruned(
    finished: tuple[Path, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    record = read_sweep(finished[0])
    pruned = replace(record.trials[0], state="pruned", value=None, evaluations=((2, 0.775),))
    print_trials(replace(record, trials=(pruned,)))
    assert capsys.readouterr().out.rstrip().endswith("–  pruned after epoch 2 at 77.50%")


def test_a_second_call_prints_what_is_there(finished: tuple[Path, Any]) -> None:
    out, _ = finished
    printed = json.loads(run_command(*_arguments(out, *OVER, "--json")))
    assert printed == json.loads((out / "sweep.json").read_text(encoding="utf-8"))
    assert printed["best"] == read_sweep(out).best.number


@pytest.mark.long
@pytest.mark.whole_program
def test_a_killed_sweep_continues_with_the_same_trials(
    finished: tuple[Path, Any], tmp_path: Path
) -> None:
    out = tmp_path / "sweep"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "protosphere", *_arguments(out, *OVER)],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert first.startswith("trial 0000 (1 of 3)")
    run_command(*_arguments(out, *OVER))
    assert read_sweep(out) == read_sweep(finished[0])


def test_a_sweep_that_is_stopped_says_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def stop_in_the_first_trial(**_: Any) -> Iterator[Callable[[], bool]]:
        asked = count()
        yield lambda: next(asked) > 1

    monkeypatch.setattr(signals, "catch_signals", stop_in_the_first_trial)
    out = tmp_path / "sweep"
    plot = tmp_path / "sweep.svg"
    result = invoke(*_arguments(out, *OVER, "--plot", str(plot)), columns=120)
    assert result.exit_code == 1
    assert f"Did not draw the phase diagram to {plot}" in result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "digits-ntce: validation accuracy, 0 of 3 trials complete"
    assert lines[2].endswith("not finished")
    left = "Not complete: 3 of 3 trials are left; the same command continues"
    assert result.stderr.splitlines()[-1] == left


def test_the_same_command_continues_a_sweep_that_is_to_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protosphere.studies.sweep.run_recipe", train_nothing)

    @contextmanager
    def stop_after_the_first_trial(**_: Any) -> Iterator[Callable[[], bool]]:
        yield (tmp_path / "sweep/trials/0000").exists

    plot = tmp_path / "sweep.svg"
    command = _arguments(tmp_path / "sweep", *OVER, "--plot", str(plot))
    with monkeypatch.context() as patch:
        patch.setattr(signals, "catch_signals", stop_after_the_first_trial)
        result = invoke(*command)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-2:] == [
        f"Did not draw the phase diagram to {plot}: it is drawn once no trial is left",
        "Not complete: 2 of 3 trials are left; the same command continues",
    ]
    assert not plot.exists()
    result = invoke(*command)
    assert result.exit_code == 0, result.output
    assert f"Drew the phase diagram to {plot}" in result.stderr
    assert plot.exists()


def test_fewer_trials_than_there_are_do_not_hide_that_none_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "sweep"
    over = ["--over", "optimizer.lr=0.1,0.2,0.3", "--sampler", "random", "--trials"]

    def fail(*_: object, **__: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr("protosphere.studies.sweep.run_recipe", fail)
    assert invoke(*_arguments(out, *over, "2")).exit_code == 1
    result = invoke(*_arguments(out, *over, "1"))
    assert result.exit_code == 1
    assert result.stdout.startswith("digits-ntce: validation accuracy, 0 of 2 trials complete")
    assert result.stderr.splitlines()[-1].startswith("Error: no trial of")
    monkeypatch.setattr("protosphere.studies.sweep.run_recipe", train_nothing)
    assert invoke(*_arguments(out, *over, "3")).exit_code == 0
    result = invoke(*_arguments(out, *over, "1"))
    assert result.exit_code == 0
    assert result.stdout.startswith("digits-ntce: validation accuracy, 1 of 3 trials complete")


def _shared(tmp_path: Path, out: str, trials: int) -> list[str]:
    rates = "optimizer.lr=0.1,0.2,0.3,0.4"
    over = ["--over", rates, "--sampler", "random", "--trials", str(trials)]
    return _arguments(tmp_path / out, *over, "--storage", f"journal:{tmp_path / 'shared.log'}")


def test_a_trial_of_another_folder_is_left_to_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("protosphere.studies.sweep.run_recipe", stop)
    storage, over = f"journal:{tmp_path / 'shared.log'}", "optimizer.lr=0.1,0.2,0.3,0.4"
    recipe = read_recipe("digits-ntce", quick_overrides())
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path / "a", over, recipe=recipe, storage=storage, sampler="random", trials=3)
    monkeypatch.setattr("protosphere.studies.sweep.run_recipe", train_nothing)
    result = invoke(*_shared(tmp_path, "b", 3))
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        "Not complete: 1 of 3 trials is left; another folder has it, and only the command with "
        "that --out continues it"
    )
    monkeypatch.setattr("protosphere.studies.sweep.run_recipe", stop)
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path / "c", over, recipe=recipe, storage=storage, sampler="random", trials=4)
    result = invoke(*_shared(tmp_path, "b", 3))
    assert result.stderr.splitlines()[-1] == (
        "Not complete: 2 of 4 trials are left; other folders have them, and only the commands with "
        "their --out continue them"
    )


def test_a_folder_without_runs_is_not_suggested_for_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protosphere.studies.sweep.run_recipe", train_nothing)
    assert f"report {tmp_path / 'a/trials'} for" in run_command(*_shared(tmp_path, "a", 2))
    printed = run_command(*_shared(tmp_path, "b", 2))
    assert f"Next: protosphere train {tmp_path / 'b/best.yaml'} --out RUN" in printed
    assert "protosphere report" not in printed


def test_a_sweep_without_a_complete_trial_is_an_error(tmp_path: Path) -> None:
    arguments = _arguments(tmp_path / "sweep", "--over", "optimizer.lr=1e30,1e31", epochs=1)
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert "failed: the loss must be finite" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: no trial of")
    assert not (tmp_path / "sweep/sweep.html").exists()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "a sweep must vary at least one key: --over optimizer.lr=log:0.05..0.5"),
        (["--over", "optimizer.lrr=1,2"], "a recipe has no optimizer.lrr; did you mean lr?"),
        (["--over", "optimizer.lr=0.5..0.1"], "must be below the upper, got 0.5..0.1"),
        (["--over", "optimizer.lr=log:0..0.1"], "must be above 0, got 0 for optimizer.lr"),
        (["--over", "optimizer.lr=0.1..0.2"], "--trials must be given, because optimizer.lr is a"),
        (["--over", "optimizer.lr=0.1,0.2", "--sampler", "tpe"], "because --sampler is tpe"),
        (["optimizer.lr=0.1,0.2", "--set", "optimizer.lr=1"], "--set or to --over, not to both"),
        (
            ["--over", "optimizer={name: sgd},{name: adamw}", "--set", "optimizer.lr=0.3"],
            "optimizer.lr is part of optimizer, which is varied: it must not be given to --set",
        ),
        (
            ["optimizer.lr=0.1,0.2", "--set", "optimizer={name: sgd, lr: 0.3}"],
            "optimizer.lr must be given to --set or to --over, not to both",
        ),
        (["optimizer.lr=0.1,0.2", "--set", "optimizer. lr=1"], "--set or to --over, not to both"),
        (["--over", "optimizer.lr=0.1,0.2", "--storage", "x"], "--storage must be a storage"),
        (["--over", "optimizer.lr=0.1,0.2", "--plot", "x.gif"], "--plot must be a file that ends"),
        (["--over", "optimizer.lr=0.1,0.2", "--set", "data.path=none.npz"], "none.npz"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    assert message in refusal(*_arguments(tmp_path / "sweep"), *arguments)


def test_a_part_of_a_section_that_is_set_may_be_varied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protosphere.studies.sweep.run_recipe", train_nothing)
    run_command(
        *_arguments(tmp_path / "sweep", "--over", "schedule.gamma=0.1,0.2"),
        "--set",
        "schedule={name: multistep, milestones: [1], epochs: 2}",
    )


@pytest.mark.bad_input
def test_the_folder_of_another_sweep_is_refused(finished: tuple[Path, Any]) -> None:
    out, _ = finished
    message = refusal(*_arguments(out, "--over", "optimizer.lr=0.1,0.2"))
    assert message == (
        f"{out} holds another sweep: --over optimizer.lr is log:0.01..0.3 there and 0.1,0.2 here"
    )


@pytest.mark.bad_input
def test_torchrun_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    message = refusal(*_arguments(tmp_path / "sweep", "--over", "optimizer.lr=0.1,0.2"))
    assert message.startswith("a trial of a sweep trains on one device: start one process per GPU")


@pytest.mark.bad_input
def test_optuna_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    message = refusal(*_arguments(tmp_path / "sweep", "--over", "optimizer.lr=0.1,0.2"))
    assert message == 'sweeps need Optuna: pip install "protosphere[sweep]"'
