"""The loop: a generator of records. Whoever runs it writes them down, shows them, or saves what they offer to save."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from protosphere.data.loaders import Feed, whole_batches
from protosphere.runs.checkpoints import Checkpoint
from protosphere.training.config import Settings
from protosphere.training.objective import Objective
from protosphere.training.schedules import Schedule
from protosphere.training.step import Steps

# No loss of a network that learns comes near: ln K for a guess, 2/τ beyond it for the normalized ones.
_EXPLODED = 1e5


class TrainingError(RuntimeError):
    """Training cannot go on; the sentence says why and where."""


class Progress(NamedTuple):
    """Where training stands.

    Attributes:
        step: how many are done.
        epoch: how many are done, counting a part as a part.
        loss: the mean over the epoch so far.
        rate: the learning rate of the last step.
        images_per_second: since the last record; at the end of an epoch, over the whole of it. What is done with the
            records does not count.
        at_epoch_end: whether an epoch has just ended.
        stopping: whether this is the last record because the loop was asked to stop.
        checkpoint: makes what resuming from here needs: weights and state.
        averaged: while it is entered, the objective has the moving average of its weights, if there is one.
    """

    step: int
    epoch: float
    loss: float
    rate: float
    images_per_second: float
    at_epoch_end: bool
    stopping: bool
    checkpoint: Callable[[], tuple[dict[str, Tensor], dict[str, Any]]]
    averaged: Callable[[], AbstractContextManager[None]]


def train(
    objective: Objective,
    feed: Feed,
    settings: Settings,
    *,
    resume: Checkpoint | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Progress]:
    """Train an objective.

    The order of samples depends on the seed and the epoch alone; all other random numbers on the seed and the step,
    since torch's generator of the device is seeded before each. So a run that is resumed goes on as if it had not
    stopped, bit for bit on a CPU.

    Args:
        objective: on the device of the feed.
        feed: the training images.
        settings: how to train.
        resume: where an earlier run of the same settings has come to.
        stop: asked after each step; when it says so, a last record is yielded and the loop ends.

    Yields:
        A record at the end of each epoch, and in between as often as the settings ask.

    Raises:
        TrainingError: the loss is no longer a number, or exploded; or the checkpoint is of something else.
    """
    per_epoch = whole_batches(len(feed), settings.batch)
    losses = torch.zeros(per_epoch, device=feed.device)
    first = 0
    steps = Steps(objective, feed, settings)
    if resume is not None:
        first = resume.step
        try:
            objective.load_state_dict(resume.weights)
            steps.restore(resume.state)
            losses[: first % per_epoch] = resume.state["losses"].to(feed.device)
            same = resume.state["samples"] == len(feed)
        except (RuntimeError, KeyError, ValueError, TypeError, AttributeError):
            same = False
        if not same:
            raise TrainingError(
                f"a checkpoint must be of this model, data and optimizer to go on from; that of step {first} is not"
            )
    objective.train()
    begun, since = time.perf_counter(), first
    spent, taken = 0.0, 0  # Of the epoch before the last record.
    for epoch in range(first // per_epoch, settings.schedule.epochs):
        start = max(0, first - epoch * per_epoch)
        batches = feed.batches(settings.batch, seed=settings.seed, epoch=epoch, first=start)
        for place, parts in enumerate(batches, start):
            step = epoch * per_epoch + place
            rate = settings.schedule.at(step, steps_per_epoch=per_epoch)
            losses[place] = steps.take(parts, step=step, rate=rate)
            done, end, stopping = step + 1, place + 1 == per_epoch, stop()
            if not (
                end or stopping or (settings.report_every and done % settings.report_every == 0)
            ):
                continue
            loss = _mean(losses[: place + 1].cpu(), done, per_epoch, settings.schedule)
            if end or stopping:
                _see_that_finite(objective.state_dict(), done, rate)
            seconds = time.perf_counter() - begun
            spent, taken = spent + seconds, taken + done - since
            speed = min(settings.batch, len(feed)) * (
                taken / spent if end else (done - since) / seconds
            )

            def checkpoint(
                seen: Tensor = losses[: 0 if end else place + 1],
            ) -> tuple[dict[str, Tensor], dict[str, Any]]:
                return objective.state_dict(), steps.state() | {
                    "losses": seen.cpu(),
                    "samples": len(feed),
                }

            averaged = nullcontext if steps.average is None else steps.average.applied
            yield Progress(
                done, done / per_epoch, loss, rate, speed, end, stopping, checkpoint, averaged
            )
            if stopping:
                return
            begun, since = time.perf_counter(), done
            spent, taken = (0.0, 0) if end else (spent, taken)


def _mean(losses: Tensor, done: int, per_epoch: int, schedule: Schedule) -> float:
    """The mean of an epoch's losses so far. Raises TrainingError where one of them is no loss."""
    wrong = torch.nonzero(~(losses.abs() < _EXPLODED)).flatten().tolist()
    if wrong:
        step = done - len(losses) + wrong[0] + 1
        rate = schedule.at(step - 1, steps_per_epoch=per_epoch)
        raise TrainingError(
            f"the loss must stay finite and below {_EXPLODED:.0g}; at step {step}, with a learning rate of {rate:.3g}, "
            f"it was {float(losses[wrong[0]]):.3g}"
        )
    return float(losses.mean())


def _see_that_finite(weights: dict[str, Tensor], done: int, rate: float) -> None:
    """Raise TrainingError where weights are no numbers: the next loss would show it, but they are to be saved now."""
    floating = {name: value for name, value in weights.items() if value.is_floating_point()}
    if bool(
        torch.isfinite(torch.nn.utils.get_total_norm(list(floating.values()), torch.inf))
    ):  # All at once.
        return
    for name, value in floating.items():
        if not bool(torch.isfinite(value).all()):
            where = f"after step {done}, with a learning rate of {rate:.3g}"
            raise TrainingError(f"weights must stay finite; {where}, those of {name} are not")
