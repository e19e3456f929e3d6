"""Kill a training at random moments, resume it each time, and compare what it leaves with an undisturbed run.

``python tests/support/kills.py --kills 20`` does so and says what it sees; its status is 1 if anything differs.
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

from protosphere.recipes.runner import GEOMETRY
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.checkpoints import load_checkpoint

Say = Callable[[str], None]
# Epochs of training for each kill, and how many of them a process lives at most: so all kills land before the end.
EPOCHS_A_KILL = 2
_LIFE = 1.75
# Saving is quick, and chance would seldom hit it: each kill of this number waits for the next one to begin.
_AIMED = 4
_GLANCE = 0.001
# Far beyond what the end of a process takes; whatever takes longer hangs.
_HANGS = 120
_BEGUN, _EPOCH, _ENDED = "digits-ntce:", "epoch ", ("done;", "there is nothing left to do")


class BrokenRunError(AssertionError):
    """A process or its folder was not as it must be after a kill."""


@dataclass(frozen=True)
class Whole:
    """A run that nobody disturbed.

    Attributes:
        folder: where it is.
        epochs: how many it has.
        first: seconds from the start of training to the end of its first epoch.
        epoch: seconds that each of the others took.
    """

    folder: Path
    epochs: int
    first: float
    epoch: float

    def seconds(self, share: float, *, first: bool) -> float:
        """How long a share of an epoch takes."""
        return share * (self.first if first else self.epoch)


@dataclass(frozen=True)
class Ending:
    """How a process has ended.

    Attributes:
        status: its exit status.
        said: all that it wrote on stdout.
    """

    status: int
    said: str

    @property
    def is_whole(self) -> bool:
        """Whether the run had come to its end."""
        return any(line.startswith(_ENDED) for line in self.said.splitlines())


def uninterrupted(folder: Path, *, epochs: int) -> Whole:
    """Run to the end, and see how long that takes."""
    times = []
    with _training(folder, epochs) as process:
        for line in _lines(process):
            if line.startswith((_BEGUN, _EPOCH)):
                times.append(time.perf_counter())
        status = process.wait(_HANGS)
    if status != 0 or len(times) != epochs + 1:
        raise BrokenRunError(
            f"a run that nobody disturbs must end; it had status {status} and {len(times) - 1} epochs"
        )
    return Whole(folder, epochs, times[1] - times[0], (times[-1] - times[1]) / (epochs - 1))


def disturbed(
    folder: Path,
    whole: Whole,
    *,
    kills: int,
    seed: int,
    number: signal.Signals = signal.SIGKILL,
    say: Say = typer.echo,
) -> list[str]:
    """Kill the same training so many times, let it end, and compare.

    A moment is drawn in epochs since the process has begun to train, imports over: whole epochs are waited for as the
    process tells of them, and the rest is a share of the time that an epoch took. So kills land in training and
    evaluation, however busy the machine is; every fourth one then waits for a checkpoint to be under way.

    A process that ends before its moment was not killed. If all the work is done before all kills are, it is compared
    and begun again in another folder.

    Args:
        folder: where the runs go.
        whole: what to compare with.
        kills: how many.
        seed: of the moments.
        number: SIGKILL, or SIGTERM: then the process must end by itself, in order, and lose no step.
        say: hears of each kill.

    Returns:
        What differs.

    Raises:
        BrokenRunError: a process did not end as it must, or left a folder that is damaged.
    """
    moments = random.Random(seed)
    say(f"{kills} × {number.name}, moments of seed {seed}; an epoch takes {whole.epoch:.2f} s")
    done, differing, rounds = 0, [], 0
    while done < kills:
        rounds += 1
        run, reached, over = folder / f"round-{rounds}", 0, False
        while not over:
            moment = moments.uniform(0, _LIFE) if done < kills else None
            ending = trained(
                run, whole, moment=moment, number=number, saving=done % _AIMED == _AIMED - 1
            )
            over = ending.is_whole
            if not over:
                done += 1
                reached = check(run, whole, ending, number=number, at_least=reached)
                say(
                    f"{number.name} {done} of {kills}: after {moment:.2f} epochs {_place(run, reached)}"
                )
        differing += differences(whole.folder, run)
    return differing


def trained(
    folder: Path,
    whole: Whole,
    *,
    moment: float | None = None,
    number: signal.Signals = signal.SIGKILL,
    saving: bool = False,
) -> Ending:
    """Start or resume the run of a folder, and let it end or send it a signal at a moment, in epochs.

    Args:
        folder: of the run.
        whole: how long it is.
        moment: when the signal comes; None lets the run end.
        number: of the signal.
        saving: it comes with the first checkpoint that is being written after the moment.

    Raises:
        BrokenRunError: the process did not end as it must.
    """
    said = []
    with _training(folder, whole.epochs, "--resume") as process:
        lines = _lines(process)
        if moment is not None:
            for line in lines:
                said.append(line)
                if sum(one.startswith((_BEGUN, _EPOCH)) for one in said) > int(moment):
                    break
            with suppress(subprocess.TimeoutExpired):
                process.wait(whole.seconds(moment % 1, first=moment < 1))
            if saving:
                _await_saving(folder, process)
            process.send_signal(number)
        said.extend(lines)
        status = process.wait(_HANGS)
    ending = Ending(status, "".join(said))
    expected = 0 if moment is None or number == signal.SIGTERM else -number
    too_late = moment is not None and ending.is_whole and status in (0, -number)
    if status != expected and not too_late:
        raise BrokenRunError(
            f"a process must end with status {expected}; it ended with {status}, having said {ending.said}"
        )
    return ending


def check(
    folder: Path, whole: Whole, ending: Ending, *, number: signal.Signals, at_least: int
) -> int:
    """See that a folder is in order after a kill.

    Returns:
        The step of its checkpoint; 0 if there is none.

    Raises:
        BrokenRunError: it is not, or steps are lost.
    """
    run = RunFolder(folder)
    checkpoint = load_checkpoint(run.checkpoints)  # Whole, or none; damage raises.
    step = 0 if checkpoint is None else checkpoint.step
    if step < at_least:
        raise BrokenRunError(
            f"what is saved must stay; step {at_least} was, and now the last is {step}"
        )
    if number == signal.SIGTERM and f"stopped at step {step}, which is saved" not in ending.said:
        raise BrokenRunError(
            f"a process that is asked to stop must say where; step {step} is saved, and it said {ending.said}"
        )
    lines = run.metrics.read_text(encoding="utf-8").splitlines() if run.metrics.exists() else []
    for line in lines[:-1]:
        json.loads(line)
    records, expected = _records(folder), _records(whole.folder)
    if records != expected[: len(records)]:
        raise BrokenRunError(
            f"metrics must be those of the undisturbed run so far; in {folder} they are not"
        )
    if any(record["step"] <= step for record in map(json.loads, expected[len(records) :])):
        raise BrokenRunError(
            f"metrics must be there for all that is saved; in {folder} some are missing"
        )
    return step


def differences(one: Path, other: Path) -> list[str]:
    """What two finished runs differ in: steps, weights, states, metrics, geometry. Speeds may."""
    first, second = load_checkpoint(one / "checkpoints"), load_checkpoint(other / "checkpoints")
    assert first is not None
    if second is None:
        return ["there is no checkpoint"]
    found = []
    if first.step != second.step:
        found.append(f"step {first.step} and {second.step}")
    for name, mine, its in (
        ("weights", first.weights, second.weights),
        ("state", first.state, second.state),
    ):
        found.extend(f"{name}{path}" for path in _unlike(mine, its))
    if _records(one) != _records(other):
        found.append("metrics.jsonl")
    if (one / GEOMETRY).read_bytes() != (other / GEOMETRY).read_bytes():
        found.append(GEOMETRY)
    return found


@contextmanager
def _training(folder: Path, epochs: int, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that trains; it is gone when this is left."""
    settings = [f"optimization.epochs={epochs}", "evaluate_every=1", "save_every=1"]
    command = [
        sys.executable,
        "-m",
        "protosphere",
        "train",
        "digits-ntce",
        "--device",
        "cpu",
        "--out",
        str(folder),
    ]
    command += [word for setting in settings for word in ("--set", setting)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    pipes: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
        "encoding": "utf-8",
    }
    with subprocess.Popen([*command, *options], env=environment, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def _await_saving(folder: Path, process: "subprocess.Popen[str]") -> None:
    """Wait until a checkpoint is half-written that was not before, or the process has ended."""
    before = set(folder.glob("checkpoints/.*.part"))
    while process.poll() is None and set(folder.glob("checkpoints/.*.part")) <= before:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GLANCE)


def _lines(process: "subprocess.Popen[str]") -> Iterator[str]:
    assert process.stdout is not None
    return iter(process.stdout.readline, "")


def _records(folder: Path) -> list[str]:
    """The records as texts, without what depends on the clock."""
    return [
        json.dumps({key: value for key, value in record.items() if key != "images_per_second"})
        for record in RunFolder(folder).records()
    ]


def _place(folder: Path, saved: int) -> str:
    """What a process was at when it died, as its folder shows."""
    steps = {record["kind"]: record["step"] for record in RunFolder(folder).records()}
    if steps.get("train", 0) <= saved:
        return f"in training, step {saved} saved"
    doing = "saving" if steps.get("evaluation") == steps["train"] else "evaluation"
    return f"in the {doing} of step {steps['train']}, step {saved} saved"


def _unlike(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Where two nested values are not the same, tensors bit for bit."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from _unlike(one[key], other[key], f"{path}[{key!r}]")
    elif isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape
        if not (alike and one.numpy().tobytes() == other.numpy().tobytes()):
            yield path
    elif type(one) is not type(other) or one != other:
        yield path


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument(
        "--seed", type=int, default=None, help="of the moments; another one each time if not given"
    )
    parser.add_argument("--signal", choices=["SIGKILL", "SIGTERM"], default="SIGKILL")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10_000) if options.seed is None else options.seed
    number = signal.Signals[options.signal]
    with tempfile.TemporaryDirectory(prefix="protosphere-kills-") as folder:
        try:
            whole = uninterrupted(
                Path(folder) / "whole", epochs=max(2, EPOCHS_A_KILL * options.kills)
            )
            differing = disturbed(
                Path(folder), whole, kills=options.kills, seed=seed, number=number
            )
        except (BrokenRunError, RunFolderError) as error:
            typer.echo(f"broken: {error}")
            return 1
    typer.echo(f"different: {', '.join(differing)}" if differing else "identical")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
