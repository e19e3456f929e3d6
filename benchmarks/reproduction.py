"""Runs that the paper's tables are compared with: its own length, CIFAR-10, temperatures.

The runs are those of ``protosphere reproduce``, in folders of the same names, so that it reads
their records. Runs that were interrupted continue; runs whose records are among the results are not
run again.

    python benchmarks/reproduction.py DATA --runs RUNS [--group length-1000 ...] [--seconds 560]
    python benchmarks/reproduction.py DATA --runs RUNS --collect

DATA holds cifar10.npz and cifar100.npz with x_train, y_train, x_test and y_test. The groups, with
millions of training images (an H200 trains on 83,000 a second, and a few more with several runs at
a time):

    length-1000   CIFAR-100, cross-entropy and NONL, the paper's 1000 epochs (100)
    length-300    the same with zero-initialized residual blocks, 300 epochs (30)
    cifar10       Tables 1 and 3, five losses, 100 epochs (5 each)
    scl           Tables 2 and 14, CIFAR-10, 100 epochs, two views (10), and probes
    temperatures  Table 9, NONL at five temperatures, 60 epochs (3 each)
    phase         Figure 3, NONL at three of them with two more batch sizes, 60 epochs (3 each)

``--collect`` copies the records, without weights, to results/reproduce, also those of contrastive
runs of which not all probes are fitted.
"""

import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import harness
from jobs import Job, is_trained, main
from protosphere.evaluation.probes import ProbeResult
from protosphere.recipes.loading import load_run
from protosphere.runs import RunFolderError
from protosphere.runs.results import read_result
from protosphere.studies.convergence import read_log, run_convergence
from protosphere.studies.reproduce_readings import run_probe
from protosphere.studies.reproduce_runs import PaperRun, plan_run
from protosphere.studies.reproduce_targets import PROBES

RESULTS = harness.RESULTS / "reproduce"
RECORDS = ("recipe.yaml", "machine.json", "metrics.jsonl", "classes.json", "data.json")
ARRAYS, MAX_ARRAYS = "geometry.safetensors", 150_000
PAPER_EPOCHS = 1000
# Epochs, and epochs between evaluations. An evaluation with all metrics takes one to two seconds,
# as long as two or three epochs: these take about a tenth of the time of training.
LENGTHS = {"length-1000": (1000, 20), "length-300": (300, 12)}
LENGTH_LOSSES = ("ce", "nonl")
ZERO_INIT = "model.backbone.zero_init_residual=true"
CIFAR10_EPOCHS, CIFAR10_LOSSES = 100, ("ce", "etf-dr", "normface", "ntce", "nonl")
# Three in the range that works in the paper, and two above it.
GRID_EPOCHS, TEMPERATURES = 60, (0.07, 0.1, 0.2, 0.3, 0.5)
PHASE_TEMPERATURES, BATCH_SIZES = (0.1, 0.2, 0.5), (128, 512, 2048)
# Linear probes of full length, whatever the length of training: class means compete with them.
FULL_PROBES = ("probe.epochs=100", "probe.milestones=[60, 75, 90]")


def length_run(loss: str, epochs: int) -> PaperRun:
    """Return a run of CIFAR-100; those that are shorter than the paper's start from zero blocks.

    Args:
        loss: Name of the loss.
        epochs: Number of epochs.
    """
    return PaperRun(f"cifar100-{loss}", () if epochs == PAPER_EPOCHS else (ZERO_INIT,))


def grid_run(temperature: float, batch_size: int) -> PaperRun:
    """Return a run of Table 9 or Figure 3.

    Args:
        temperature: Temperature of NONL.
        batch_size: Batch size.
    """
    changes = (f"loss.temperature={temperature:g}", f"training.batch_size={batch_size}")
    return PaperRun("cifar100-nonl", changes)


def run_name(run: PaperRun, epochs: int) -> str:
    """Return the name of the folder of a run, as ``protosphere reproduce`` names it.

    Args:
        run: The run of the paper.
        epochs: Number of epochs.
    """
    return plan_run(run, out=Path("/nonexistent"), scale=epochs / PAPER_EPOCHS).folder.name


def jobs() -> list[Job]:
    """Return all jobs, the most important first."""
    found = [
        _job(group, length_run(loss, epochs), epochs, every=every)
        for group, (epochs, every) in LENGTHS.items()
        for loss in LENGTH_LOSSES
    ]
    found += [
        _job("cifar10", PaperRun(f"cifar10-{loss}"), CIFAR10_EPOCHS, every=CIFAR10_EPOCHS // 2)
        for loss in CIFAR10_LOSSES
    ]
    found.append(_job("scl", PaperRun("cifar10-scl"), CIFAR10_EPOCHS, every=CIFAR10_EPOCHS // 2))
    found += [
        _job("temperatures", grid_run(temperature, 512), GRID_EPOCHS)
        for temperature in TEMPERATURES
    ]
    found += [
        _job("phase", grid_run(temperature, size), GRID_EPOCHS)
        for size in BATCH_SIZES
        for temperature in PHASE_TEMPERATURES
        if size != 512
    ]
    return found


def _job(group: str, run: PaperRun, epochs: int, *, every: int | None = None) -> Job:
    settings = [
        f"evaluation.every={every or epochs}",
        f"checkpoint.every={max(epochs // 20, 20)}",
        "checkpoint.keep=1",
    ]
    planned = plan_run(
        run, out=Path("/nonexistent"), scale=epochs / PAPER_EPOCHS, overrides=settings
    )
    words = shlex.split(planned.command)
    overrides = tuple(text for word, text in pairwise(words) if word == "--set")
    is_contrastive = group == "scl"
    return Job(
        group,
        planned.folder.name,
        run.recipe,
        run.recipe.partition("-")[0],
        (*overrides, *(FULL_PROBES if is_contrastive else ())),
        finish=fit_probes if is_contrastive else None,
    )


def fit_probes(folder: Path, device: str) -> None:
    """Fit the classifiers of Tables 2, 3 and 14 on a contrastive run; those that are there stay.

    Args:
        folder: The run folder.
        device: Where to compute.
    """
    run = load_run(folder, device=device)
    for reading in PROBES.values():
        run_probe(run, reading.probe)


def missing_jobs() -> list[Job]:
    """Return the jobs whose records, with those of all probes, are not among the results."""
    return [
        job
        for job in jobs()
        if not (RESULTS / job.name).exists() or missing_probes(job, RESULTS / job.name)
    ]


def collect(runs: Path) -> None:
    """Copy the records of completed runs, without weights, and compute when they converge.

    Args:
        runs: Folder of the runs, or of records that were copied from there.
    """
    for job in jobs():
        folder, target = runs / job.name, RESULTS / job.name
        if not is_trained(folder):
            continue
        probes = folder / "benchmarks" / "probes.json"
        (target / "benchmarks" if probes.exists() else target).mkdir(parents=True, exist_ok=True)
        for name in RECORDS:
            shutil.copy(folder / name, target)
        if probes.exists():
            shutil.copy(probes, target / "benchmarks")
        arrays = folder / ARRAYS
        if arrays.exists() and arrays.stat().st_size < MAX_ARRAYS:
            shutil.copy(arrays, target)
        missing = missing_probes(job, target)
        print(f"{job.name}: copied" + (f", without {', '.join(missing)}" if missing else ""))
    for epochs, _ in LENGTHS.values():
        _compute_convergence(epochs)


def missing_probes(job: Job, folder: Path) -> list[str]:
    """Return the classifiers that the tables need and the run does not have.

    Args:
        job: The job.
        folder: The run folder.
    """
    if job.finish is None:
        return []
    path = folder / "benchmarks" / "probes.json"
    rows = read_result(path, ProbeResult).rows if path.exists() else ()
    fitted = {row.name for row in rows}
    return [reading.probe for reading in PROBES.values() if reading.probe not in fitted]


def _compute_convergence(epochs: int) -> None:
    folders = [RESULTS / run_name(length_run(loss, epochs), epochs) for loss in LENGTH_LOSSES]
    try:
        baseline, *others = [read_log(folder) for folder in folders]
    except RunFolderError:
        return
    for log in (baseline, *others):
        run_convergence(log, baseline=baseline)


if __name__ == "__main__":
    main(__doc__, missing_jobs, collect)
