"""The monitored metric of a run: its best evaluation so far, and when to stop early."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from protosphere.recipes.schema.sections import CheckpointSettings
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.checkpoints import Checkpoint, last_step, load_checkpoint


class BestEvaluation(NamedTuple):
    """The best evaluation of a run.

    Attributes:
        step: Step at which it took place.
        value: Value of the monitored metric.
    """

    step: int
    value: float


def find_best(
    settings: CheckpointSettings, records: Iterable[Mapping[str, Any]]
) -> BestEvaluation | None:
    """Return the best evaluation, the first one of several equal ones.

    Everything follows from the records, so that a resumed run decides as an uninterrupted one.

    Args:
        settings: The metric to monitor; a loss is best where it is smallest.
        records: Records of the run, oldest first.

    Returns:
        The best evaluation; None if nothing is monitored or evaluated.

    >>> records = [{"kind": "evaluation", "step": 3, "accuracy": 0.5}]
    >>> find_best(CheckpointSettings(monitor="accuracy"), records)
    BestEvaluation(step=3, value=0.5)
    """
    best = None
    for evaluation in _evaluations(settings, records):
        if best is None or _is_better(settings, evaluation.value, best.value):
            best = evaluation
    return best


def load_best_checkpoint(folder: RunFolder, settings: CheckpointSettings) -> Checkpoint | None:
    """Load the best checkpoint of a run, or the last one if there is no best one.

    Args:
        folder: The run folder.
        settings: The metric to monitor.

    Returns:
        The checkpoint; None if the run has none.

    Raises:
        RunFolderError: The checkpoint is damaged.
    """
    best = find_saved_best(folder, settings)
    return load_checkpoint(folder.checkpoints, step=None if best is None else best.step)


def load_chosen_checkpoint(
    folder: RunFolder, settings: CheckpointSettings, which: Literal["best", "last"] | None
) -> Checkpoint:
    """Load the best checkpoint of a run or the last one.

    Args:
        folder: The run folder.
        settings: The metric to monitor.
        which: Which checkpoint; None takes the best one if a metric is monitored.

    Returns:
        The checkpoint.

    Raises:
        ValueError: There is no such choice.
        RunFolderError: There is no such checkpoint, or it is damaged.
    """
    if which not in ("best", "last", None):
        raise ValueError(f"checkpoint must be best or last, got {which!r}")
    if which == "best" and settings.monitor is None:
        raise RunFolderError(f"{folder.path} has no best checkpoint: its recipe monitors nothing")
    best = None if which == "last" else find_saved_best(folder, settings)
    try:
        checkpoint = load_checkpoint(folder.checkpoints, step=None if best is None else best.step)
    except RunFolderError as error:
        if best is None:
            raise
        raise RunFolderError(
            f"the best checkpoint cannot be loaded: {error}; --checkpoint last takes the last one"
        ) from None
    if checkpoint is None:
        raise RunFolderError(f"{folder.path} has no checkpoint")
    return checkpoint


def find_saved_best(folder: RunFolder, settings: CheckpointSettings) -> BestEvaluation | None:
    """Return the best evaluation of a run whose weights were saved.

    An evaluation after the last checkpoint does not count: the process was killed before it saved
    the weights, and a resumed run will evaluate them again.

    Args:
        folder: The run folder.
        settings: The metric to monitor.

    Returns:
        The evaluation; None if nothing is monitored or evaluated.
    """
    last = last_step(folder.checkpoints) or 0
    return find_best(settings, [one for one in folder.records() if one.get("step", 0) <= last])


def find_epoch(step: int, records: Iterable[Mapping[str, Any]]) -> float | None:
    """Return how many epochs a run has trained after a step; None if it has no record yet.

    Args:
        step: The step.
        records: Records of the run. All epochs have as many steps.

    >>> find_epoch(5, [{"kind": "train", "step": 10, "epoch": 4}])
    2.0
    """
    for record in records:
        if record.get("step") and record.get("epoch"):
            return float(step * record["epoch"] / record["step"])
    return None


def is_patience_exhausted(
    settings: CheckpointSettings, records: Iterable[Mapping[str, Any]]
) -> bool:
    """Return whether as many evaluations as ``patience`` have brought no new best.

    Args:
        settings: The metric to monitor and the patience.
        records: Records of the run, oldest first.
    """
    records = list(records)
    best = find_best(settings, records)
    if settings.patience is None or best is None:
        return False
    since = [one for one in _evaluations(settings, records) if one.step > best.step]
    return len(since) >= settings.patience


def _evaluations(
    settings: CheckpointSettings, records: Iterable[Mapping[str, Any]]
) -> list[BestEvaluation]:
    if settings.monitor is None:
        return []
    return [
        BestEvaluation(int(record["step"]), float(record[settings.monitor]))
        for record in records
        if record.get("kind") == "evaluation" and settings.monitor in record
    ]


def _is_better(settings: CheckpointSettings, value: float, best: float) -> bool:
    if math.isnan(best) or math.isnan(value):
        return not math.isnan(value)
    return value < best if settings.monitor == "loss" else value > best
