"""Training on several processes gives the weights of one; under torchrun it survives a kill."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from protosphere.data.sampling import batch_slices
from protosphere.recipes.build import load_dataset
from protosphere.recipes.loading import read_recipe
from protosphere.recipes.runner import run_recipe
from protosphere.runs import RunFolder
from protosphere.runs.checkpoints import load_checkpoint
from support.elastic import run_elastic
from support.group_training import (
    BATCH_SIZE,
    LOSSES,
    Result,
    broadcast_other_shapes,
    decide,
    error_of,
    run_digits,
    run_digits_without_disk,
    train_five_steps,
    train_with_overflow,
    use_group_of_others,
)
from support.processes import Processes, gloo_processes

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with gloo_processes() as running:
        yield running


@pytest.mark.parametrize("loss", LOSSES)
def test_weights_after_five_steps_are_those_of_one_process(processes: Processes, loss: str) -> None:
    """With uneven parts, 20 samples on 3 processes are 7, 7 and 6, and in one piece or two."""
    expected = train_five_steps(None, loss, None)
    for size, micro_batch_size in ((1, None), (2, 10), (3, None), (3, 4), (4, None)):
        results = processes.run(train_five_steps, [(loss, micro_batch_size)] * size)
        _assert_same(expected, results)


def _assert_same(expected: Result, results: list[Result]) -> None:
    for weights, losses, _ in results:
        assert losses == pytest.approx(expected[1][-len(losses) :], rel=1e-6)
        torch.testing.assert_close(weights, expected[0], rtol=1e-10, atol=1e-10)


def test_a_checkpoint_of_four_processes_continues_on_one_and_two(processes: Processes) -> None:
    expected = train_five_steps(None, "nonl", None)
    stopped = processes.run(train_five_steps, [("nonl", None, BATCH_SIZE, None, 2)] * 4)
    assert [checkpoint.step for *_, checkpoint in stopped] == [2, 2, 2, 2]
    resume = stopped[0][-1]
    results = processes.run(train_five_steps, [("nonl", None, BATCH_SIZE, resume)] * 2)
    results.append(train_five_steps(None, "nonl", None, resume=resume))
    assert [len(losses) for _, losses, _ in results] == [3, 3, 3]
    _assert_same(expected, results)


def test_an_overflow_is_one_on_all_processes_and_random_numbers_are_their_own(
    processes: Processes,
) -> None:
    expected, scale, expected_draws = train_with_overflow(None)
    assert scale == 2.0**15
    results = processes.run(train_with_overflow, [()] * 3)
    for weights, own_scale, _ in results:
        torch.testing.assert_close(weights, expected, rtol=1e-10, atol=1e-10)
        assert own_scale == scale
    draws = [draws for *_, draws in results]
    assert draws[0] == expected_draws
    assert len({number for numbers in draws for number in numbers}) == 9


def test_a_batch_has_a_sample_for_each_process(processes: Processes) -> None:
    with pytest.raises(RuntimeError, match="a sample for each of the 3 processes, got 2"):
        processes.run(train_five_steps, [("ce", None, 2)] * 3)


@pytest.mark.parametrize(("failing", "expected"), [([], [None] * 3), ([1, 2], None)])
def test_processes_fail_together(
    processes: Processes, failing: list[int], expected: list[None] | None
) -> None:
    results = processes.run(decide, [(failing,)] * 3)
    if expected is None:
        peer = "PeerError: process 1 of the run has failed"
        assert [error for error, *_ in results] == [peer, "ValueError: own error of 1", peer]
    else:
        assert [error for error, *_ in results] == expected
    assert all(rest == [{"rank": 0}, bool(failing), [0, 10, 20]] for _, *rest in results)


def test_modules_of_other_shapes_are_refused_everywhere(processes: Processes) -> None:
    expected = (
        "ValueError: the modules of all processes must have the same shapes, but that of process "
        "2 has others than that of process 0"
    )
    errors = processes.run(error_of, [(broadcast_other_shapes,)] * 3)
    assert errors == [expected] * 3


def test_a_group_without_this_process_is_refused(processes: Processes) -> None:
    member, *others = processes.run(error_of, [(use_group_of_others,)] * 4)
    assert member is None
    for error in others:
        assert error.startswith("ValueError: group must be None or a process group")


def test_all_processes_end_when_the_first_one_cannot_use_the_folder(
    processes: Processes, tmp_path: Path
) -> None:
    settings = ["schedule.epochs=1", "training.batch_size=1024"]
    in_use, full = tmp_path / "in use", tmp_path / "full"
    with RunFolder(in_use).lock():
        first, *others = processes.run(error_of, [(run_digits, str(in_use), settings)] * 3)
    assert first == f"RunFolderInUseError: {in_use} is in use by process {os.getpid()}"
    peer = "PeerError: the first process of the run has failed"
    assert others == [peer, peer]
    first, *others = processes.run(error_of, [(run_digits_without_disk, str(full), settings)] * 3)
    assert first == "OSError: no space left on device"
    assert others == [peer, peer]


def test_a_recipe_needs_a_sample_for_each_process(processes: Processes, tmp_path: Path) -> None:
    settings = ["schedule.epochs=1", "training.batch_size=2"]
    first, *others = processes.run(error_of, [(run_digits, str(tmp_path / "run"), settings)] * 3)
    message = "training.batch_size must be at least the number of processes (3), got 2"
    assert first == f"RecipeError: {message}"
    assert others == ["PeerError: process 0 of the run has failed"] * 2


def test_training_that_fails_is_reported_once(processes: Processes, tmp_path: Path) -> None:
    settings = ["schedule.epochs=1", "training.batch_size=512", "optimizer.lr=1e30"]
    first, *others = processes.run(error_of, [(run_digits, str(tmp_path / "run"), settings)] * 3)
    assert first.startswith("TrainingError: ")
    assert first.endswith("; there is no checkpoint")
    assert others == ["PeerError: training has failed"] * 2


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_the_parts_of_a_batch_are_the_batch_in_its_order(count: int) -> None:
    samples = torch.arange(50)
    parts = [batch_slices(50, BATCH_SIZE, first=1, shard=(i, count)) for i in range(count)]
    (together,) = zip(*parts, strict=True)
    joined = torch.cat([samples[part] for part in together])
    assert joined.tolist() == list(range(20, 40))
    sizes = [len(part) for part in samples[:20].tensor_split(count)]
    assert [part.stop - part.start for part in together] == sizes


SETTINGS = ["schedule.epochs=4", "evaluation.every=4", "checkpoint.every=1"]


def _arguments(folder: Path, settings: list[str]) -> list[str]:
    arguments = ["train", "digits-nonl", "--out", str(folder), "--resume", "--device", "cpu"]
    return arguments + [part for setting in settings for part in ("--set", setting)]


def test_a_killed_worker_changes_nothing_and_fewer_processes_can_continue(
    processes: Processes, tmp_path: Path
) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    steps, *_ = processes.run(run_digits, [(str(undisturbed), SETTINGS)] * 4)
    assert len(steps) == 4
    options = ["--standalone", "--nproc-per-node=4", "--max-restarts=1"]
    log = tmp_path / "log"
    status = run_elastic(options, _arguments(killed, SETTINGS), log, killed=3)
    output = log.read_text()
    assert status == 0, output
    assert "Resumed from step" in output
    # Once before the kill and once after it, both times by the first process alone.
    assert output.count("on 4 processes (cpu)") == 2
    assert output.count("Done.") == 1
    first, second = (load_checkpoint(folder / "checkpoints") for folder in (undisturbed, killed))
    assert first is not None
    assert second is not None
    assert first.step == second.step == steps[-1]
    for name, value in first.weights.items():
        assert torch.equal(value, second.weights[name]), name
    for folder in (undisturbed, killed):
        records = RunFolder(folder).records()
        assert [r["epoch"] for r in records if r["kind"] == "train"] == [1, 2, 3, 4]
        assert [r["epoch"] for r in records if r["kind"] == "evaluation"] == [4]
        shutil.rmtree(max((folder / "checkpoints").iterdir()))
    resumed = processes.run(run_digits, [(str(undisturbed), SETTINGS, "resume")] * 2)
    assert resumed == [steps[-1:]] * 2
    recipe = read_recipe("digits-nonl", SETTINGS)
    (event,) = run_recipe(recipe, killed, load_dataset(recipe), start="resume")
    assert event.resumed_at == steps[-2]
    assert event.progress.step == steps[-1]
    assert event.metrics is not None
    assert event.metrics["accuracy"] > 0.85


def test_processes_that_are_asked_to_stop_are_not_started_again(tmp_path: Path) -> None:
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    log, arguments = tmp_path / "log", _arguments(tmp_path / "run", SETTINGS)
    status = run_elastic(options, arguments, log, killed=1, number=signal.SIGTERM)
    output = log.read_text()
    assert status == 0, output
    assert output.count("on 2 processes (cpu)") == 1
    assert output.count("Stopped at step") == 1
    assert "Done." not in output


@pytest.mark.whole_program
def test_torchrun_says_once_that_a_folder_is_in_use(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, "-m", *launcher, "-m", "protosphere", *_arguments(folder, SETTINGS)]
    with RunFolder(folder).lock():
        result = subprocess.run(
            command,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert result.returncode == 1
    message = f"Error: {folder} is in use by process {os.getpid()}\n"
    assert (result.stdout + result.stderr).count(message) == 1
    # Nothing but the launcher itself has a traceback: it reports that a process has failed.
    assert result.stderr.count("Traceback") == result.stderr.count("ChildFailedError(") == 1
