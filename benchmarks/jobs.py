"""Jobs of a benchmark: train recipes and benchmark the runs, several at a time, and resume.

A job that was interrupted continues where it stopped, also within its training. Jobs run in
processes of their own, of which one trains at a time: several at once on one GPU are slower,
3 × 26,000 images a second instead of 84,000. When it ends, the most important one of those that
wait is next. Of the others one starts up and compiles meanwhile, and others benchmark what they
have trained. Only one starts up at a time: of several that did with torch 2.11, one never finished
its first epoch, twice, for a reason that is not known.
"""

import argparse
import contextlib
import fcntl
import json
import math
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import harness
from protosphere.cli.app import app
from protosphere.recipes import runner
from protosphere.recipes.schema import recipe_from_yaml
from protosphere.runs import RunFolder
from protosphere.training import Progress

# Time to save checkpoints once time is up.
_GRACE_SECONDS = 20.0
# Locked by the job that starts up until its first report, and by the job that trains.
_STARTUP, _TURN = "startup.lock", "turn.lock"
# Locked by a job that waits for its turn.
_WAITING = "waiting-{:04d}.lock"
_POLL_SECONDS = 0.05
# The longest time that a job waits for another one to start up.
_STARTUP_SECONDS = 120.0


@dataclass(frozen=True)
class Job:
    """A run and its benchmarks.

    Attributes:
        group: What the job belongs to; chosen by ``--group``.
        name: Name of the run folder.
        recipe: Name of the recipe.
        data: Name of the data file.
        overrides: Values of ``--set``.
        benchmarks: Arguments of ``protosphere benchmark`` before the run; DATA stands for the
            folder of the data.
        prepare: Called in the process of the job before it trains; it must be picklable.
        finish: Called with the run folder and the device after everything else.
    """

    group: str
    name: str
    recipe: str
    data: str
    overrides: tuple[str, ...]
    benchmarks: tuple[tuple[str, ...], ...] = field(default=())
    prepare: Callable[[], None] | None = None
    finish: Callable[[Path, str], None] | None = None


def run_job(
    job: Job, data: Path, runs: Path, device: str, extra: tuple[str, ...], order: int = 0
) -> str:
    """Train the recipe of a job and benchmark the run; what they print goes to a log file.

    Args:
        job: The job.
        data: Folder of the data.
        runs: Folder of the runs.
        device: Device to compute on.
        extra: Further values of ``--set``.
        order: Place of the job among all, the most important first.

    Returns:
        One line that says how the job ended.
    """
    started, out = time.perf_counter(), runs / job.name
    path = f"data.path={data / f'{job.data}.npz'}"
    settings = ("data.source=arrays", path, *job.overrides, *extra)
    overrides = [word for setting in settings for word in ("--set", setting)]
    commands = [["train", job.recipe, "--out", str(out), "--resume", *overrides]]
    for words in job.benchmarks:
        places = [word.replace("DATA", str(data)) for word in words]
        commands.append(["benchmark", *places, str(out)])
    if job.prepare is not None:
        job.prepare()
    take_turns(runs, order)
    log = (runs / f"{job.name}.log").open("a")
    with log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        for command in commands:
            begun = time.perf_counter()
            try:
                status = app([*command, "--device", device], standalone_mode=False)
            except BaseException as error:
                log.write(f"{' '.join(command[:3])}: {type(error).__name__}: {error}\n")
                status = 1
            log.write(f"{' '.join(command[:2])}: {time.perf_counter() - begun:.1f} s\n")
            log.flush()
            if not is_trained(out):
                return f"{job.name}: not trained to the end, see {log.name}"
            if status:
                return f"{job.name}: {command[1]} failed, see {log.name}"
        if job.finish is not None:
            try:
                job.finish(out, device)
            except Exception:
                log.write(traceback.format_exc())
                return f"{job.name}: {job.finish.__name__} failed, see {log.name}"
    (out / "done").touch()
    return f"{job.name}: done in {time.perf_counter() - started:.0f} s"


def take_turns(folder: Path, order: int = 0) -> None:
    """Let runs of this process start up and then train only while no other process does.

    A run starts up until its first report: it compiles, which takes the GPU little, and trains an
    epoch. Time that a run waits is not part of its images per second.

    Args:
        folder: Folder of the files to lock.
        order: Place of this process among all; of those that wait to train the first one is next.
    """
    train = runner.train

    def train_in_turn(*arguments: Any, **options: Any) -> Iterator[Progress]:
        should_stop = options.get("should_stop", lambda: False)
        startup, turn = (folder / _STARTUP).open("w"), (folder / _TURN).open("w")
        with startup, turn:  # Closed, they are unlocked.
            _wait(startup, should_stop, seconds=_STARTUP_SECONDS)
            has_turn = False
            for progress in train(*arguments, **options):
                startup.close()
                yield progress
                has_turn = has_turn or _wait_for_turn(turn, folder, order, should_stop)

    runner.train = train_in_turn


def _wait_for_turn(
    turn: IO[str], folder: Path, order: int, should_stop: Callable[[], bool]
) -> bool:
    """Lock the turn after all processes that wait too and are more important."""
    path = folder / _WAITING.format(order)
    with path.open("w") as waiting:
        fcntl.flock(waiting, fcntl.LOCK_EX)
        more_important = [folder / _WAITING.format(number) for number in range(order)]
        return _wait(turn, should_stop, is_next=lambda: not any(map(_is_locked, more_important)))


def _is_locked(path: Path) -> bool:
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _wait(
    file: IO[str],
    should_stop: Callable[[], bool],
    *,
    seconds: float = math.inf,
    is_next: Callable[[], bool] = lambda: True,
) -> bool:
    """Lock a file as soon as no other process has; return whether it is locked."""
    end = time.monotonic() + seconds
    while not should_stop() and time.monotonic() < end:
        if is_next():
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
        time.sleep(_POLL_SECONDS)
    return False


def is_trained(folder: Path) -> bool:
    """Whether a run has trained all of its epochs and was evaluated after the last one."""
    if not (folder / "recipe.yaml").exists():
        return False
    last = RunFolder(folder).last_evaluation()
    epochs = recipe_from_yaml((folder / "recipe.yaml").read_text()).schedule.epochs
    return last is not None and bool(last["epoch"] == epochs)


def write_results(
    path: Path, benchmark: str, machine: dict[str, Any], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Write results of runs, with the machine that they were trained on.

    Args:
        path: File to write.
        benchmark: Name of the benchmark.
        machine: Content of ``machine.json`` of a run.
        rows: The results; there must be at least one.

    Returns:
        What was written.
    """
    if not rows:
        raise SystemExit("there must be complete runs of this benchmark; there are none")
    record = {
        "benchmark": benchmark,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": harness.commit(),
        "machine": machine,
        "rows": rows,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    return record


def describe_machine(machine: dict[str, Any], detail: str, *commits: str) -> str:
    """Return the line beneath a table of runs.

    Args:
        machine: Content of ``machine.json`` of a run.
        detail: How the runs were trained.
        commits: Commits that the runs were trained at; by default that of the machine.
    """
    names = ", ".join(dict.fromkeys(commits or (machine["commit"],)))
    place = f"{machine['device']}, torch {machine['versions']['torch']}"
    return f"{place}, {detail}; commit {names}."


def main(description: str, jobs: Callable[[], list[Job]], collect: Callable[[Path], None]) -> None:
    """Run the chosen jobs until all are done or time is up; the command line of a benchmark.

    Args:
        description: What the benchmark does.
        jobs: Function that returns the jobs, the most important first.
        collect: Function of the folder of the runs that writes the results.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder of the data")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--group", action="append", help="group of jobs, in order; default: all")
    parser.add_argument("--name", help="only jobs whose name contains this")
    parser.add_argument(
        "--workers", type=int, default=3, help="number of jobs at a time, of which one trains"
    )
    parser.add_argument("--seconds", type=float, help="stop after this time; resume later")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], help="further overrides")
    parser.add_argument("--collect", action="store_true", help="only write the results")
    options = parser.parse_args()
    if options.collect:
        collect(options.runs)
        return
    options.runs.mkdir(parents=True, exist_ok=True)
    chosen = [job for job in jobs() if not options.name or options.name in job.name]
    if options.group:
        chosen = [job for group in options.group for job in chosen if job.group == group]
    chosen = [job for job in chosen if not (options.runs / job.name / "done").exists()]
    begun = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(options.workers, mp_context=context, max_tasks_per_child=1)
    futures = [
        pool.submit(
            run_job, job, options.data, options.runs, options.device, tuple(options.set), order
        )
        for order, job in enumerate(chosen)
    ]
    try:
        for future in as_completed(futures, timeout=options.seconds):
            print(f"{time.perf_counter() - begun:5.0f} s  {future.result()}", flush=True)
    except TimeoutError:
        print("time is up; run again to continue", flush=True)
        processes = list(pool._processes.values())
        threading.excepthook = lambda _: None  # The pool's thread misses its processes.
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()  # Training saves a checkpoint and stops.
        for process in processes:
            process.join(_GRACE_SECONDS / len(processes))
            process.kill()
        os._exit(1)
