"""The training step against optimizers written out by hand."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from protosphere.classifiers.protocol import Head
from protosphere.data.augmentation import AugmentationPolicy
from protosphere.data.loaders import MemoryLoader, derive_seed
from protosphere.data.mixing import Mixup
from protosphere.training import SGD, AdamW, Schedule, TrainConfig, train
from protosphere.training.step import EagerStep
from support.training import (
    PLAIN_POLICY,
    RANDOM_POLICY,
    RecordingLoader,
    linear_objective,
    memory_loader,
    small_loss,
    small_objective,
    small_split,
)

WEIGHTS = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
PLAIN_SGD = SGD(momentum=0.0, weight_decay=0.0)


def _trained_weights(config: TrainConfig) -> list[Tensor]:
    """The weights after each epoch of one step with a gradient of 1/2."""
    objective = linear_objective(WEIGHTS)
    assert isinstance(objective.encoder, nn.Linear)
    weights = []
    for _ in train(objective, RecordingLoader(num_samples=4), config):
        weights.append(objective.encoder.weight.detach().clone())
    return weights


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_sgd_follows_its_formula(momentum: float, weight_decay: float) -> None:
    optimizer = SGD(momentum=momentum, weight_decay=weight_decay)
    config = TrainConfig(Schedule(0.2, 5, "constant"), 4, optimizer=optimizer)
    weights, velocity = WEIGHTS.double(), torch.zeros(2, 2, dtype=torch.float64)
    for trained in _trained_weights(config):
        velocity = momentum * velocity + 0.5 + weight_decay * weights
        weights = weights - 0.2 * velocity
        torch.testing.assert_close(trained.double(), weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.7)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("epsilon", [1e-8])
def test_adamw_follows_its_formula(
    betas: tuple[float, float], weight_decay: float, epsilon: float
) -> None:
    """The gradient is 1/2 for two steps and -1/4 from then on, so that the averages matter."""
    optimizer = AdamW(betas=betas, weight_decay=weight_decay)
    config = TrainConfig(Schedule(0.2, 6, "constant"), 4, optimizer=optimizer)
    objective = linear_objective(WEIGHTS)
    assert isinstance(objective.encoder, nn.Linear)
    gradients = [0.5, 0.5, -0.25, -0.25, -0.25, -0.25]
    factors = iter([2 * gradient for gradient in gradients])
    objective.loss = lambda features, head, labels: features.mean() * next(factors)
    weights = WEIGHTS.double()
    first = second = 0.0
    for step, _ in enumerate(train(objective, RecordingLoader(num_samples=4), config), 1):
        gradient = gradients[step - 1]
        first = betas[0] * first + (1 - betas[0]) * gradient
        second = betas[1] * second + (1 - betas[1]) * gradient**2
        direction = (first / (1 - betas[0] ** step)) / (
            (second / (1 - betas[1] ** step)) ** 0.5 + epsilon
        )
        weights = weights - 0.2 * weight_decay * weights - 0.2 * direction
        trained = objective.encoder.weight.detach().double()
        torch.testing.assert_close(trained, weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(0.2, 6, min_lr_ratio=0.5),
        Schedule(0.2, 6, min_lr_ratio=0.0, warmup_epochs=2, warmup_lr=0.05),
        Schedule(0.2, 6, "multistep", milestones=(2, 4), gamma=0.3),
        Schedule(0.2, 6, "constant"),
    ],
    ids=["cosine", "warmup", "multistep", "constant"],
)
def test_each_step_uses_the_learning_rate_of_the_schedule(schedule: Schedule) -> None:
    config = TrainConfig(schedule, 4, optimizer=PLAIN_SGD)
    weights = [WEIGHTS, *_trained_weights(config)]
    for epoch, (before, after) in enumerate(itertools.pairwise(weights)):
        expected = schedule.at_step(epoch, steps_per_epoch=1) * 0.5
        torch.testing.assert_close(before - after, torch.full((2, 2), expected))


@pytest.mark.parametrize("grad_clip", [1e-3, 1e-2])
def test_the_norm_of_the_gradient_is_clipped(grad_clip: float) -> None:
    """A step of plain SGD moves the weights by the learning rate times the clipped norm."""
    objective = small_objective()
    before = nn.utils.parameters_to_vector(objective.parameters()).detach().clone()
    config = TrainConfig(Schedule(0.5, 1), 512, optimizer=PLAIN_SGD, grad_clip=grad_clip)
    list(train(objective, memory_loader(small_split()), config))
    after = nn.utils.parameters_to_vector(objective.parameters()).detach()
    assert (after - before).norm() == pytest.approx(0.5 * grad_clip, rel=1e-3)


def test_a_gradient_below_the_limit_is_not_clipped() -> None:
    config = TrainConfig(Schedule(0.2, 2, "constant"), 4, optimizer=PLAIN_SGD)
    clipped = _trained_weights(dataclasses.replace(config, grad_clip=100.0))
    assert all(map(torch.equal, clipped, _trained_weights(config)))


@pytest.mark.parametrize("optimizer", [SGD(weight_decay=0.1), AdamW(weight_decay=0.1)], ids=str)
def test_weights_decay_without_a_gradient(optimizer: SGD | AdamW) -> None:
    """A step shrinks weights that the loss does not depend on by lr times weight_decay."""
    objective = linear_objective(WEIGHTS)
    objective.loss = lambda features, head, labels: features.mean() * 0
    config = TrainConfig(Schedule(0.5, 1), 4, optimizer=optimizer)
    list(train(objective, RecordingLoader(num_samples=4), config))
    assert isinstance(objective.encoder, nn.Linear)
    torch.testing.assert_close(objective.encoder.weight.detach(), 0.95 * WEIGHTS)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)]
)
def test_only_the_encoder_computes_in_half_precision(
    precision: Literal["fp32", "bf16"], dtype: torch.dtype
) -> None:
    dtypes: dict[str, torch.dtype] = {}

    def loss(features: Tensor, head: Head, labels: Tensor) -> Tensor:
        value = small_loss(features, head, labels)
        dtypes.update(features=features.dtype, loss=value.dtype)
        return value

    objective = small_objective()
    objective.loss = loss
    config = TrainConfig(Schedule(0.1, 1), 512, precision=precision)
    list(train(objective, memory_loader(small_split()), config))
    assert dtypes == {"features": dtype, "loss": torch.float32}


class OrderedLoader(MemoryLoader):
    """One batch of all samples in their own order, so that only the augmentation is random."""

    def batches(
        self,
        batch_size: int,
        *,
        seed: int,
        epoch: int,
        first: int = 0,
        shard: tuple[int, int] = (0, 1),
    ) -> Iterator[tuple[Tensor, ...]]:
        yield (torch.arange(len(self)),)


def _losses_without_learning(policy: AugmentationPolicy, *, seed: int) -> list[float]:
    schedule = Schedule(1e-12, 4, "constant")
    config = TrainConfig(schedule, 512, optimizer=PLAIN_SGD, seed=seed)
    loader = OrderedLoader(small_split(), memory_loader(small_split(), policy).augmentation)
    return [progress.loss for progress in train(small_objective(), loader, config)]


def test_each_step_draws_new_random_numbers() -> None:
    assert len(set(_losses_without_learning(RANDOM_POLICY, seed=1))) == 4
    assert len(set(_losses_without_learning(PLAIN_POLICY, seed=1))) == 1


def test_the_seed_determines_the_augmentation() -> None:
    first, second, other = (
        _losses_without_learning(RANDOM_POLICY, seed=seed) for seed in (1, 1, 2)
    )
    assert first == second
    assert not set(first) & set(other)


def test_a_step_seeds_the_generator_of_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch.mps, "manual_seed", seeds.append)
    config = TrainConfig(Schedule(0.1, 1), 16, seed=3)
    step = EagerStep(small_objective(), memory_loader(small_split()), config)
    step.device = torch.device("mps")
    step.prepare(step=5, lr=0.1)
    assert seeds[-1] == derive_seed("step", 3, 5)


@pytest.mark.parametrize("decay", [0.5, 0.7])
def test_the_average_of_the_weights_follows_the_steps(decay: float) -> None:
    config = TrainConfig(Schedule(0.1, 12, "constant"), 4, ema_decay=decay)
    objective = linear_objective(WEIGHTS)
    assert isinstance(objective.encoder, nn.Linear)
    expected = WEIGHTS.double()
    for step, progress in enumerate(train(objective, RecordingLoader(num_samples=4), config)):
        weights = objective.encoder.weight.detach().double()
        d = min(decay, (1 + step) / (10 + step))
        expected = d * expected + (1 - d) * weights
        average = progress.checkpoint()[1]["ema"]["encoder.weight"].double()
        torch.testing.assert_close(average, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("optimizer", "lr", "tolerance"), [(SGD(), 0.1, 1e-4), (AdamW(), 1e-3, 1e-3)], ids=str
)
def test_a_compiled_step_is_the_eager_one(
    optimizer: SGD | AdamW, lr: float, tolerance: float
) -> None:
    """On the CPU, with mixed images; AdamW magnifies the rounding of small gradients."""
    loader = memory_loader(small_split(), PLAIN_POLICY)
    config = TrainConfig(
        Schedule(lr, 3),
        16,
        optimizer=optimizer,
        mixing=Mixup(),
        ema_decay=0.9,
        grad_clip=1.0,
        report_every=2,
    )
    eager = [progress.loss for progress in train(small_objective(), loader, config)]
    config = dataclasses.replace(config, compile=True)
    # Compiled code then draws the random numbers of the mixing as torch does.
    with torch._inductor.config.patch(fallback_random=True):
        compiled = [progress.loss for progress in train(small_objective(), loader, config)]
    assert compiled == pytest.approx(eager, rel=1e-3, abs=tolerance)
