"""Sweeps of five losses on CIFAR-100 with equal budgets, and the trials that pruning ended.

The sweep of a loss, for results/sweeps/LOSS, is

    protosphere sweep cifar100-strong-LOSS --trials 8 --seed 15 --prune --out SWEEP \\
        --set training.batch_size=512 --set schedule.epochs=40 \\
        --set "evaluation={every: 10, metrics: cheap}" --set "checkpoint={every: 10, keep: 1}" \\
        --over optimizer.lr=log:0.1..0.5 --over optimizer.weight_decay=log:0.0003..0.002 \\
        --over "augmentation.mixing=null,{name: mixup, alpha: 0.2}" \\
        --over training.ema_decay=null,0.999 \\
        --over loss.temperature=log:0.05..0.25      # ce: loss.label_smoothing=0..0.2

Pruning was the default then; it ended 13 of the 40 trials, by evaluations that turned out to say
little about the last one. This trains them to the end. Runs that were interrupted continue.

    python benchmarks/sweeps.py DATA --runs RUNS [--seconds 400]
    python benchmarks/sweeps.py DATA --runs RUNS --collect

DATA holds cifar100.npz with x_train, y_train, x_test and y_test. ``--collect`` adds the complete
runs to results/sweeps/pruned.json.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import spearmanr

import harness
from jobs import Job, describe_machine, is_trained, main, write_results
from protosphere.recipes import registry
from protosphere.runs import RunFolder
from protosphere.runs.sweeps import SweepRecord, SweepTrial, read_sweep

SWEEPS = harness.RESULTS / "sweeps"
LOSSES = ("ce", "normface", "ntce", "nonl", "normface-nonl")
EPOCHS = 40
EVALUATED = tuple(range(EPOCHS // 4, EPOCHS + 1, EPOCHS // 4))


class Trial(NamedTuple):
    """A trial that was trained to the end.

    Attributes:
        value: Accuracy on the validation images after the last epoch.
        settings: What was varied.
        evaluations: Accuracy on the validation images after each epoch of ``EVALUATED``.
        was_pruned: Whether pruning had ended it before.
    """

    value: float
    settings: dict[str, Any]
    evaluations: dict[int, float]
    was_pruned: bool


def overrides(epochs: int = EPOCHS) -> tuple[str, ...]:
    """Return what all trials have in common, as values of ``--set``.

    Args:
        epochs: Number of epochs.
    """
    return (
        "training.batch_size=512",
        "data.validation_fraction=0.1",
        f"schedule.epochs={epochs}",
        f"evaluation={{every: {epochs // 4}, metrics: cheap}}",
        f"checkpoint={{every: {epochs // 4}, keep: 1}}",
    )


def jobs() -> list[Job]:
    """Return the jobs for the trials that were pruned and are not among the results."""
    known = {(row["loss"], row["number"]) for row in _completed_rows()}
    return [
        Job(
            "pruned",
            _run_name(loss, trial.number),
            f"cifar100-strong-{loss}",
            "cifar100",
            (*overrides(), *_as_overrides(trial.settings)),
        )
        for loss, trial in _pruned_trials()
        if (loss, trial.number) not in known
    ]


def collect(runs: Path) -> None:
    """Add the complete runs to the results."""
    rows, machine = _completed_rows(), None
    for loss, trial in _pruned_trials():
        folder = runs / _run_name(loss, trial.number)
        if not is_trained(folder):
            continue
        rows = [row for row in rows if (row["loss"], row["number"]) != (loss, trial.number)]
        machine = json.loads((folder / "machine.json").read_text())
        accuracy = {
            record["epoch"]: record["accuracy"]
            for record in RunFolder(folder).records()
            if record["kind"] == "evaluation"
        }
        evaluations = [[epoch, accuracy[epoch]] for epoch in EVALUATED]
        about = {"loss": loss, "number": trial.number, "commit": machine["commit"]}
        rows.append({**about, "evaluations": evaluations})
    if machine is not None:
        rows.sort(key=lambda row: (LOSSES.index(row["loss"]), row["number"]))
        write_results(SWEEPS / "pruned.json", "pruned-trials", machine, rows)
    print(table())


def complete_trials(loss: str) -> list[Trial]:
    """Return the trials of a loss that were trained to the end, the best first.

    Args:
        loss: Name of the loss.
    """
    completed = {
        row["number"]: dict(row["evaluations"]) for row in _completed_rows() if row["loss"] == loss
    }
    trials = []
    for trial in _read(loss).trials:
        evaluations = completed.get(trial.number, dict(trial.evaluations))
        if trial.state == "complete" or trial.number in completed:
            value = evaluations[EPOCHS]
            was_pruned = trial.number in completed
            trials.append(Trial(value, dict(trial.settings), evaluations, was_pruned))
    return sorted(trials, key=lambda trial: -trial.value)


def chosen_settings(loss: str) -> list[str]:
    """Return the best settings of a loss, as values of ``--set`` for cifar100-strong-LOSS.

    Args:
        loss: Name of the loss.
    """
    return _as_overrides(complete_trials(loss)[0].settings)


def table() -> str:
    """Return the best trial of each loss as a row of a Markdown table."""
    lines = [
        "| loss | best validation accuracy | the next ones | trained to the end | learning rate "
        "| weight decay | temperature or smoothing | mixup | EMA |",
        "|---|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for loss in LOSSES:
        best, *others = complete_trials(loss)
        settings = best.settings
        own = settings.get("loss.temperature", settings.get("loss.label_smoothing"))
        cells = [
            f"{100 * best.value:.2f}%",
            ", ".join(f"{100 * trial.value:.2f}" for trial in others[:2]),
            f"{1 + len(others)} of {len(_read(loss).trials)}",
            f"{settings['optimizer.lr']:.2f}",
            f"{settings['optimizer.weight_decay']:.1e}",
            f"{own:.3f}",
            "no" if settings["augmentation.mixing"] is None else "yes",
            "no" if settings["training.ema_decay"] is None else "yes",
        ]
        lines.append(f"| {registry.LOSSES[loss].title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def source() -> str:
    """Return the line beneath the tables of sweeps."""
    machine = json.loads((SWEEPS / LOSSES[0] / "machine.json").read_text())
    num_validation = _read(LOSSES[0]).num_validation
    assert num_validation is not None
    error = math.sqrt(0.75 * 0.25 / num_validation)
    detail = f"several trials at a time; standard error of an accuracy {100 * error:.1f} points"
    commits = dict.fromkeys([machine["commit"], *(row["commit"] for row in _completed_rows())])
    return describe_machine(machine, detail, *commits)


def ranks_table() -> str:
    """Return how early evaluations order the trials of a loss, compared with the last one."""
    early = EVALUATED[:-1]
    titles = " | ".join(f"epoch {epoch}" for epoch in early)
    lines = [f"| loss | trials | {titles} |", "|---|---:|" + "---:|" * len(early)]
    for loss in LOSSES:
        trials = complete_trials(loss)
        last = [trial.value for trial in trials]
        cells = [
            f"{spearmanr([trial.evaluations[epoch] for trial in trials], last).statistic:.2f}"
            for epoch in early
        ]
        lines.append(f"| {registry.LOSSES[loss].title} | {len(trials)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _read(loss: str) -> SweepRecord:
    return read_sweep(SWEEPS / loss / "sweep.json")


def _pruned_trials() -> list[tuple[str, SweepTrial]]:
    return [
        (loss, trial) for loss in LOSSES for trial in _read(loss).trials if trial.state == "pruned"
    ]


def _completed_rows() -> list[dict[str, Any]]:
    path = SWEEPS / "pruned.json"
    return json.loads(path.read_text())["rows"] if path.exists() else []


def _as_overrides(settings: Mapping[str, Any]) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


def _run_name(loss: str, number: int) -> str:
    return f"trial-{loss}-{number}"


if __name__ == "__main__":
    main(__doc__, jobs, collect)
