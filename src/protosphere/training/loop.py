"""The loop: a generator of records. Whoever runs it writes them down, shows them, or saves what they offer to save."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from protosphere.data.pipeline import Augmentation
from protosphere.data.sources import ImageSet
from protosphere.runs.checkpoints import Checkpoint
from protosphere.training.objective import Objective
from protosphere.training.schedules import Schedule


class TrainingError(RuntimeError):
    """Training cannot go on; the sentence says why and where."""


@dataclass(frozen=True)
class Settings:
    """How to train.

    Attributes:
        schedule: of the learning rate; it also says how many epochs.
        batch: samples a step; the rest of an epoch that does not fill one is left out, another rest each time.
        optimizer: which.
        momentum: of SGD.
        weight_decay: on all parameters.
        clip: the length beyond which the gradient is shortened; None leaves it.
        precision: of the encoder's arithmetic; losses keep float32 in any case.
        seed: of the order of samples and of their augmentation.
        report_every: steps between records, besides one at the end of each epoch; None for no others.
    """

    schedule: Schedule
    batch: int
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: float = 0.9
    weight_decay: float = 1e-4
    clip: float | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    seed: int = 42
    report_every: int | None = None


class Progress(NamedTuple):
    """Where training stands.

    Attributes:
        step: how many are done.
        epoch: how many are done, counting a part as a part.
        loss: the mean since the last record.
        rate: the learning rate of the last step.
        images_per_second: since the last record.
        at_epoch_end: whether an epoch has just ended.
        checkpoint: makes what resuming from here needs: weights and state.
    """

    step: int
    epoch: float
    loss: float
    rate: float
    images_per_second: float
    at_epoch_end: bool
    checkpoint: Callable[[], tuple[dict[str, Tensor], dict[str, Any]]]


@dataclass
class _Since:
    """What has happened since the last record."""

    losses: list[Tensor] = field(default_factory=list)
    start: float = field(default_factory=time.perf_counter)


def steps_per_epoch(data: ImageSet, settings: Settings) -> int:
    """Whole batches in an epoch; a set smaller than a batch is one batch."""
    return max(1, len(data) // settings.batch)


def train(
    objective: Objective,
    data: ImageSet,
    augmentation: Augmentation,
    settings: Settings,
    *,
    resume: Checkpoint | None = None,
) -> Iterator[Progress]:
    """Train an objective on images that are in memory, where they are.

    The order of samples depends on the seed and the epoch alone, their augmentation on the seed and the step: a run
    that is resumed goes on as if it had not stopped, bit for bit on a CPU.

    Args:
        objective: on the device of the data.
        data: the training images.
        augmentation: what is done to them.
        settings: how to train.
        resume: where an earlier run of the same settings has come to.

    Yields:
        A record at the end of each epoch, and in between as often as the settings ask.

    Raises:
        TrainingError: the loss is no longer a number.
    """
    optimizer = _optimizer(objective, settings)
    first = 0
    if resume is not None:
        objective.load_state_dict(resume.weights)
        optimizer.load_state_dict(resume.state["optimizer"])
        first = resume.step
    device = data.images.device
    batch, per_epoch = min(settings.batch, len(data)), steps_per_epoch(data, settings)
    generator = torch.Generator(device)
    objective.train()
    order = torch.empty(0, dtype=torch.long)
    since = _Since()
    for step in range(first, settings.schedule.epochs * per_epoch):
        place = step % per_epoch
        if place == 0 or not len(order):
            order = _order(len(data), settings.seed, step // per_epoch).to(device)
        chosen = order[place * batch : (place + 1) * batch]
        rate = settings.schedule.at(step, steps_per_epoch=per_epoch)
        generator.manual_seed(settings.seed * 1_000_003 + step)
        since.losses.append(_step(objective, optimizer, data, augmentation, settings, chosen, rate, generator))
        done = step + 1
        end = done % per_epoch == 0
        if end or (settings.report_every and done % settings.report_every == 0):
            loss = float(torch.stack(since.losses).mean())
            if not abs(loss) < float("inf"):
                raise TrainingError(
                    f"the loss must stay finite; by step {done}, with a learning rate of {rate:.3g}, it was {loss}"
                )
            speed = len(since.losses) * batch / (time.perf_counter() - since.start)

            def checkpoint() -> tuple[dict[str, Tensor], dict[str, Any]]:
                return objective.state_dict(), {"optimizer": optimizer.state_dict()}

            yield Progress(done, done / per_epoch, loss, rate, speed, end, checkpoint)
            since = _Since()


def _optimizer(objective: Objective, settings: Settings) -> torch.optim.Optimizer:
    rate = settings.schedule.at_epoch(0)
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            objective.parameters(), rate, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(objective.parameters(), rate, weight_decay=settings.weight_decay)
    raise ValueError(f"an optimizer is 'sgd' or 'adamw'; got {settings.optimizer!r}")


def _order(samples: int, seed: int, epoch: int) -> Tensor:
    """The order of an epoch: on the CPU, so that it is the same wherever training runs."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


def _step(
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    data: ImageSet,
    augmentation: Augmentation,
    settings: Settings,
    chosen: Tensor,
    rate: float,
    generator: torch.Generator,
) -> Tensor:
    images = augmentation(data.images[chosen], generator)
    for group in optimizer.param_groups:
        group["lr"] = rate
    with torch.autocast(images.device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"):
        loss: Tensor = objective(images, data.labels[chosen])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if settings.clip is not None:
        torch.nn.utils.clip_grad_norm_(objective.parameters(), settings.clip)
    optimizer.step()
    return loss.detach()
