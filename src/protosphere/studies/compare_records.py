"""Runs of a comparison on disk: whether they are complete, their values, and whether they match."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protosphere.recipes.loading import read_run_recipe
from protosphere.recipes.monitor import find_best, is_patience_exhausted
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.checkpoints import last_step
from protosphere.runs.comparison import ComparedRun, FailedRun
from protosphere.runs.metadata import DataMetadata, read_class_names
from protosphere.studies.compare_plan import ComparisonPlan, PlannedRun, RunKey

# Entries of an evaluation record that are no metrics.
_NO_METRICS = ("kind", "step", "epoch", "split")


@dataclass(frozen=True)
class RunResult:
    """A complete run.

    Attributes:
        run: Its values.
        data: What it has recorded about its data.
        class_names: Class names, in the order of the class indices.
        machine: Machine, versions and commit that it was trained with; None if not recorded.
    """

    run: ComparedRun
    data: DataMetadata
    class_names: tuple[str, ...]
    machine: dict[str, Any] | None


# Runs that are complete or have failed.
Outcomes = dict[RunKey, RunResult | FailedRun]


def is_complete(path: Path) -> bool:
    """Return whether a run has its last evaluation, and has saved the weights of it.

    A run without any checkpoint counts too: records may be all that was kept of it.

    Args:
        path: The run folder.

    Raises:
        RunFolderError: The recipe of the run cannot be read.
    """
    folder = RunFolder(path)
    last = folder.last_evaluation() if folder.recipe.exists() else None
    if last is None or not _has_ended(folder):
        return False
    return not folder.checkpoints.exists() or last_step(folder.checkpoints) == last["step"]


def _has_ended(folder: RunFolder) -> bool:
    """Whether the last epoch was evaluated, or the run has stopped early."""
    recipe, last = read_run_recipe(folder), folder.last_evaluation()
    if last is None:
        return False
    is_early = is_patience_exhausted(recipe.checkpoint, folder.records())
    return is_early or bool(last["epoch"] == recipe.schedule.epochs)


def read_result(run: PlannedRun, out: Path) -> RunResult:
    """Read the last evaluation of a complete run, or the best one if it monitors a metric.

    Args:
        run: The run.
        out: Folder of the comparison.

    Raises:
        RunFolderError: The run is not complete, or a file is missing or damaged.
    """
    folder = RunFolder(run.folder)
    recipe, records = read_run_recipe(folder), folder.records()
    if not _has_ended(folder):
        done = records[-1].get("epoch", 0) if records else 0
        raise RunFolderError(f"it has {done} of {recipe.schedule.epochs} epochs")
    evaluations = [record for record in records if record.get("kind") == "evaluation"]
    best = find_best(recipe.checkpoint, records)
    step = evaluations[-1]["step"] if best is None else best.step
    (record,) = [record for record in evaluations if record["step"] == step]
    values = {
        name: float(value)
        for name, value in record.items()
        if name not in _NO_METRICS and isinstance(value, int | float) and math.isfinite(value)
    }
    has_machine = (folder.path / "machine.json").exists()
    return RunResult(
        ComparedRun(
            run.method,
            run.recipe.seed,
            _relative(run.folder, out),
            record["step"],
            record["epoch"],
            values,
        ),
        DataMetadata.read(folder),
        tuple(read_class_names(folder)),
        folder.read_json("machine.json") if has_machine else None,
    )


def failed_run(run: PlannedRun, out: Path, error: str) -> FailedRun:
    """Return the record of a run without a result.

    Args:
        run: The run.
        out: Folder of the comparison.
        error: Why it has no result.
    """
    return FailedRun(run.method, run.recipe.seed, _relative(run.folder, out), error)


def _relative(folder: Path, out: Path) -> str:
    """Return a path relative to the comparison if it is inside: folders may be moved together."""
    path, root = folder.resolve(), out.resolve()
    return (path.relative_to(root) if path.is_relative_to(root) else folder).as_posix()


def check_same_data(plan: ComparisonPlan, outcomes: Outcomes) -> None:
    """Check that runs have the same classes and split, and runs of one seed the same images.

    The validation images of a recipe may depend on its seed.

    Args:
        plan: The runs.
        outcomes: What is known of them.

    Raises:
        RunFolderError: Two runs have different data.
    """
    first: dict[int | None, tuple[Path, RunResult]] = {}
    for run in plan.runs:
        result = outcomes.get(run.key)
        if not isinstance(result, RunResult):
            continue
        for seed in (None, run.recipe.seed):
            folder, other = first.setdefault(seed, (run.folder, result))
            if what := _find_difference(other, result, same_seed=seed is not None):
                raise RunFolderError(
                    f"compared runs must have the same data; {folder} and {run.folder} have "
                    f"different {what}"
                )


def _find_difference(one: RunResult, other: RunResult, *, same_seed: bool) -> str | None:
    if one.class_names != other.class_names:
        return "classes"
    if one.data.split != other.data.split:
        return f"splits ({one.data.split} and {other.data.split} images)"
    if same_seed and one.data.train_fingerprint != other.data.train_fingerprint:
        return "training images"
    if same_seed and one.data.eval_fingerprint != other.data.eval_fingerprint:
        return f"{one.data.split} images"
    return None
