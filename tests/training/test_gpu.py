"""On a GPU: the captured step is the eager one, draws new random numbers, and can be resumed."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from protosphere.data.augmentation import AugmentationPolicy, PaddedCrop, RandomResizedCrop
from protosphere.data.loaders import MemoryLoader
from protosphere.runs.checkpoints import load_checkpoint, save_checkpoint
from protosphere.training import SGD, AdamW, Objective, Schedule, TrainConfig, train
from support.training import PLAIN_POLICY, memory_loader, small_objective, small_split

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
CONFIG = TrainConfig(Schedule(0.1, 3), batch_size=16, report_every=1)


@pytest.fixture(autouse=True)
def _full_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions without TF32, whose rounding would make two runs differ after a few steps."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def _loader(policy: AugmentationPolicy) -> MemoryLoader:
    return memory_loader(small_split().to("cuda"), policy)


def _losses(
    config: TrainConfig, policy: AugmentationPolicy, **options: Any
) -> tuple[list[float], Objective]:
    objective = small_objective().cuda()
    reports = train(objective, _loader(policy), config, **options)
    return [progress.loss for progress in reports], objective


@pytest.mark.parametrize(
    "change",
    [
        {},
        # Adam divides by the size of the gradient: at a large learning rate the rounding of a
        # gradient that is almost zero would decide the sign of a large update.
        {"optimizer": AdamW(), "schedule": Schedule(1e-3, 3)},
        {"optimizer": SGD(momentum=0.5, weight_decay=0.01)},
        {"grad_clip": 0.5, "ema_decay": 0.9},
        {"grad_accum_steps": 2},
    ],
    ids=str,
)
def test_the_captured_step_is_the_eager_one(change: dict[str, Any]) -> None:
    """In float32, without random augmentation, with a learning rate that changes each epoch."""
    config = dataclasses.replace(CONFIG, **change)
    expected, eager = _losses(config, PLAIN_POLICY)
    losses, objective = _losses(dataclasses.replace(config, compile=True), PLAIN_POLICY)
    assert losses == pytest.approx(expected, rel=2e-3, abs=2e-3)
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(objective.state_dict()[name], value, rtol=2e-2, atol=5e-3)


def test_each_replay_draws_new_random_numbers_from_the_seed() -> None:
    """With one batch and a tiny learning rate, only the augmentation changes between steps."""
    policy = AugmentationPolicy(8, RandomResizedCrop(), hflip=0.5)
    config = TrainConfig(
        Schedule(1e-12, 8, "constant"), 512, compile=True, optimizer=SGD(weight_decay=0.0)
    )
    first, _ = _losses(config, policy)
    second, _ = _losses(config, policy)
    other, _ = _losses(dataclasses.replace(config, seed=1), policy)
    assert len(set(first)) == len(first) == 8
    assert second == pytest.approx(first, rel=1e-4)
    assert other != pytest.approx(first, rel=1e-4)


def test_a_captured_run_is_resumed(tmp_path: Path) -> None:
    policy = AugmentationPolicy(8, PaddedCrop(padding=1), hflip=0.0)
    config = dataclasses.replace(CONFIG, compile=True, ema_decay=0.9)
    expected, _ = _losses(config, policy)
    for progress in train(small_objective().cuda(), _loader(policy), config):
        if progress.step == 6:
            save_checkpoint(tmp_path, progress.step, *progress.checkpoint())
            break
    resumed, _ = _losses(config, policy, resume=load_checkpoint(tmp_path))
    assert resumed == pytest.approx(expected[6:], rel=1e-3, abs=1e-3)


def test_the_averaged_weights_are_swapped_in_under_the_graph() -> None:
    config = dataclasses.replace(CONFIG, compile=True, ema_decay=0.9)
    objective = small_objective().cuda()
    for progress in train(objective, _loader(PLAIN_POLICY), config):
        trained = objective.head.prototypes.detach().clone()
        with progress.ema_weights():
            average = objective.head.prototypes.detach().clone()
        assert torch.equal(objective.head.prototypes, trained)
        assert not torch.equal(average, trained)
    assert progress.step == 12
