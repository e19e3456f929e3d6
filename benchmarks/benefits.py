"""Train on CIFAR and run the benchmarks of ``protosphere benchmark`` on every run, in one go.

Each job trains one recipe and benchmarks the run with the commands that users have. Jobs run
several at a time, in the order of their list. A job that was interrupted continues where it
stopped, also within its training.

    python benchmarks/benefits.py DATA --runs RUNS [--group long-tail ...] [--seconds 500]

DATA holds cifar10.npz, cifar100.npz and, for transfer, flowers102.npz and fashion-mnist.npz with
x_train, y_train, x_test and y_test. ``--collect`` copies the records, without weights, to
results/benefits; runs whose records are there already are not run again.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import harness
from protosphere.cli.app import app
from protosphere.recipes.schema import recipe_from_yaml
from protosphere.runs import RunFolder
from protosphere.studies.convergence import read_log, run_convergence

RESULTS = harness.RESULTS / "benefits"
METHODS = ("ce", "ntce", "nonl")
NOISE_METHODS = ("ce", "normface", "ntce", "nonl")
# Time to save checkpoints once time is up.
_GRACE_SECONDS = 20.0
LONG_TAIL_METHODS = ("ce", "normface", "ntce", "nonl", "etf-dr")


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
    """

    group: str
    name: str
    recipe: str
    data: str
    overrides: tuple[str, ...]
    benchmarks: tuple[tuple[str, ...], ...] = field(default=())


def _schedule(epochs: int, *, every: int | None = None) -> tuple[str, ...]:
    """Return overrides for the number of epochs, with an evaluation every so many epochs."""
    return (
        f"schedule.epochs={epochs}",
        f"evaluation={{every: {every or epochs}, metrics: all}}",
        f"checkpoint={{every: {max(epochs // 5, 1)}, keep: 1}}",
    )


def jobs() -> list[Job]:
    """Return all jobs, the most important first."""
    found = []
    for group, seed, ratio in (
        ("long-tail", 42, 0.01),
        ("long-tail-second-seed", 43, 0.01),
        ("long-tail-ratios", 42, 0.1),
        ("long-tail-ratios", 42, 0.02),
    ):
        found += [
            Job(
                group,
                f"cifar100-lt-{ratio}-{method}-{seed}",
                f"cifar100-lt-{method}",
                "cifar100",
                (f"data.long_tail={ratio}", f"seed={seed}", *_schedule(200)),
                (("long-tail",), ("calibration",)),
            )
            for method in LONG_TAIL_METHODS
        ]
    transfer = ("transfer", "--shots", "1,5,20", "--to")
    found += [
        Job(
            "cifar100",
            f"cifar100-{method}",
            f"cifar100-{method}",
            "cifar100",
            _schedule(100, every=4),
            (
                ("corruptions", "--extra"),
                ("ood", "--against", "DATA/cifar10.npz"),
                ("calibration",),
                (*transfer, "DATA/cifar10.npz"),
                (*transfer, "DATA/flowers102.npz"),
                (*transfer, "DATA/fashion-mnist.npz"),
            ),
        )
        for method in METHODS
    ]
    found += [
        Job(
            "label-noise",
            f"cifar100-noise-{fraction}-{method}",
            f"cifar100-{method}",
            "cifar100",
            (f"data.label_noise={{name: symmetric, fraction: {fraction}}}", *_schedule(60)),
            (("label-noise",),),
        )
        for fraction in (0.4, 0.2)
        for method in NOISE_METHODS
    ]
    found += [
        Job(
            "cifar10",
            f"cifar10-{method}",
            f"cifar10-{method}",
            "cifar10",
            _schedule(60),
            (
                ("ood", "--against", "DATA/cifar100.npz"),
                ("calibration",),
                (*transfer, "DATA/cifar100.npz"),
                (*transfer, "DATA/fashion-mnist.npz"),
            ),
        )
        for method in METHODS
    ]
    found += [
        Job(
            "coarse-to-fine",
            f"cifar100-coarse-{method}",
            f"cifar100-{method}",
            "cifar100",
            ("data.class_groups=cifar100-superclasses", *_schedule(60)),
            (("transfer", "--shots", "1,5,20", "--to", "fine"),),
        )
        for method in METHODS
    ]
    found += [
        Job(
            "long-tail-cifar10",
            f"cifar10-lt-0.01-{method}-42",
            f"cifar10-lt-{method}",
            "cifar10",
            _schedule(200),
            (("long-tail",),),
        )
        for method in LONG_TAIL_METHODS
    ]
    # The recipes have the paper's temperatures, 0.3 for NormFace and 0.2 for NTCE.
    found += [
        Job(
            "long-tail-temperature",
            f"cifar100-lt-0.01-{method}-t0.1-{seed}",
            f"cifar100-lt-{method}",
            "cifar100",
            ("loss.temperature=0.1", f"seed={seed}", *_schedule(200)),
            (("long-tail",),),
        )
        for seed in (42, 43)
        for method in ("normface", "ntce")
    ]
    # Runs whose features benchmarks/whitening.py classifies; nothing else is measured on them.
    found += [
        Job("features", f"features-{method}", f"cifar100-{method}", "cifar100", _schedule(60))
        for method in ("ce", "scl")
    ]
    return found


def run_job(job: Job, data: Path, runs: Path, device: str, extra: tuple[str, ...]) -> str:
    """Train the recipe of a job and benchmark the run; what they print goes to a log file.

    Args:
        job: The job.
        data: Folder of the data.
        runs: Folder of the runs.
        device: Device to compute on.
        extra: Further values of ``--set``.

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
    log = (runs / f"{job.name}.log").open("a")
    with log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        for command in commands:
            begun = time.perf_counter()
            try:
                app([*command, "--device", device], standalone_mode=False)
            except BaseException as error:  # typer.Exit of a refused command, or any defect
                log.write(f"{' '.join(command[:3])}: {type(error).__name__}: {error}\n")
                return f"{job.name}: {command[1]} failed, see {log.name}"
            log.write(f"{' '.join(command[:2])}: {time.perf_counter() - begun:.1f} s\n")
            log.flush()
            if not is_trained(out):
                return f"{job.name}: stopped with a checkpoint"
    (out / "done").touch()
    return f"{job.name}: done in {time.perf_counter() - started:.0f} s"


def is_trained(folder: Path) -> bool:
    """Whether a run has trained all of its epochs and was evaluated after the last one."""
    last = RunFolder(folder).last_evaluation()
    epochs = recipe_from_yaml((folder / "recipe.yaml").read_text()).schedule.epochs
    return last is not None and bool(last["epoch"] == epochs)


def collect(runs: Path) -> None:
    """Copy the records of completed runs, without weights and features, to the results."""
    for folder in sorted(path.parent for path in runs.glob("*/done")):
        if not is_trained(folder) or not (folder / "benchmarks").exists():
            continue
        target = RESULTS / folder.name
        shutil.rmtree(target, ignore_errors=True)
        (target / "benchmarks").mkdir(parents=True)
        for name in ("recipe.yaml", "metrics.jsonl", "data.json", "classes.json"):
            shutil.copy(folder / name, target)
        for path in (folder / "benchmarks").glob("*.json"):
            shutil.copy(path, target / "benchmarks")
        record = json.loads((folder / "machine.json").read_text()) | {"commit": harness.commit()}
        (target / "machine.json").write_text(json.dumps(record, indent=1) + "\n")
    baseline = read_log(RESULTS / "cifar100-ce")
    for method in METHODS:
        if (RESULTS / f"cifar100-{method}").exists():
            run_convergence(read_log(RESULTS / f"cifar100-{method}"), baseline=baseline)


def main() -> None:
    """Run the chosen jobs until all are done or time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder of the data")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--group", action="append", help="group of jobs, in order; default: all")
    parser.add_argument("--name", help="only jobs whose name contains this")
    parser.add_argument("--workers", type=int, default=6, help="number of jobs at a time")
    parser.add_argument("--seconds", type=float, help="stop after this time; resume later")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], help="further overrides")
    parser.add_argument("--collect", action="store_true", help="only copy the records")
    options = parser.parse_args()
    if options.collect:
        collect(options.runs)
        return
    options.runs.mkdir(parents=True, exist_ok=True)
    chosen = [job for job in jobs() if not options.name or options.name in job.name]
    if options.group:
        chosen = [job for group in options.group for job in chosen if job.group == group]
    committed = {path.name for path in RESULTS.iterdir()}
    chosen = [
        job
        for job in chosen
        if job.name not in committed and not (options.runs / job.name / "done").exists()
    ]
    begun = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(options.workers, mp_context=context, max_tasks_per_child=1)
    futures = [
        pool.submit(run_job, job, options.data, options.runs, options.device, tuple(options.set))
        for job in chosen
    ]
    try:
        for future in as_completed(futures, timeout=options.seconds):
            print(f"{time.perf_counter() - begun:5.0f} s  {future.result()}", flush=True)
    except TimeoutError:
        print("time is up; run again to continue", flush=True)
        processes = list(pool._processes.values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()  # Training saves a checkpoint and stops.
        for process in processes:
            process.join(_GRACE_SECONDS / len(processes))
            process.kill()
        os._exit(1)


if __name__ == "__main__":
    main()
