"""What a run does at each report of the training loop: log, record an evaluation, save."""

from typing import NamedTuple

import torch

from protosphere.classifiers.protocol import FittedHead
from protosphere.evaluation import Evaluation
from protosphere.parallel.launch import World
from protosphere.recipes.monitor import BestEvaluation, find_best, is_patience_exhausted
from protosphere.recipes.schema import Recipe
from protosphere.runs import RunFolder
from protosphere.runs.arrays import discard_best_arrays, keep_best_arrays, write_arrays
from protosphere.runs.checkpoints import save_checkpoint
from protosphere.training import Objective, Progress


class Outcome(NamedTuple):
    """What the first process tells the others after a report.

    Attributes:
        metrics: Metrics of the evaluation, or None if there was none.
        best: The best evaluation so far, if the recipe monitors a metric.
        saves: Whether a checkpoint is due.
        stop: Whether the run ends because the monitored metric has stopped improving.
    """

    metrics: dict[str, float] | None
    best: BestEvaluation | None
    saves: bool
    stop: bool


def is_evaluated(recipe: Recipe, progress: Progress) -> bool:
    """Return whether the weights are evaluated at a report.

    Args:
        recipe: The recipe.
        progress: The report.
    """
    epoch, last = round(progress.epoch), recipe.schedule.epochs
    return progress.at_epoch_end and (epoch == last or epoch % recipe.evaluation.every == 0)


def log_training(folder: RunFolder, progress: Progress, device: torch.device) -> None:
    """Write the record of an epoch of training.

    Args:
        folder: The run folder.
        progress: The report at the end of the epoch.
        device: Device that trains.
    """
    folder.log(
        {
            "kind": "train",
            "step": progress.step,
            "epoch": round(progress.epoch),
            "loss": progress.loss,
            "lr": progress.lr,
            "images_per_second": round(progress.images_per_second, 1),
            **_gpu_memory(device),
        }
    )


def record(
    recipe: Recipe, folder: RunFolder, progress: Progress, evaluation: Evaluation | None
) -> Outcome:
    """Write the record of an evaluation, and decide what follows from it.

    Args:
        recipe: The recipe.
        folder: The run folder.
        progress: The report.
        evaluation: The evaluation of the weights, if there is one.
    """
    epoch, last = round(progress.epoch), recipe.schedule.epochs
    metrics = None
    if evaluation is not None:
        metrics = evaluation.metrics
        if recipe.checkpoint.monitor is not None:
            best_before = find_best(recipe.checkpoint, folder.records())
            if best_before is not None:
                keep_best_arrays(folder, best_before.step)
        write_arrays(folder, evaluation.arrays, step=progress.step)
        entry = {"kind": "evaluation", "step": progress.step, "epoch": epoch}
        folder.log(entry | {"split": recipe.split} | metrics)
    is_last = progress.at_epoch_end and epoch == last
    due = is_last or (progress.at_epoch_end and epoch % recipe.checkpoint.every == 0)
    best, is_exhausted = None, False
    if recipe.checkpoint.monitor is not None:
        records = folder.records()
        best = find_best(recipe.checkpoint, records)
        is_new_best = best is not None and best.step == progress.step
        is_exhausted = is_patience_exhausted(recipe.checkpoint, records)
        due = due or is_new_best or is_exhausted
    stop = metrics is not None and not is_last and is_exhausted
    return Outcome(metrics, best, due or progress.stopping, stop)


def save(
    recipe: Recipe,
    folder: RunFolder,
    progress: Progress,
    objective: Objective,
    outcome: Outcome,
    world: World,
) -> None:
    """Save a checkpoint, after the records that it stands for; every process must call it.

    Args:
        recipe: The recipe.
        folder: The run folder, which only the first process uses.
        progress: The report.
        objective: The objective that is trained.
        outcome: What was recorded.
        world: The processes that train together.
    """
    if outcome.metrics is None and isinstance(objective.head, FittedHead):
        # The class means of an earlier evaluation are not those of these weights.
        with progress.ema_weights():
            objective.head.reset()
    weights, state = progress.checkpoint()
    best = None if outcome.best is None else outcome.best.step

    def save_on_first() -> None:
        keep = recipe.checkpoint.keep
        save_checkpoint(folder.checkpoints, progress.step, weights, state, keep=keep, best=best)
        if best == progress.step:
            discard_best_arrays(folder)

    world.from_first(save_on_first)


def _gpu_memory(device: torch.device) -> dict[str, float]:
    """Return the peak memory that the allocator reserved on a GPU."""
    if device.type != "cuda":
        return {}
    return {"gpu_gib": round(torch.cuda.max_memory_reserved(device) / 2**30, 2)}
