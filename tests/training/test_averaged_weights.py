"""Statistics of batch norm of averaged weights: from their definition, and nothing else changes."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier
from protosphere.data.augmentation import AugmentationPolicy
from protosphere.data.loaders import FeatureLoader, Loader, epoch_order
from protosphere.data.mixing import Mixup
from protosphere.training import Objective, Progress, Schedule, TrainConfig, train
from protosphere.training.averaged_weights import find_batch_norms
from support.training import (
    PLAIN_POLICY,
    RANDOM_POLICY,
    memory_loader,
    small_loss,
    small_objective,
    small_split,
)

CONFIG = TrainConfig(Schedule(0.5, 3), batch_size=16, ema_decay=0.9)
SAMPLES, DIM, CLASSES = 70, 6, 5


def _features() -> FeatureLoader:
    generator = torch.Generator().manual_seed(0)
    return FeatureLoader(
        3 + 2 * torch.randn(SAMPLES, DIM, generator=generator), torch.arange(SAMPLES) % CLASSES
    )


def _linear_objective() -> Objective:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(DIM, 4), nn.BatchNorm1d(4, momentum=0.3), nn.ReLU())
    return Objective(encoder, CosineClassifier(4, CLASSES), small_loss)


def _state(objective: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in objective.state_dict().items()}


def _expected(weight: Tensor, bias: Tensor, batches: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The mean over batches of mean and unbiased variance of what batch norm receives."""
    outputs = [batch.double() @ weight.double().T + bias.double() for batch in batches]
    return (
        torch.stack([output.mean(0) for output in outputs]).mean(0),
        torch.stack([output.var(0) for output in outputs]).mean(0),
    )


@pytest.mark.parametrize("micro_batch_size", [None, 8])
@pytest.mark.parametrize("where", ["context", "checkpoint"])
def test_statistics_are_those_of_the_averaged_network(
    where: str, micro_batch_size: int | None
) -> None:
    objective, loader = _linear_objective(), _features()
    config = dataclasses.replace(CONFIG, micro_batch_size=micro_batch_size)
    size = micro_batch_size or 16
    order = epoch_order(SAMPLES, seed=config.seed, epoch=0)[:64]
    batches = [loader.features[index] for index in order.split(size)]
    for progress in train(objective, loader, config):
        if where == "context":
            with progress.ema_weights():
                state = _state(objective)
        else:
            state = progress.checkpoint()[1]["ema"]
        mean, variance = _expected(state["encoder.0.weight"], state["encoder.0.bias"], batches)
        for name, expected in (("mean", mean), ("var", variance)):
            got = state[f"encoder.1.running_{name}"]
            torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


def test_no_more_images_are_encoded_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protosphere.training.averaged_weights._NUM_IMAGES", 20)
    objective, loader = _linear_objective(), _features()
    order = epoch_order(SAMPLES, seed=CONFIG.seed, epoch=0)[:32]
    *_, progress = train(objective, loader, CONFIG)
    with progress.ema_weights():
        state = _state(objective)
    batches = [loader.features[index] for index in order.split(16)]
    mean, _ = _expected(state["encoder.0.weight"], state["encoder.0.bias"], batches)
    torch.testing.assert_close(state["encoder.1.running_mean"].double(), mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("change", [{}, {"mixing": Mixup(), "precision": "bf16"}], ids=str)
@pytest.mark.parametrize("policy", [PLAIN_POLICY, RANDOM_POLICY], ids=["plain", "random"])
def test_training_does_not_depend_on_evaluations(
    policy: AugmentationPolicy, change: dict[str, Any]
) -> None:
    config = dataclasses.replace(CONFIG, report_every=2, **change)
    results = []
    for uses_average in (False, True):
        objective = small_objective()
        for progress in train(objective, memory_loader(small_split(), policy), config):
            if uses_average:
                before = _state(objective)
                progress.checkpoint()
                with progress.ema_weights():
                    pass
                layers = find_batch_norms(objective)
                assert [layer.momentum for layer in layers] == [0.1] * 3
                assert _equal(_state(objective), before)
        with progress.ema_weights():
            results.append((_state(objective), progress.loss))
    assert _equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def _equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _count_calls(objective: Objective, progress: Progress) -> int:
    """Return how many batches are encoded for a checkpoint and two evaluations."""
    calls = []
    handle = objective.encoder.register_forward_hook(lambda *_: calls.append(1))
    progress.checkpoint()
    for _ in range(2):
        with progress.ema_weights():
            pass
    handle.remove()
    return len(calls)


def test_statistics_are_computed_once_a_report() -> None:
    objective = small_objective()
    counts = [
        _count_calls(objective, progress)
        for progress in train(objective, memory_loader(small_split()), CONFIG)
    ]
    assert counts == [4, 4, 4]


@pytest.mark.parametrize(
    ("objective", "config"),
    [
        (small_objective(), dataclasses.replace(CONFIG, ema_decay=None)),
        (small_objective(freeze="backbone"), CONFIG),
    ],
    ids=["no average", "frozen batch norm"],
)
def test_nothing_is_encoded_without_need(objective: Objective, config: TrainConfig) -> None:
    loader = memory_loader(small_split())
    assert [_count_calls(objective, p) for p in train(objective, loader, config)] == [0, 0, 0]


def test_an_average_of_noisy_weights_is_evaluated_as_it_was_trained() -> None:
    """With the average of running statistics, the outputs of both modes are far apart."""
    objective, loader = small_objective(), memory_loader(small_split(), PLAIN_POLICY)
    config = TrainConfig(Schedule(2.0, 6), batch_size=70, ema_decay=0.9)
    *_, progress = train(objective, loader, config)
    images = torch.cat([batch for batch, _ in loader.evaluation_batches(70)])
    with progress.ema_weights(), torch.no_grad():
        training = objective.encoder.train()(images)
    with progress.ema_weights(), torch.no_grad():
        objective.encoder.eval()
        evaluation = objective.encoder(images)
        objective.encoder.train()
    difference = (training - evaluation).norm() / training.norm()
    assert difference < 0.02


@pytest.mark.parametrize("create", [_features, lambda: memory_loader(small_split())])
def test_samples_of_a_loader_are_those_of_its_first_epoch(create: Callable[[], Loader]) -> None:
    loader = create()
    whole = list(loader.batches(16, seed=3, epoch=0, shard=(1, 2)))
    some = list(loader.sample_batches(16, num_batches=2, seed=3, shard=(1, 2)))
    assert len(some) == 2
    assert all(map(torch.equal, (index for (index,) in some), (index for (index,) in whole)))
    assert len(list(loader.sample_batches(16, num_batches=99, seed=3))) == len(whole) == 4
