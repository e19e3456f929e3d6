"""Float16 with loss scaling: torch's GradScaler is the reference."""

import dataclasses
import functools

import pytest
import torch
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier
from protosphere.classifiers.protocol import Head
from protosphere.training import (
    SGD,
    AdamW,
    Objective,
    Schedule,
    TrainConfig,
    TrainingError,
    train,
)
from protosphere.training.loss_scaling import LossScaler
from protosphere.training.step import EagerStep
from support.training import (
    PLAIN_POLICY,
    RecordingLoader,
    linear_objective,
    memory_loader,
    small_loss,
    small_split,
)

WEIGHTS = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
CONFIG = TrainConfig(Schedule(0.1, 3), batch_size=16, precision="fp16", report_every=1)


def _objective() -> Objective:
    """A network without convolutions, which a CPU does slowly in float16."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16))
    return Objective(encoder, CosineClassifier(16, 5), small_loss)


@pytest.mark.parametrize("growth_interval", [1, 2, 3])
def test_the_scale_is_that_of_torchs_scaler(growth_interval: int) -> None:
    options = {"init_scale": 64.0, "growth_interval": growth_interval, "growth_factor": 4.0}
    scaler = LossScaler("cpu", **options)  # type: ignore[arg-type]
    reference = torch.amp.GradScaler("cpu", **options)  # type: ignore[arg-type]
    layers = [nn.Linear(2, 1, bias=False) for _ in range(2)]
    optimizer = torch.optim.SGD(layers[1].parameters(), 0.0)
    bad = {2: torch.inf, 3: torch.nan, 6: -torch.inf}
    for step in range(12):
        scales: list[Tensor | None] = []
        for layer, scale in ((layers[0], scaler.scale), (layers[1], reference.scale)):
            layer.weight.grad = None
            scale(layer(torch.ones(1, 2)).sum() * bad.get(step, 1.0 + step)).backward()
            scales.append(layer.weight.grad)
        assert scales[0] is not None
        scaler.unscale([scales[0]])
        reference.unscale_(optimizer)
        assert bool(scaler.found_inf) == (step in bad)
        torch.testing.assert_close(scales[0], scales[1], equal_nan=True)
        scaler.update()
        reference.step(optimizer)
        reference.update()
        assert scaler.current == reference.get_scale()


def test_the_scale_stays_finite() -> None:
    scaler = LossScaler("cpu", init_scale=2.0**126, growth_interval=1)
    for _ in range(4):
        scaler.unscale([torch.zeros(1)])
        scaler.update()
    assert scaler.current == 2.0**127


def test_a_saved_scaler_is_loaded() -> None:
    scaler, loaded = (LossScaler("cpu", init_scale=8.0, growth_interval=3) for _ in range(2))
    for gradient in (torch.inf, 1.0, 1.0):
        scaler.unscale([torch.tensor([gradient])])
        scaler.update()
    assert scaler.state_dict() == {"scale": 4.0, "growth_tracker": 2}
    loaded.load_state_dict(scaler.state_dict())
    loaded.unscale([torch.tensor([1.0])])
    loaded.update()
    assert loaded.state_dict() == {"scale": 8.0, "growth_tracker": 0}


@pytest.mark.parametrize(
    "change",
    [{}, {"optimizer": AdamW()}, {"grad_clip": 0.1}, {"micro_batch_size": 8}, {"ema_decay": 0.9}],
    ids=str,
)
def test_training_in_float16_follows_float32(change: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a scale at which no gradient overflows: the first steps would be skipped."""
    scaler = functools.partial(LossScaler, init_scale=2.0**8)
    monkeypatch.setattr("protosphere.training.step.LossScaler", scaler)
    loader = memory_loader(small_split(), PLAIN_POLICY)
    config = dataclasses.replace(CONFIG, **({"schedule": Schedule(1e-2, 3)} | change))
    losses = [progress.loss for progress in train(_objective(), loader, config)]
    config = dataclasses.replace(config, precision="fp32")
    expected = [progress.loss for progress in train(_objective(), loader, config)]
    assert losses == pytest.approx(expected, rel=2e-2, abs=1e-3)
    assert losses != expected


def _overflowing(num_bad: int, limit: float) -> list[float]:
    """Train with gradients that overflow in the first steps; return the weights' shifts."""
    calls: list[int] = []

    class Overflow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, features: Tensor) -> Tensor:
            return features.clone()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            return gradient * (torch.inf if len(calls) <= num_bad else 1.0)

    def loss(features: Tensor, head: Head, labels: Tensor) -> Tensor:
        calls.append(len(labels))
        return Overflow.apply(features).float().mean()

    objective = linear_objective(WEIGHTS)
    objective.loss = loss
    assert isinstance(objective.encoder, nn.Linear)
    config = TrainConfig(
        Schedule(0.1, 4, "constant"),
        4,
        optimizer=SGD(momentum=0.0, weight_decay=0.0),
        precision="fp16",
        grad_clip=limit,
    )
    shifts, before = [], WEIGHTS
    for progress in train(objective, RecordingLoader(num_samples=4), config):
        weights = objective.encoder.weight.detach().clone()
        shifts.append(float((before - weights).norm()))
        before = weights
        state = progress.checkpoint()[1]["loss_scale"]
        assert state["scale"] == 2.0 ** (16 - min(num_bad, progress.step))
    return shifts


@pytest.mark.parametrize("num_bad", [0, 1, 2])
def test_steps_that_overflow_are_skipped(num_bad: int) -> None:
    """Without an error; the other steps are those of unscaled and clipped gradients (1/2 each)."""
    norm = (4 * 0.5**2) ** 0.5
    for limit, expected in ((10.0, 0.1 * norm), (0.3, 0.1 * 0.3)):
        shifts = _overflowing(num_bad, limit)
        assert shifts[:num_bad] == [0.0] * num_bad
        assert shifts[num_bad:] == pytest.approx([expected] * (4 - num_bad), rel=1e-3)


@pytest.mark.bad_input
def test_gradients_that_are_never_finite_end_the_run() -> None:
    objective = _objective()
    for parameter in objective.parameters():
        parameter.register_hook(lambda gradient: gradient * torch.inf)
    config = dataclasses.replace(CONFIG, schedule=Schedule(0.1, 10))
    loader = memory_loader(small_split())
    with pytest.raises(TrainingError, match=r"in fp16 .* loss scale of 6e-05 at step 30; use bf16"):
        list(train(objective, loader, config))


@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.0)], ids=str)
def test_a_step_for_a_graph_skips_without_asking_the_device(
    optimizer: SGD, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fused optimizer reads the tensor itself; the results are those of the eager step."""
    scaler = functools.partial(LossScaler, init_scale=2.0**24, growth_interval=2)
    monkeypatch.setattr("protosphere.training.step.LossScaler", scaler)
    loader = memory_loader(small_split(), PLAIN_POLICY)
    config = dataclasses.replace(CONFIG, optimizer=optimizer)
    steps = [
        EagerStep(_objective(), loader, config, for_graph=for_graph) for for_graph in (False, True)
    ]
    assert [step.captures_optimizer for step in steps] == [False, True]
    scales = set()
    for index in range(14):
        batch = (torch.arange(16) + index,)
        losses = [step(batch, step=index, lr=0.01 * (1 + index % 2)) for step in steps]
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-4)
        assert steps[0].loss_scale == steps[1].loss_scale
        scales.add(steps[0].loss_scale)
    assert len(scales) > 3
    for first, second in zip(
        steps[0].objective.parameters(), steps[1].objective.parameters(), strict=True
    ):
        torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-4)
