"""Fine-tuning: frozen parts stay bit-identical, images are mixed by step, and runs resume."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from protosphere.classifiers import CosineClassifier
from protosphere.classifiers.protocol import Head
from protosphere.data.loaders import MemoryLoader, derive_seed
from protosphere.data.mixing import CutMix, Mixup, MixupOrCutMix, mix_images
from protosphere.encoders import Encoder, create_backbone, create_neck, freeze_backbone
from protosphere.encoders.freezing import Freeze
from protosphere.evaluation import collect_outputs
from protosphere.losses import MixedLabels
from protosphere.runs.checkpoints import load_checkpoint, save_checkpoint
from protosphere.training import (
    AdamW,
    Objective,
    ParameterGroups,
    Schedule,
    TimmOptimizer,
    TrainConfig,
    TrainingError,
    train,
)
from protosphere.training.loss_scaling import LossScaler
from support.training import memory_loader, small_loss, small_split

CONFIG = TrainConfig(Schedule(0.1, 2), batch_size=16, report_every=1)
GROUPS = ParameterGroups(
    backbone_lr_scale=0.5, head_lr_scale=2.0, layer_decay=0.7, exclude_from_decay="norms_and_biases"
)


@pytest.fixture
def loader() -> MemoryLoader:
    """Seventy images with random augmentation: four steps of 16 samples in an epoch."""
    return memory_loader(small_split())


def _objective(freeze: Freeze = "none", seed: int = 0) -> Objective:
    torch.manual_seed(seed)
    encoder = Encoder(create_backbone("small"), create_neck("batchnorm", 64))
    freeze_backbone(encoder, freeze)
    return Objective(encoder, CosineClassifier(64, 5), small_loss)


def _state(objective: Objective) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in objective.state_dict().items()}


def _is_same(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors have the same bits; -0 is not 0."""
    return first.numpy().tobytes() == second.numpy().tobytes()


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"ema_decay": 0.9, "optimizer": AdamW(weight_decay=0.1)},
        {"precision": "bf16", "grad_clip": 1.0, "mixing": Mixup()},
        {"optimizer": TimmOptimizer("lamb", 0.1), "ema_decay": 0.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("freeze", ["backbone", 1])
def test_what_is_frozen_is_bit_identical_after_training(
    freeze: Freeze, change: dict[str, Any], loader: MemoryLoader
) -> None:
    objective = _objective(freeze)
    with torch.no_grad():
        for value in objective.parameters():
            value.view(-1)[0] = -0.0
    before = _state(objective)
    for progress in train(objective, loader, dataclasses.replace(CONFIG, **change)):
        with progress.ema_weights():
            collect_outputs(objective, loader)
            averaged = _state(objective)
    last = ("encoder.backbone.layers.6.", "encoder.backbone.layers.7.")
    for name, value in objective.state_dict().items():
        is_frozen = name.startswith("encoder.backbone.") and (
            freeze == "backbone" or not name.startswith(last)
        )
        assert _is_same(value, before[name]) == is_frozen, name
        if is_frozen:
            assert _is_same(averaged[name], before[name]), name


@pytest.mark.parametrize(
    ("freeze", "change"),
    [
        (1, {}),
        ("backbone", {"ema_decay": 0.9}),
        ("none", {"parameter_groups": GROUPS, "optimizer": AdamW()}),
        (0, {"parameter_groups": GROUPS, "mixing": Mixup(alpha=0.5), "ema_decay": 0.9}),
        (1, {"parameter_groups": GROUPS, "mixing": CutMix(), "optimizer": TimmOptimizer("lamb")}),
        ("backbone", {"precision": "fp16", "ema_decay": 0.9, "mixing": MixupOrCutMix()}),
        (1, {"precision": "fp16", "grad_clip": 0.5, "parameter_groups": GROUPS}),
    ],
    ids=str,
)
@pytest.mark.parametrize("last_step", [3, 4])
def test_a_resumed_run_is_the_uninterrupted_one(
    freeze: Freeze,
    change: dict[str, Any],
    last_step: int,
    loader: MemoryLoader,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bit for bit, through a checkpoint on disk, inside an epoch and at its end."""
    scaler = functools.partial(LossScaler, init_scale=2.0**18, growth_interval=2)
    monkeypatch.setattr("protosphere.training.step.LossScaler", scaler)
    config = dataclasses.replace(CONFIG, **change)
    whole, resumed = _objective(freeze), _objective(freeze, seed=1)
    losses, scales = [], set()
    for progress in train(whole, loader, config):
        losses.append(progress.loss)
        scales.add(progress.checkpoint()[1].get("loss_scale", {}).get("scale"))
        if progress.step == last_step:
            save_checkpoint(tmp_path, progress.step, *progress.checkpoint())
    assert len(scales) > 2 or config.precision != "fp16"
    expected = progress.checkpoint()[1]
    for progress in train(resumed, loader, config, resume=load_checkpoint(tmp_path)):
        assert progress.loss == losses[progress.step - 1]
    for name, value in whole.state_dict().items():
        assert _is_same(value, resumed.state_dict()[name]), name
    state = progress.checkpoint()[1]
    assert state.keys() == expected.keys()
    assert state.get("loss_scale") == expected.get("loss_scale")
    for name, value in expected.get("ema", {}).items():
        assert _is_same(value, state["ema"][name]), name


@pytest.mark.parametrize("mixing", [Mixup(alpha=0.4), CutMix(), MixupOrCutMix(p=0.5)], ids=str)
def test_images_and_labels_are_mixed_after_the_augmentation(
    mixing: Mixup | CutMix | MixupOrCutMix, loader: MemoryLoader
) -> None:
    """What objective and loss receive, against the same calls with the seed of each step."""
    received: list[tuple[Tensor, MixedLabels]] = []
    objective = _objective()

    def loss(features: Tensor, head: Head, labels: MixedLabels) -> Tensor:
        assert isinstance(labels, MixedLabels)
        received.append((images[-1], labels))
        return features.mean()

    images: list[Tensor] = []
    objective.encoder.register_forward_pre_hook(lambda module, args: images.append(args[0]))
    objective.loss = loss
    config = dataclasses.replace(CONFIG, schedule=Schedule(0.1, 1), mixing=mixing)
    list(train(objective, loader, config))
    assert len(received) == 4
    parts, num_changed = iter(received), 0
    for step, (indices,) in enumerate(loader.batches(16, seed=config.seed, epoch=0)):
        torch.manual_seed(derive_seed("step", config.seed, step))
        prepared, labels = loader.prepare(indices)
        mixed, weights = mix_images(prepared, mixing)
        given, targets = next(parts)
        assert torch.equal(given, mixed)
        assert torch.equal(targets.labels, labels)
        assert torch.equal(targets.other_labels, labels.roll(1))
        assert torch.equal(targets.weights, weights)
        num_changed += not torch.equal(given, prepared)
    assert num_changed > 2


def test_a_run_with_mixing_learns(loader: MemoryLoader) -> None:
    config = dataclasses.replace(CONFIG, mixing=Mixup(), schedule=Schedule(0.1, 4))
    losses = [progress.loss for progress in train(_objective(), loader, config)]
    assert losses[-1] < 0.85 * losses[0]


def test_the_average_leaves_out_what_is_frozen(loader: MemoryLoader) -> None:
    config = dataclasses.replace(CONFIG, ema_decay=0.9)
    progress = next(iter(train(_objective(1), loader, config)))
    names = set(progress.checkpoint()[1]["ema"])
    assert {"encoder.backbone.layers.7.running_mean", "encoder.neck.weight"} <= names
    assert not any(name.startswith("encoder.backbone.layers.4") for name in names)
    assert "head.prototypes" in names


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("freeze", "change", "message"),
    [
        (
            "none",
            {"parameter_groups": ParameterGroups(head_lr_scale=2.0)},
            "parameter groups must be as",
        ),
        (1, {}, "frozen parts and parameter groups must be as in the checkpoint of step 2"),
        ("none", {"precision": "fp16"}, "loss scale if and only if precision is fp16"),
    ],
)
def test_a_checkpoint_of_other_groups_is_refused(
    freeze: Freeze, change: dict[str, Any], message: str, loader: MemoryLoader, tmp_path: Path
) -> None:
    for progress in train(_objective(), loader, CONFIG):
        if progress.step == 2:
            save_checkpoint(tmp_path, progress.step, *progress.checkpoint())
            break
    objective = _objective(freeze, seed=1)
    before = _state(objective)
    config = dataclasses.replace(CONFIG, **change)
    with pytest.raises(TrainingError, match=message):
        list(train(objective, loader, config, resume=load_checkpoint(tmp_path)))
    assert all(_is_same(value, before[name]) for name, value in objective.state_dict().items())


def test_checkpoints_of_earlier_versions_are_resumed(loader: MemoryLoader, tmp_path: Path) -> None:
    """They do not name their parameter groups, of which there was one."""
    losses = []
    for progress in train(_objective(), loader, CONFIG):
        losses.append(progress.loss)
        if progress.step == 2:
            weights, state = progress.checkpoint()
            del state["parameter_groups"]
            save_checkpoint(tmp_path, progress.step, weights, state)
    resumed = train(_objective(seed=1), loader, CONFIG, resume=load_checkpoint(tmp_path))
    assert [progress.loss for progress in resumed] == losses[2:]


@pytest.mark.bad_input
def test_nothing_to_train_is_refused(loader: MemoryLoader) -> None:
    objective = _objective("backbone")
    objective.requires_grad_(False)
    with pytest.raises(ValueError, match="something to train, but every parameter is frozen"):
        next(iter(train(objective, loader, CONFIG)))
