"""Kill a training run at random moments, resume it each time, compare it with an undisturbed run.

``python tests/support/kills.py --kills 20`` reports what it finds; its exit status is 1 if the two
runs differ in anything.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.arrays import ARRAYS_FILE
from protosphere.runs.checkpoints import load_checkpoint

# Epochs of the run for each kill, and the most that a process lives: all kills come before the end.
EPOCHS_PER_KILL = 2
_MAX_LIFETIME = 1.75
# Saving is quick, and a random moment would seldom hit it: every fourth kill waits for a save.
_SAVE_EVERY = 4
_POLL_SECONDS = 0.001
# Far more than a process needs to end; one that takes longer hangs.
_TIMEOUT_SECONDS = 120
_RECIPE = "digits-ntce"
_HEADER, _EPOCH, _FINISHED = f"{_RECIPE}:", "epoch ", ("Done.", "Nothing left to do")


class BrokenRunError(AssertionError):
    """A process or its run folder was not as it must be after a kill."""


@dataclass(frozen=True)
class Reference:
    """An undisturbed run.

    Attributes:
        folder: Its run folder.
        epochs: Number of epochs.
        first_epoch_seconds: Time from the start of training to the end of the first epoch.
        epoch_seconds: Mean time of each other epoch.
        overrides: Overrides of the recipe, beside those of this module.
    """

    folder: Path
    epochs: int
    first_epoch_seconds: float
    epoch_seconds: float
    overrides: tuple[str, ...] = ()

    def seconds(self, fraction: float, *, first: bool) -> float:
        """Return the time that a fraction of an epoch takes."""
        return fraction * (self.first_epoch_seconds if first else self.epoch_seconds)


@dataclass(frozen=True)
class Outcome:
    """How a process ended.

    Attributes:
        status: Exit status.
        output: Everything that it printed.
    """

    status: int
    output: str

    @property
    def is_finished(self) -> bool:
        """Whether the run had reached its end."""
        return any(line.startswith(_FINISHED) for line in self.output.splitlines())


def run_undisturbed(folder: Path, *, epochs: int, overrides: tuple[str, ...] = ()) -> Reference:
    """Run to the end and measure the time.

    Args:
        folder: Run folder to create.
        epochs: Number of epochs, at least 2.
        overrides: Overrides of the recipe, each ``dotted.path=value``.

    Returns:
        The finished run.

    Raises:
        BrokenRunError: The run did not reach its end.
    """
    times = []
    with _train(folder, epochs, overrides) as process:
        lines = []
        for line in _output_lines(process):
            lines.append(line)
            if line.startswith((_HEADER, _EPOCH)):
                times.append(time.perf_counter())
        status = process.wait(_TIMEOUT_SECONDS)
    if status != 0 or len(times) != epochs + 1:
        raise BrokenRunError(
            f"an undisturbed run must finish {epochs} epochs, got status {status} and "
            f"{len(times) - 1} epochs; output: {''.join(lines)}"
        )
    epoch_seconds = (times[-1] - times[1]) / (epochs - 1)
    return Reference(folder, epochs, times[1] - times[0], epoch_seconds, overrides)


def run_with_kills(
    folder: Path,
    reference: Reference,
    *,
    kills: int,
    seed: int,
    number: signal.Signals = signal.SIGKILL,
    report: Callable[[str], None] = typer.echo,
) -> list[str]:
    """Kill the same training several times, let it finish, and compare it with the reference.

    A moment is drawn in epochs since the process began to train: whole epochs are counted in its
    output, and the rest is a fraction of the measured time of an epoch. Kills therefore hit
    training and evaluation on a busy machine too; every fourth one also waits for a checkpoint to
    be in progress.

    A process that ends before its moment was not killed. If the run finishes before all kills are
    done, it is compared, and another run is started.

    Args:
        folder: Parent of the run folders.
        reference: Run to compare with.
        kills: Number of kills.
        seed: Seed of the moments.
        number: SIGKILL, or SIGTERM: the process must then end in order and lose no step.
        report: Called with a line about each kill.

    Returns:
        The differences between the runs.

    Raises:
        BrokenRunError: A process did not end as it must, or left a damaged folder.
    """
    moments = random.Random(seed)
    report(
        f"{kills} × {number.name} with seed {seed}; an epoch takes {reference.epoch_seconds:.2f} s"
    )
    done, differences, num_runs = 0, [], 0
    while done < kills:
        num_runs += 1
        run, last_step, is_finished = folder / f"run-{num_runs}", 0, False
        while not is_finished:
            moment = moments.uniform(0, _MAX_LIFETIME) if done < kills else None
            outcome = run_until(
                run,
                reference,
                moment=moment,
                number=number,
                while_saving=done % _SAVE_EVERY == _SAVE_EVERY - 1,
            )
            is_finished = outcome.is_finished
            if not is_finished:
                done += 1
                last_step = check_folder(run, reference, outcome, number=number, min_step=last_step)
                report(
                    f"{number.name} {done} of {kills}: after {moment:.2f} epochs "
                    f"{_describe_position(run, last_step)}"
                )
        differences += find_differences(reference.folder, run)
    return differences


def run_until(
    folder: Path,
    reference: Reference,
    *,
    moment: float | None = None,
    number: signal.Signals = signal.SIGKILL,
    while_saving: bool = False,
) -> Outcome:
    """Start or resume a run, and let it finish or send it a signal.

    Args:
        folder: Run folder.
        reference: Undisturbed run, which gives the number of epochs and their time.
        moment: When the signal is sent, in epochs since training began; None for no signal.
        number: Signal to send.
        while_saving: Whether to wait for the first checkpoint in progress after the moment.

    Returns:
        How the process ended.

    Raises:
        BrokenRunError: The process did not end as it must.
    """
    output = []
    with _train(folder, reference.epochs, reference.overrides, "--resume") as process:
        lines = _output_lines(process)
        if moment is not None:
            for line in lines:
                output.append(line)
                if sum(one.startswith((_HEADER, _EPOCH)) for one in output) > int(moment):
                    break
            with suppress(subprocess.TimeoutExpired):
                process.wait(reference.seconds(moment % 1, first=moment < 1))
            if while_saving:
                _wait_for_save(folder, process)
            process.send_signal(number)
        output.extend(lines)
        status = process.wait(_TIMEOUT_SECONDS)
    outcome = Outcome(status, "".join(output))
    # A process that was asked to stop ends with status 1, because training is not complete.
    stopped = 1 if number == signal.SIGTERM else -number
    expected = 0 if moment is None else stopped
    came_too_late = moment is not None and outcome.is_finished and status in (0, -number)
    if status != expected and not came_too_late:
        raise BrokenRunError(
            f"a process must end with status {expected}, got {status}; output: {outcome.output}"
        )
    return outcome


def check_folder(
    folder: Path, reference: Reference, outcome: Outcome, *, number: signal.Signals, min_step: int
) -> int:
    """Check a run folder after a kill.

    Args:
        folder: Run folder.
        reference: Undisturbed run.
        outcome: How the killed process ended.
        number: Signal that was sent.
        min_step: Step of the last checkpoint before the kill.

    Returns:
        The step of the last checkpoint; 0 if there is none.

    Raises:
        BrokenRunError: Records or steps are lost or differ.
    """
    run = RunFolder(folder)
    checkpoint = load_checkpoint(run.checkpoints)  # Raises if all checkpoints are damaged.
    step = 0 if checkpoint is None else checkpoint.step
    if step < min_step:
        raise BrokenRunError(f"the checkpoint of step {min_step} is lost; the last is {step}")
    if number == signal.SIGTERM and f"Stopped at step {step} with" not in outcome.output:
        raise BrokenRunError(
            f"a stopped process must name the saved step {step}; output: {outcome.output}"
        )
    lines = run.metrics.read_text(encoding="utf-8").splitlines() if run.metrics.exists() else []
    for line in lines[:-1]:
        json.loads(line)
    records, expected = _comparable_records(folder), _comparable_records(reference.folder)
    if records != expected[: len(records)]:
        raise BrokenRunError(f"the records in {folder} differ from those of the undisturbed run")
    if any(record["step"] <= step for record in map(json.loads, expected[len(records) :])):
        raise BrokenRunError(f"records in {folder} are missing for steps that are saved")
    return step


def find_differences(first: Path, second: Path) -> list[str]:
    """Compare the last checkpoints, records and arrays of two finished runs; speeds may differ."""
    checkpoints = load_checkpoint(first / "checkpoints"), load_checkpoint(second / "checkpoints")
    one, other = checkpoints
    assert one is not None
    if other is None:
        return ["there is no checkpoint"]
    differences = []
    if one.step != other.step:
        differences.append(f"step {one.step} and {other.step}")
    differences += [f"weights{path}" for path in _unequal(one.weights, other.weights)]
    differences += [f"state{path}" for path in _unequal(one.state, other.state)]
    if _comparable_records(first) != _comparable_records(second):
        differences.append("metrics.jsonl")
    if (first / ARRAYS_FILE).read_bytes() != (second / ARRAYS_FILE).read_bytes():
        differences.append(ARRAYS_FILE)
    return differences


@contextmanager
def _train(
    folder: Path, epochs: int, overrides: tuple[str, ...], *options: str
) -> Iterator["subprocess.Popen[str]"]:
    """Start a training process; it is killed when the context ends."""
    every = (f"schedule.epochs={epochs}", "evaluation.every=1", "checkpoint.every=1")
    overrides = (*overrides, *every)
    command = [sys.executable, "-m", "protosphere", "train", _RECIPE]
    command += ["--device", "cpu", "--out", str(folder)]
    command += [word for override in overrides for word in ("--set", override)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _wait_for_save(folder: Path, process: "subprocess.Popen[str]") -> None:
    """Wait until a new checkpoint is in progress or the process has ended."""
    before = set(folder.glob("checkpoints/.*.part"))
    while process.poll() is None and set(folder.glob("checkpoints/.*.part")) <= before:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_SECONDS)


def _output_lines(process: "subprocess.Popen[str]") -> Iterator[str]:
    assert process.stdout is not None
    return iter(process.stdout.readline, "")


def _comparable_records(folder: Path) -> list[str]:
    """Return the records as JSON, without the entry that depends on the clock."""
    return [
        json.dumps({key: value for key, value in record.items() if key != "images_per_second"})
        for record in RunFolder(folder).records()
    ]


def _describe_position(folder: Path, saved_step: int) -> str:
    """Describe what a process was doing when it was killed, from what its folder has."""
    steps = {record["kind"]: record["step"] for record in RunFolder(folder).records()}
    if steps.get("train", 0) <= saved_step:
        return f"in training, step {saved_step} saved"
    activity = "saving" if steps.get("evaluation") == steps["train"] else "evaluation"
    return f"in the {activity} of step {steps['train']}, step {saved_step} saved"


def _unequal(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Yield where two nested values differ; tensors are compared bit for bit."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from _unequal(one[key], other[key], f"{path}[{key!r}]")
    elif isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        is_alike = one.dtype == other.dtype and one.shape == other.shape
        if not (is_alike and one.numpy().tobytes() == other.numpy().tobytes()):
            yield path
    elif type(one) is not type(other) or one != other:
        yield path


def main() -> int:
    """Run the comparison from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="number of kills")
    parser.add_argument("--seed", type=int, default=None, help="seed of the moments")
    parser.add_argument("--signal", choices=["SIGKILL", "SIGTERM"], default="SIGKILL")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10_000) if options.seed is None else options.seed
    number = signal.Signals[options.signal]
    epochs = max(2, EPOCHS_PER_KILL * options.kills)
    with tempfile.TemporaryDirectory(prefix="protosphere-kills-") as folder:
        try:
            reference = run_undisturbed(Path(folder) / "reference", epochs=epochs)
            differences = run_with_kills(
                Path(folder), reference, kills=options.kills, seed=seed, number=number
            )
        except (BrokenRunError, RunFolderError) as error:
            typer.echo(f"broken: {error}")
            return 1
    typer.echo(f"different: {', '.join(differences)}" if differences else "identical")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
