"""The training loop, a generator of progress reports; the caller logs, evaluates and saves."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from protosphere.data.loaders import Loader, num_batches
from protosphere.parallel import find_shards
from protosphere.parallel.gradients import broadcast_state
from protosphere.parallel.launch import World
from protosphere.runs.checkpoints import Checkpoint
from protosphere.training.averaged_weights import AveragedWeights
from protosphere.training.config import TrainConfig
from protosphere.training.fsdp import (
    check_fsdp,
    divide_like,
    gather_state,
    own_part,
    shard_encoder,
)
from protosphere.training.graph_step import GraphStep
from protosphere.training.objective import Objective
from protosphere.training.parameter_groups import ParameterGroup
from protosphere.training.protocol import Step
from protosphere.training.schedules import Schedule
from protosphere.training.sharded_state import gather_checkpoint, select_checkpoint
from protosphere.training.step import EagerStep

# Far above any loss of a network that learns: ln K for a guess, at most 2/temperature more for
# normalized losses.
_MAX_LOSS = 1e5
# Below it, some thirty steps in a row were skipped because of gradients that are not finite.
_MIN_LOSS_SCALE = 1e-4


class TrainingError(RuntimeError):
    """Training cannot continue; the message says why and at which step."""


class Progress(NamedTuple):
    """A report of the training loop.

    Attributes:
        step: Number of steps done over the whole run.
        epoch: Number of epochs done, with a fraction inside an epoch.
        loss: Mean loss of the current epoch so far.
        lr: Learning rate of the last step.
        images_per_second: Throughput since the last report, or of the whole epoch at its end. Time
            that the caller spends between reports does not count.
        at_epoch_end: Whether an epoch has just ended.
        stopping: Whether this is the last report because ``should_stop`` returned True.
        checkpoint: Function that returns the weights and the state to resume from here. They share
            memory with the training run and must be saved before it continues. With ``fsdp``, a
            sharded head, a queue or a moving average, every process must call it; the first one
            gets all of them.
        ema_weights: Function that returns a context manager; while it is active, the objective has
            the moving average of its weights, if the run has one, and statistics of batch norm that
            were computed for it. Every process must enter it.
    """

    step: int
    epoch: float
    loss: float
    lr: float
    images_per_second: float
    at_epoch_end: bool
    stopping: bool
    checkpoint: Callable[[], tuple[dict[str, Tensor], dict[str, Any]]]
    ema_weights: Callable[[], AbstractContextManager[None]]


def train(
    objective: Objective,
    loader: Loader,
    config: TrainConfig,
    *,
    resume: Checkpoint | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    world: World | None = None,
) -> Iterator[Progress]:
    """Train an objective.

    The order of samples depends on the seed and the epoch only, and all other random numbers on the
    seed and the step, because the generator of the device is seeded before each step. A resumed run
    therefore continues as if it had not been interrupted, bit for bit on a CPU.

    Of several processes, each takes its part of every batch; the batches are those of one process.
    The loss must be computed over the group of the processes. Every process must iterate.

    Args:
        objective: Module to train, on the device of the loader.
        loader: Loader of the training images.
        config: Settings of the run.
        resume: Checkpoint to resume from, of any number of processes.
        should_stop: Called after each step; if it returns True on any process, the loop yields a
            last report and ends.
        world: The processes that train together; None for this one alone.

    Yields:
        A report at the end of each epoch, and every ``config.report_every`` steps.

    Raises:
        TrainingError: The loss or a weight is not finite or the loss exploded; or the checkpoint is
            of another model, dataset, batch size, optimizer or other parameter groups.
        TypeError: ``loader`` is not a :class:`~protosphere.data.loaders.Loader`.
        ValueError: The parameter groups do not fit the objective; or there are more processes than
            samples in a batch; or the objective or the optimizer does not go with ``fsdp``.
    """
    if not isinstance(loader, Loader):
        raise TypeError(
            "loader must be a Loader of protosphere.data, such as FeatureLoader(features, labels) "
            f"or MemoryLoader(images, augmentation), got {type(loader).__name__}"
        )
    world = World() if world is None else world
    _check_world(world, config, len(loader))
    steps_per_epoch = num_batches(len(loader), config.batch_size)
    losses = torch.zeros(steps_per_epoch, device=loader.device)
    fsdp_group = world.group if config.fsdp else None
    if fsdp_group is not None:
        check_fsdp(objective, config)
    broadcast_state(objective, world.group)
    if fsdp_group is not None:
        shard_encoder(objective.encoder, fsdp_group, device=loader.device)
    take_step = _create_step(objective, loader, config, world)
    first_step = 0
    if resume is not None:
        first_step = resume.step
        losses_so_far = losses[: first_step % steps_per_epoch]
        _restore(resume, objective, take_step, losses_so_far, config, len(loader))
    average = AveragedWeights(objective, take_step, loader, config, world)
    objective.train()
    samples_per_step = min(config.batch_size, len(loader))
    throughput = _Throughput(first_step)
    for epoch in range(first_step // steps_per_epoch, config.schedule.epochs):
        first = max(0, first_step - epoch * steps_per_epoch)
        batches = loader.batches(
            config.batch_size, seed=config.seed, epoch=epoch, first=first, shard=world.shard
        )
        for index, batch in enumerate(batches, first):
            step = epoch * steps_per_epoch + index
            lr = config.schedule.at_step(step, steps_per_epoch=steps_per_epoch)
            losses[index] = take_step(batch, step=step, lr=lr)
            done, at_end = step + 1, index + 1 == steps_per_epoch
            stopping = world.any(should_stop())
            is_due = config.report_every is not None and done % config.report_every == 0
            if not (at_end or stopping or is_due):
                continue
            loss = _mean_loss(losses[: index + 1].cpu(), done, steps_per_epoch, config.schedule)
            _check_loss_scale(take_step.loss_scale, done)
            if at_end or stopping:
                _check_finite(objective.state_dict(), done, lr, world)
            speed = throughput.measure(done, whole_epoch=at_end) * samples_per_step

            is_interrupted = stopping and not at_end

            def checkpoint(
                losses_so_far: Tensor = losses[: 0 if at_end else index + 1],
                done: int = done,
                is_interrupted: bool = is_interrupted,
            ) -> tuple[dict[str, Tensor], dict[str, Any]]:
                average.refresh(done, is_interrupted)
                weights, state = gather_checkpoint(
                    objective.state_dict(), take_step.state_dict(), find_shards(objective)
                )
                if fsdp_group is not None:
                    weights, state = gather_state([weights, state], keep=world.is_first) or ({}, {})
                return weights, state | {
                    "losses": losses_so_far.cpu(),
                    "num_samples": len(loader),
                    "batch_size": config.batch_size,
                }

            yield Progress(
                done,
                done / steps_per_epoch,
                loss,
                lr,
                speed,
                at_end,
                stopping,
                checkpoint,
                partial(average.applied, done, is_interrupted),
            )
            if stopping:
                return
            throughput.restart()


class _Throughput:
    """Measures steps per second, of single intervals and of whole epochs."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._start = time.perf_counter()
        self._epoch_steps, self._epoch_seconds = 0, 0.0

    def measure(self, step: int, *, whole_epoch: bool) -> float:
        """Return the steps per second since the last interval, or of the epoch that ends now."""
        steps, seconds = step - self._step, time.perf_counter() - self._start
        self._step = step
        self._epoch_steps += steps
        self._epoch_seconds += seconds
        if not whole_epoch:
            return steps / seconds
        speed = self._epoch_steps / self._epoch_seconds
        self._epoch_steps, self._epoch_seconds = 0, 0.0
        return speed

    def restart(self) -> None:
        """Start the next interval now."""
        self._start = time.perf_counter()


def _check_world(world: World, config: TrainConfig, num_samples: int) -> None:
    in_batch = min(config.batch_size, num_samples)
    if in_batch < world.size:
        raise ValueError(
            f"a batch must have a sample for each of the {world.size} processes, got {in_batch}"
        )


def _create_step(objective: Objective, loader: Loader, config: TrainConfig, world: World) -> Step:
    # A captured graph has no exchange between processes, and cannot draw the random numbers of a
    # piece a second time.
    is_capturable = loader.device.type == "cuda" and world.group is None
    if config.compile and is_capturable and config.micro_batch_size is None:
        return GraphStep(objective, loader, config)
    return EagerStep(objective, loader, config, world=world)


def _restore(
    checkpoint: Checkpoint,
    objective: Objective,
    take_step: Step,
    losses: Tensor,
    config: TrainConfig,
    num_samples: int,
) -> None:
    """Load a checkpoint. Raises TrainingError if it is not of this run."""
    expected = {
        "num_samples": num_samples,
        "batch_size": config.batch_size,
        "optimizer_name": config.optimizer.name,
    }
    for name, value in expected.items():
        if name not in checkpoint.state:
            raise TrainingError(
                f"the checkpoint of step {checkpoint.step} must say its {name}; it was saved by "
                "another version"
            )
        if checkpoint.state[name] != value:
            raise TrainingError(
                f"{name} must be {checkpoint.state[name]} as in the checkpoint of step "
                f"{checkpoint.step}, got {value}"
            )
    if ("ema" in checkpoint.state) != (config.ema_decay is not None):
        raise TrainingError(
            f"the checkpoint of step {checkpoint.step} must have an average of the weights if and "
            "only if ema_decay is given"
        )
    _check_state(checkpoint, take_step, objective)
    try:
        checkpoint = select_checkpoint(checkpoint, find_shards(objective))
        objective.load_state_dict(divide_like(checkpoint.weights, objective.state_dict()))
        take_step.load_state_dict(checkpoint.state)
        losses.copy_(checkpoint.state["losses"])
    except (RuntimeError, KeyError, ValueError, TypeError, AttributeError):
        raise TrainingError(
            f"the checkpoint of step {checkpoint.step} does not fit this model"
        ) from None


def _check_state(checkpoint: Checkpoint, take_step: Step, objective: Objective) -> None:
    """Raise TrainingError if the state is of other parameter groups or another precision."""
    # Earlier versions had one group of all parameters.
    names = [name for name, _ in objective.named_parameters()]
    single = [ParameterGroup(names, [], 1.0, has_weight_decay=True).description()]
    own = take_step.state_dict()
    if checkpoint.state.setdefault("parameter_groups", single) != own["parameter_groups"]:
        raise TrainingError(
            f"frozen parts and parameter groups must be as in the checkpoint of step "
            f"{checkpoint.step}"
        )
    if ("loss_scale" in checkpoint.state) != ("loss_scale" in own):
        raise TrainingError(
            f"the checkpoint of step {checkpoint.step} must have a loss scale if and only if "
            "precision is fp16"
        )


def _check_loss_scale(loss_scale: float | None, done: int) -> None:
    """Raise TrainingError if the loss scale of float16 has fallen too far."""
    if loss_scale is not None and loss_scale < _MIN_LOSS_SCALE:
        raise TrainingError(
            f"gradients must be finite, but in fp16 they are not even with a loss scale of "
            f"{loss_scale:.1g} at step {done}; use bf16 or fp32"
        )


def _mean_loss(losses: Tensor, done: int, steps_per_epoch: int, schedule: Schedule) -> float:
    """Return the mean of the losses of an epoch so far. Raises TrainingError if one exploded."""
    exploded = torch.nonzero(~(losses.abs() < _MAX_LOSS)).flatten().tolist()
    if exploded:
        step = done - len(losses) + exploded[0] + 1
        lr = schedule.at_step(step - 1, steps_per_epoch=steps_per_epoch)
        raise TrainingError(
            f"the loss must be finite and below {_MAX_LOSS:.0g}, got "
            f"{float(losses[exploded[0]]):.3g} at step {step} with a learning rate of {lr:.3g}"
        )
    return float(losses.mean())


def _check_finite(weights: dict[str, Tensor], done: int, lr: float, world: World) -> None:
    """Raise TrainingError if a weight is not finite, since the weights may be saved now."""
    floating = {name: own_part(w) for name, w in weights.items() if w.is_floating_point()}
    # A process may have no part of a small weight, and nothing has no largest element.
    parts = [part for part in floating.values() if part.numel()]
    largest = torch.nn.utils.get_total_norm(parts, torch.inf)
    # One transfer from the device instead of one per weight.
    if not world.any(not bool(torch.isfinite(largest))):
        return
    bad = [name for name, value in floating.items() if not bool(torch.isfinite(value).all())]
    raise TrainingError(
        f"weights must be finite, but {bad[0] if bad else 'a part on another process'} is not "
        f"after step {done} with a learning rate of {lr:.3g}"
    )
