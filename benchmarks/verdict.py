"""Compare losses on CIFAR-100 at the settings that sweeps of equal budgets chose for each of them.

ResNet-18, batches of 512, all training images, accuracy on the test images; the settings are those
of results/sweeps. Runs that were interrupted continue; runs whose records are among the results,
with the same settings, are not run again.

    python benchmarks/verdict.py DATA --runs RUNS [--group short --group long] [--seconds 500]
    python benchmarks/verdict.py DATA --runs RUNS --collect

DATA holds cifar100.npz with x_train, y_train, x_test and y_test. The group short has 100 epochs and
five seeds for every loss, long has 200 epochs and three seeds for cross-entropy and the most
accurate of the losses whose class means have an effective rank of at least 95. The group unmixed
trains that loss without mixup, for 100 epochs with five seeds, beside cross-entropy of the group
short: one run without mixup (benchmarks/dynamics.py) was more accurate on the validation images
than the best trial of its sweep, which has mixup. ``--collect`` copies the records, without
weights, to results/verdict and compares them as ``protosphere compare`` does, and the accuracies of
single classes.
"""

import contextlib
import json
import shutil
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import class_accuracy
import class_tables
import harness
from jobs import Job, describe_machine, is_trained, main
from protosphere.recipes import registry
from protosphere.recipes.loading import read_recipe
from protosphere.recipes.schema import find_difference, recipe_from_yaml
from protosphere.runs import RunFolder
from protosphere.runs.arrays import ARRAYS_FILE, BEST_ARRAYS_FILE
from protosphere.runs.comparison import (
    COMPARISON_FILE,
    Comparison,
    MetricSummary,
    read_comparison,
)
from protosphere.studies.compare import run_comparison
from protosphere.studies.compare_statistics import PairedDifference, paired_difference
from sweeps import LOSSES, chosen_settings

RESULTS = harness.RESULTS / "verdict"
# Columns of the table of the progress: title, metric, factor and format.
PROGRESS: tuple[tuple[str, str, float, str], ...] = (
    ("test accuracy", "accuracy", 100, ".1f"),
    ("training accuracy", "train_accuracy", 100, ".1f"),
    ("rank of class means", "inter_effective_rank", 1, ".1f"),
    ("within/between-class variance", "nc1_ratio", 1, ".3f"),
)
# Of the losses whose class means have a rank of at least 95 in the group short, the most accurate.
CONTENDER = "ntce"


class Group(NamedTuple):
    """Runs that are compared.

    Attributes:
        name: Name of the group.
        epochs: Number of epochs.
        seeds: The seeds.
        methods: Names of the losses.
        changes: Changes of the chosen settings, as values of ``--set``.
        baseline: Group whose runs of cross-entropy these are compared with; None: this one.
    """

    name: str
    epochs: int
    seeds: range
    methods: tuple[str, ...]
    changes: tuple[str, ...] = ()
    baseline: str | None = None


GROUPS = {
    group.name: group
    for group in (
        Group("short", 100, range(42, 47), LOSSES),
        Group("long", 200, range(42, 45), ("ce", CONTENDER)),
        Group("unmixed", 100, range(42, 47), (CONTENDER,), ("augmentation.mixing=null",), "short"),
    )
}
RECORDS = (
    "recipe.yaml",
    "machine.json",
    "metrics.jsonl",
    "classes.json",
    "data.json",
    class_accuracy.FILE,
)
_DATA = ("data.source=arrays", "data.path=cifar100.npz")
# Runs whose prototypes and class means are kept too, for reports.
WITH_ARRAYS = ("ce", "normface-nonl")


def jobs() -> list[Job]:
    """Return all jobs, one seed of every loss after the other."""
    return [
        _job(group, method, seed)
        for group in GROUPS.values()
        for seed in group.seeds
        for method in group.methods
    ]


def _job(group: Group, method: str, seed: int) -> Job:
    overrides = (
        f"name={_name(method)}",
        "training.batch_size=512",
        f"schedule.epochs={group.epochs}",
        f"evaluation={{every: {group.epochs // 2}, metrics: all}}",
        f"checkpoint={{every: {group.epochs // 5}, keep: 1}}",
        f"seed={seed}",
        *chosen_settings(method),
        *group.changes,
    )
    return Job(
        group.name,
        f"{group.name}-{method}-{seed}",
        f"cifar100-strong-{method}",
        "cifar100",
        overrides,
        finish=class_accuracy.write_class_accuracy,
    )


def missing_jobs() -> list[Job]:
    """Return the jobs whose records are not among the results with the settings of the job."""
    return [job for job in jobs() if not _is_current(job, RESULTS / job.group / job.name)]


def _is_current(job: Job, folder: Path) -> bool:
    """Whether a run is trained to the end, with the settings of the job."""
    if not is_trained(folder):
        return False
    trained = recipe_from_yaml((folder / "recipe.yaml").read_text())
    expected = read_recipe(job.recipe, [*_DATA, *job.overrides])
    return find_difference(trained, expected) is None


def collect(runs: Path) -> None:
    """Copy the records of the complete runs and compare them; remove those of other settings."""
    for job in jobs():
        folder, target = runs / job.name, RESULTS / job.group / job.name
        if not _is_current(job, folder):
            if target.exists() and not _is_current(job, target):
                shutil.rmtree(target)
            continue
        target.mkdir(parents=True, exist_ok=True)
        arrays = (ARRAYS_FILE, BEST_ARRAYS_FILE) if _keeps_arrays(job) else ()
        for name in (*RECORDS, *arrays):
            if (folder / name).exists():
                shutil.copy(folder / name, target)
    for group in GROUPS:
        if any((RESULTS / group).glob("*/recipe.yaml")):
            targets = [str(folder) for folder in _folders(group)]
            run_comparison(targets, out=RESULTS / group, baseline=_name("ce"), report=print)
            print(table(group))
            with contextlib.suppress(FileNotFoundError):  # Of earlier runs, and without a baseline.
                print(class_tables.summary_table(RESULTS / group))
                print(class_tables.classes_table(RESULTS / group))


def _folders(group: str) -> list[Path]:
    """Return the results of a group, with those that they are compared with."""
    own = (RESULTS / group).glob("*/recipe.yaml")
    baseline = GROUPS[group].baseline
    others = [] if baseline is None else (RESULTS / baseline).glob(f"{baseline}-ce-*/recipe.yaml")
    return sorted(path.parent for path in (*own, *others))


def _keeps_arrays(job: Job) -> bool:
    return any(job.name == f"short-{method}-42" for method in WITH_ARRAYS)


def read(group: str) -> Comparison:
    """Return the comparison of a group.

    Args:
        group: Name of the group.
    """
    return read_comparison(RESULTS / group / COMPARISON_FILE)


def table(group: str) -> str:
    """Return the comparison of a group as a Markdown table.

    Args:
        group: Name of the group.
    """
    comparison = read(group)
    names = {method.name for method in comparison.methods}
    lines = [
        "| loss | seeds | test accuracy | difference to cross-entropy, 95% interval "
        "| nearest class mean | effective rank of class means (of 99) "
        "| within/between-class variance | ‖prototype − class mean‖² | test loss "
        "| calibration error |",
        f"|---|{'---:|' * 9}",
    ]
    return "\n".join([*lines, *(_row(comparison, loss) for loss in LOSSES if _name(loss) in names)])


def progress_table(group: str) -> str:
    """Return what the runs of a group have learned halfway and at the end, as a Markdown table.

    Args:
        group: Name of the group.
    """
    epochs = GROUPS[group].epochs
    ends = epochs // 2, epochs
    titles = (f"{title}, epoch {epoch}" for title, *_ in PROGRESS for epoch in ends)
    lines = [f"| loss | {' | '.join(titles)} |", f"|---|{'---:|' * 2 * len(PROGRESS)}"]
    for loss in LOSSES:
        folders = sorted((RESULTS / group).glob(f"{group}-{loss}-[0-9]*"))
        found: dict[int, list[dict[str, Any]]] = {epoch: [] for epoch in ends}
        for record in (record for folder in folders for record in RunFolder(folder).records()):
            if record["kind"] == "evaluation" and record["epoch"] in found:
                found[record["epoch"]].append(record)
        if folders:
            cells = [
                f"{factor * statistics.fmean(record[metric] for record in found[epoch]):{form}}"
                for _, metric, factor, form in PROGRESS
                for epoch in ends
            ]
            lines.append(f"| {registry.LOSSES[loss].title} | {' | '.join(cells)} |")
    if len(lines) == 2:
        raise FileNotFoundError(f"{RESULTS / group} has no runs")
    return "\n".join(lines)


def source(group: str) -> str:
    """Return the line beneath the table of a group.

    Args:
        group: Name of the group.
    """
    paths = [folder / "machine.json" for folder in _folders(group)]
    machines = [json.loads(path.read_text()) for path in paths]
    commits = [machine["commit"] for machine in machines]
    return describe_machine(machines[0], "several runs at a time on the GPU", *commits)


def means(metric: str) -> dict[str, float]:
    """Return the mean of a metric over the seeds of the group short, by loss.

    Args:
        metric: Name of the metric.
    """
    found = {row.method: row.mean for row in read("short").summaries if row.metric == metric}
    return {loss: found[_name(loss)] for loss in LOSSES if _name(loss) in found}


def accuracy(loss: str) -> str:
    """Return mean and deviation of the accuracy of a loss of the group short, in percent.

    Args:
        loss: The loss.
    """
    rows = {(row.method, row.metric): row for row in read("short").summaries}
    return _mean_and_std(rows[_name(loss), "accuracy"], ".2f", 100)


def difference(loss: str, baseline: str) -> PairedDifference:
    """Return the paired difference of the accuracies of two losses of the group short.

    Args:
        loss: The first loss.
        baseline: The loss whose accuracy is subtracted.
    """
    values = {(run.method, run.seed): run.values["accuracy"] for run in read("short").runs}
    seeds = [seed for method, seed in values if method == _name(loss)]
    pairs = [(_name(loss), seed) for seed in seeds if (_name(baseline), seed) in values]
    return paired_difference(
        [values[pair] for pair in pairs], [values[_name(baseline), seed] for _, seed in pairs]
    )


def num_seeds(*losses: str) -> str:
    """Return how many seeds losses of the group short have, such as "5" or "3 or 4".

    Args:
        losses: The losses; all if there are none.
    """
    names = {_name(loss) for loss in losses or LOSSES}
    numbers = {row.num_seeds for row in read("short").summaries if row.method in names}
    return " or ".join(map(str, sorted(numbers)))


def _name(loss: str) -> str:
    return f"cifar100-best-{loss}"


def _row(comparison: Comparison, loss: str) -> str:
    method = _name(loss)
    values = {row.metric: row for row in comparison.summaries if row.method == method}

    def cell(metric: str, form: str, factor: float = 1) -> str:
        return _mean_and_std(values[metric], form, factor)

    difference = next(
        (
            row
            for row in comparison.differences
            if (row.method, row.metric) == (method, "accuracy") and row.low is not None
        ),
        None,
    )
    interval = (
        "–"
        if difference is None or difference.low is None or difference.high is None
        else f"{100 * difference.mean:+.2f} ({100 * difference.low:+.2f} to "
        f"{100 * difference.high:+.2f})"
    )
    cells = [
        registry.LOSSES[loss].title,
        str(values["accuracy"].num_seeds),
        cell("accuracy", ".2f", 100),
        interval,
        cell("nearest_mean_accuracy", ".2f", 100),
        cell("inter_effective_rank", ".1f"),
        cell("nc1_ratio", ".3f"),
        cell("weight_class_alignment", ".3f"),
        cell("loss", ".3f"),
        f"{cell('ece', '.1f', 100)}%",
    ]
    return f"| {' | '.join(cells)} |"


def _mean_and_std(row: MetricSummary, form: str, factor: float) -> str:
    spread = "" if row.std is None else f" ± {factor * row.std:{form}}"
    return f"{factor * row.mean:{form}}{spread}"


if __name__ == "__main__":
    main(__doc__, missing_jobs, collect)
