"""On a GPU: the captured step is the eager one, draws new random numbers, and can be resumed."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from protosphere.data.augmentation import AugmentationPolicy, PaddedCrop, RandomResizedCrop
from protosphere.data.loaders import MemoryLoader
from protosphere.data.mixing import CutMix, Mixup
from protosphere.encoders.freezing import Freeze
from protosphere.runs.checkpoints import load_checkpoint, save_checkpoint
from protosphere.training import (
    SGD,
    AdamW,
    Objective,
    ParameterGroups,
    Schedule,
    TimmOptimizer,
    TrainConfig,
    train,
)
from protosphere.training.loss_scaling import LossScaler
from support.training import PLAIN_POLICY, memory_loader, small_objective, small_split

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
CONFIG = TrainConfig(Schedule(0.1, 3), batch_size=16, report_every=1)
SLOW = Schedule(1e-3, 3)
GROUPS = ParameterGroups(
    backbone_lr_scale=0.5, head_lr_scale=2.0, layer_decay=0.7, exclude_from_decay="norms_and_biases"
)


@pytest.fixture(autouse=True)
def _full_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions without TF32, whose rounding would make two runs differ after a few steps."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def _loader(policy: AugmentationPolicy) -> MemoryLoader:
    return memory_loader(small_split().to("cuda"), policy)


def _losses(
    config: TrainConfig, policy: AugmentationPolicy, freeze: Freeze = "none", **options: Any
) -> tuple[list[float], Objective]:
    objective = small_objective(freeze=freeze).cuda()
    reports = train(objective, _loader(policy), config, **options)
    return [progress.loss for progress in reports], objective


def _set_initial_scale(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    scaler = functools.partial(LossScaler, init_scale=scale)
    monkeypatch.setattr("protosphere.training.step.LossScaler", scaler)


@pytest.mark.parametrize(
    "change",
    [
        {},
        # Adam divides by the size of the gradient: at a large learning rate the rounding of a
        # gradient that is almost zero would decide the sign of a large update.
        {"optimizer": AdamW(), "schedule": SLOW},
        {"optimizer": SGD(momentum=0.5, weight_decay=0.01)},
        {"grad_clip": 0.5, "ema_decay": 0.9},
        {"grad_clip": 1.0},
        {"parameter_groups": GROUPS, "ema_decay": 0.9},
        {"parameter_groups": GROUPS, "optimizer": AdamW(), "schedule": SLOW},
        {"mixing": Mixup()},
        {"mixing": CutMix(), "parameter_groups": GROUPS},
        {"optimizer": TimmOptimizer("lamb"), "schedule": SLOW, "grad_clip": 0.5, "ema_decay": 0.9},
        {"optimizer": TimmOptimizer("sgdw"), "parameter_groups": GROUPS, "mixing": Mixup()},
    ],
    ids=str,
)
@pytest.mark.parametrize("freeze", ["none", 1])
def test_the_captured_step_is_the_eager_one(change: dict[str, Any], freeze: Freeze) -> None:
    """In float32, without random augmentation, with a learning rate that changes each epoch."""
    config = dataclasses.replace(CONFIG, **change)
    expected, eager = _losses(config, PLAIN_POLICY, freeze)
    # Compiled code then draws the random numbers of the mixing as torch does.
    with torch._inductor.config.patch(fallback_random=True):
        config = dataclasses.replace(config, compile=True)
        losses, objective = _losses(config, PLAIN_POLICY, freeze)
    assert losses == pytest.approx(expected, rel=2e-3, abs=2e-3)
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(objective.state_dict()[name], value, rtol=2e-2, atol=5e-3)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"optimizer": AdamW(), "schedule": SLOW, "grad_clip": 0.5},
        {"optimizer": TimmOptimizer("lamb"), "schedule": SLOW},
        {"parameter_groups": GROUPS, "mixing": Mixup()},
    ],
    ids=str,
)
def test_the_captured_step_in_float16_is_the_eager_one(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a scale at which no gradient overflows, since rounding would decide which ones do."""
    _set_initial_scale(monkeypatch, 2.0**8)
    config = dataclasses.replace(CONFIG, schedule=Schedule(1e-2, 3), precision="fp16")
    config = dataclasses.replace(config, **change)
    expected, _ = _losses(config, PLAIN_POLICY)
    with torch._inductor.config.patch(fallback_random=True):
        losses, _ = _losses(dataclasses.replace(config, compile=True), PLAIN_POLICY)
    assert losses == pytest.approx(expected, rel=3e-2, abs=1e-2)


@pytest.mark.parametrize("compile", [True, False])
@pytest.mark.parametrize("optimizer", [SGD(), AdamW(), TimmOptimizer("lamb")], ids=str)
def test_steps_that_overflow_are_skipped(
    optimizer: SGD | AdamW | TimmOptimizer, compile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scale halves and no weight changes until gradients are finite; then training goes on."""
    _set_initial_scale(monkeypatch, 2.0**40)
    objective = small_objective().cuda()
    before = [parameter.detach().clone() for parameter in objective.parameters()]
    config = dataclasses.replace(
        CONFIG, schedule=Schedule(1e-2, 12), precision="fp16", optimizer=optimizer, compile=compile
    )
    for progress in train(objective, _loader(PLAIN_POLICY), config):
        scale = progress.checkpoint()[1]["loss_scale"]["scale"]
        unchanged = all(map(torch.equal, objective.parameters(), before))
        if progress.step <= 8:
            assert scale == 2.0 ** (40 - progress.step)
            assert unchanged
    assert 1 < scale < 2.0**32
    assert not unchanged
    assert all(bool(torch.isfinite(value).all()) for value in objective.state_dict().values())
    assert progress.loss < 1.0


@pytest.mark.parametrize("freeze", ["backbone", 1])
def test_what_is_frozen_is_bit_identical_after_training(freeze: Freeze) -> None:
    objective = small_objective(freeze=freeze).cuda()
    before = {name: value.clone() for name, value in objective.state_dict().items()}
    config = dataclasses.replace(CONFIG, compile=True, ema_decay=0.9, mixing=Mixup())
    list(train(objective, _loader(PLAIN_POLICY), config))
    last = ("encoder.backbone.layers.6.", "encoder.backbone.layers.7.")
    for name, value in objective.state_dict().items():
        is_frozen = name.startswith("encoder.backbone.") and (
            freeze == "backbone" or not name.startswith(last)
        )
        assert torch.equal(value, before[name]) == is_frozen, name


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


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"parameter_groups": GROUPS, "mixing": Mixup()},
        {"optimizer": AdamW(), "schedule": SLOW, "parameter_groups": GROUPS},
        {"optimizer": TimmOptimizer("lamb"), "schedule": SLOW},
    ],
    ids=str,
)
def test_a_captured_run_is_resumed(change: dict[str, Any], tmp_path: Path) -> None:
    policy = AugmentationPolicy(8, PaddedCrop(padding=1), hflip=0.0)
    config = dataclasses.replace(CONFIG, compile=True, ema_decay=0.9, **change)
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


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_averaged_weights_under_the_graph_have_their_own_batch_norm(precision: Any) -> None:
    """Evaluated, they give what they give with the statistics of all images as one batch."""
    config = TrainConfig(
        Schedule(1.0, 6), batch_size=70, ema_decay=0.9, compile=True, precision=precision
    )
    objective, loader = small_objective().cuda(), _loader(PLAIN_POLICY)
    losses = []
    for progress in train(objective, loader, config):
        losses.append(progress.loss)
        state = {name: value.clone() for name, value in objective.state_dict().items()}
        with progress.ema_weights(), torch.no_grad():
            images = torch.cat([images for images, _ in loader.evaluation_batches(70)])
            objective.eval()
            evaluated = objective.encoder(images)
            objective.train()
            trained = objective.encoder(images)
        assert (evaluated - trained).norm() < 0.05 * trained.norm()
        for name, value in objective.state_dict().items():
            if "num_batches" not in name:  # The line with the images as one batch has counted.
                assert torch.equal(value, state[name]), name
    assert losses == pytest.approx(_losses(config, PLAIN_POLICY)[0], rel=1e-4)
