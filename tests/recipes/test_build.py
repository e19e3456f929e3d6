"""Recipes as objects: every key reaches the object that it configures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional as F

from protosphere import losses
from protosphere.data.loaders import FolderLoader, MemoryLoader
from protosphere.data.mixing import CutMix
from protosphere.encoders import create_backbone
from protosphere.geometry import cosines
from protosphere.recipes import build, catalog
from protosphere.recipes.registry import LOSSES
from protosphere.recipes.schema import Recipe, RecipeError, apply_overrides
from protosphere.training import SGD, AdamW, ParameterGroups, TimmOptimizer

DIM, CLASSES = 64, 3


def _recipe(*overrides: str, name: str = "digits-ce") -> Recipe:
    return apply_overrides(catalog.get_recipe(name), overrides)


def test_every_training_key_arrives() -> None:
    """None of these values is a default."""
    recipe = _recipe(
        "training={batch_size: 12, micro_batch_size: 4, grad_clip: 0.5, ema_decay: 0.99, "
        "precision: bf16, compile: true}",
        "optimizer={name: adamw, lr: 0.7, betas: [0.8, 0.95], weight_decay: 0.03}",
        "schedule={name: multistep, epochs: 7, milestones: [3], gamma: 0.4, warmup_epochs: 2, "
        "warmup_lr: 0.3}",
        "seed=5",
    )
    config = build.create_train_config(recipe, report_every=9)
    assert (config.batch_size, config.micro_batch_size, config.grad_clip) == (12, 4, 0.5)
    assert (config.ema_decay, config.precision, config.compile) == (0.99, "bf16", True)
    assert config.optimizer == AdamW(betas=(0.8, 0.95), weight_decay=0.03)
    assert (config.seed, config.report_every) == (5, 9)
    schedule = config.schedule
    assert (schedule.name, schedule.lr, schedule.epochs) == ("multistep", 0.7, 7)
    assert (schedule.milestones, schedule.gamma) == ((3,), 0.4)
    assert (schedule.warmup_epochs, schedule.warmup_lr) == (2, 0.3)
    cosine = build.create_train_config(_recipe("schedule.min_lr_ratio=0.2")).schedule
    assert (cosine.name, cosine.min_lr_ratio) == ("cosine", 0.2)
    momentum = build.create_train_config(_recipe("optimizer.momentum=0.7"))
    assert momentum.optimizer == SGD(momentum=0.7, weight_decay=5e-4)


def test_probes_are_trained_by_their_own_section() -> None:
    recipe = _recipe(
        "training.grad_clip=1", "training.ema_decay=0.9", "probe.lr=0.7", "probe.gamma=0.3"
    )
    config = build.create_probe_config(recipe)
    assert config.optimizer == SGD(momentum=0.9, weight_decay=0.0)
    assert (config.grad_clip, config.ema_decay, config.micro_batch_size) == (None, None, None)
    assert (config.batch_size, config.schedule.lr, config.schedule.gamma) == (64, 0.7, 0.3)


def test_the_learning_rate_of_a_multistep_schedule() -> None:
    recipe = _recipe("schedule={name: multistep, epochs: 6, milestones: [2, 4], gamma: 0.5}")
    schedule = build.create_train_config(recipe).schedule
    assert [schedule.at_epoch(epoch) for epoch in range(6)] == [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]


def test_auto_compiles_on_a_gpu_only() -> None:
    recipe = catalog.get_recipe("cifar100-nonl")
    assert build.create_train_config(recipe, device="cpu").compile is False
    assert build.create_train_config(recipe, device="cuda:1").compile is True
    assert build.create_train_config(recipe, device="cuda", world_size=2).compile is True
    objective = build.create_objective(recipe, num_classes=3, in_channels=1)
    objective.encoder = torch.nn.SyncBatchNorm(3)
    assert build.create_train_config(recipe, objective, device="cuda").compile is False
    eager = apply_overrides(recipe, ["training.compile=false"])
    assert build.create_train_config(eager, device="cuda").compile is False


PROTOTYPE_LOSSES: dict[str, Any] = {
    "normface": losses.normface_loss,
    "ntce": losses.ntce_loss,
    "nonl": losses.nonl_loss,
    "normface-nonl": losses.normface_nonl_loss,
}
SAMPLE_LOSSES = {"scl": losses.scl_loss, "proto": losses.prototype_loss}


def _batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(12, DIM, generator=generator)
    return features, torch.randn(CLASSES, DIM, generator=generator), torch.arange(12) % CLASSES


@pytest.mark.parametrize("name", [*PROTOTYPE_LOSSES, *SAMPLE_LOSSES])
def test_head_and_loss_have_the_same_temperature(name: str) -> None:
    recipe = _recipe(f"loss.name={name}", "loss.temperature=0.37")
    objective = build.create_objective(recipe, num_classes=CLASSES, in_channels=1)
    features, prototypes, labels = _batch()
    with torch.no_grad():
        objective.head.prototypes.copy_(prototypes)
    if name in SAMPLE_LOSSES:
        expected = SAMPLE_LOSSES[name](features, labels, temperature=0.37)
    else:
        expected = PROTOTYPE_LOSSES[name](features, prototypes, labels, temperature=0.37)
    torch.testing.assert_close(objective.loss(features, objective.head, labels), expected)
    torch.testing.assert_close(objective.head(features), cosines(features, prototypes) / 0.37)


# A value other than the default for every key of the losses that a module or a head takes.
VALUES: dict[str, Any] = {
    "class_weights": (1.0, 2.0, 0.5),
    "form": "chunked",
    "temperature": 0.37,
    "learn_temperature": True,
    "min_temperature": 0.05,
    "label_smoothing": 0.3,
    "margin": 0.2,
    "margin_kind": "angle",
    "normface_weight": 0.7,
    "negatives": "both",
    "frame": "code",
    "logit_adjustment": 0.5,
    "soft_negatives": "weighted",
    "queue": {"size": 7, "start_epoch": 2, "max_age": 3},
}
# Keys that need another one beside them.
COMPANIONS: dict[str, dict[str, Any]] = {
    "learn_temperature": {"min_temperature": 0.05},
    "min_temperature": {"learn_temperature": True},
    "margin_kind": {"margin": 0.2},
}
KEYS = [
    (name, key)
    for name, entry in LOSSES.items()
    for key in entry.settings.model_fields
    if key not in ("name", "shard_prototypes")  # It has an effect on several processes only.
]


@pytest.mark.parametrize(("name", "key"), KEYS)
def test_every_key_of_a_loss_reaches_its_module_or_head(name: str, key: str) -> None:
    value = VALUES[key]
    companions = COMPANIONS.get(key, {})
    settings = LOSSES[name].settings(**{key: value, **companions})
    recipe = _recipe().model_copy(update={"loss": settings})
    counts = (1, 2, 5)
    objective = build.create_objective(
        recipe, num_classes=CLASSES, in_channels=1, class_counts=counts
    )
    text = f"{objective.loss!r} {objective.head!r}"
    if key == "logit_adjustment":
        buffers = dict(objective.named_buffers())
        offsets = next(buffers[k] for k in buffers if k.endswith("logit_adjustment"))
        frequencies = torch.tensor(counts) / sum(counts)
        torch.testing.assert_close(offsets, 0.5 * frequencies.log())
    elif key == "class_weights":
        assert "class_weights=(3 values)" in text
        buffers = dict(objective.named_buffers())
        weights = next(buffers[k] for k in buffers if k.endswith("class_weights"))
        assert weights.tolist() == list(value)
    elif key == "queue":
        dim = objective.head.prototypes.shape[1]
        assert f"FeatureQueue(7, {dim}, max_age=3, start=2, rescale=False)" in text
    else:
        shown = value if isinstance(value, float | bool) else repr(value)
        assert f"{key}={shown}" in text


def test_a_learned_temperature_gets_a_gradient() -> None:
    recipe = _recipe(
        "loss={name: nonl, temperature: 0.3, learn_temperature: true, min_temperature: 0.05}"
    )
    objective = build.create_objective(recipe, num_classes=CLASSES, in_channels=1)
    features, _, labels = _batch()
    objective.loss(features, objective.head, labels).backward()
    assert objective.head.log_temperature.grad.abs() > 0


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_label_smoothing_is_that_of_torch(smoothing: float) -> None:
    recipe = _recipe(f"loss.label_smoothing={smoothing}")
    objective = build.create_objective(recipe, num_classes=CLASSES, in_channels=1)
    features, _, labels = _batch()
    expected = F.cross_entropy(objective.head(features), labels, label_smoothing=smoothing)
    torch.testing.assert_close(objective.loss(features, objective.head, labels), expected)


def test_the_seed_decides_the_initial_weights() -> None:
    first, again, other = (
        build.create_objective(_recipe(f"seed={seed}"), num_classes=CLASSES, in_channels=1)
        for seed in (1, 1, 2)
    )
    assert torch.equal(first.head.prototypes, again.head.prototypes)
    assert not torch.equal(first.head.prototypes, other.head.prototypes)


@pytest.mark.parametrize(("name", "norm"), [("cifar100-nonl", 1.0), ("cifar100-strong-nonl", 0.0)])
def test_residual_blocks_are_initialized_as_the_recipe_says(name: str, norm: float) -> None:
    recipe = catalog.get_recipe(name)
    encoder = build.create_objective(recipe, num_classes=CLASSES, in_channels=3).encoder
    weights = encoder.get_parameter("backbone.layer1.0.bn2.weight")
    assert weights.unique().tolist() == [norm]


def test_keys_of_image_folders_reach_the_loader(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for index, name in enumerate(("a", "b")):
            (tmp_path / split / name).mkdir(parents=True)
            pixels = np.full((8, 8, 3), 100 * index, np.uint8)
            Image.fromarray(pixels).save(tmp_path / split / name / "0.png")
    keys = [f"data.path={tmp_path}", "data.workers=1", "data.sampler=sqrt"]
    recipe = _recipe(*keys, "data.in_memory=false", name="folder-nonl")
    dataset = build.load_dataset(recipe)
    loader, _ = build.create_loaders(recipe, dataset, "cpu")
    assert isinstance(loader, FolderLoader)
    assert (loader.workers, loader.sampler) == (1, "sqrt")
    done: list[float] = []
    for value in ("true", "auto"):
        recipe = apply_overrides(recipe, [f"data.in_memory={value}"])
        memory, _ = build.create_loaders(recipe, dataset, "cpu", progress=done.append)
        assert isinstance(memory, MemoryLoader)
        assert memory.sampler == "sqrt"
    assert done[-1] == 1


def test_every_key_of_fine_tuning_arrives(tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    backbone = create_backbone("small", in_channels=1)
    save_file(backbone.state_dict(), weights)
    recipe = _recipe(
        f"model={{backbone: {{name: small, pretrained: {weights}}}, neck: linear}}",
        "optimizer={name: lion, lr: 0.001, weight_decay: 0.03, options: {betas: [0.8, 0.9]}, "
        "lr_scale: {backbone: 0.1, neck: 0.5, head: 2}, exclude_from_decay: norms_and_biases}",
        "training.precision=fp16",
        "augmentation.mixing={name: cutmix, alpha: 0.7, p: 0.3}",
    )
    objective = build.create_objective(recipe, num_classes=CLASSES, in_channels=1)
    for name, value in backbone.state_dict().items():
        assert torch.equal(objective.state_dict()[f"encoder.backbone.{name}"], value)
    fresh = build.create_objective(recipe, num_classes=CLASSES, in_channels=1, pretrained="none")
    name = "encoder.backbone.layers.0.weight"
    assert not torch.equal(fresh.state_dict()[name], objective.state_dict()[name])
    config = build.create_train_config(recipe)
    assert config.optimizer == TimmOptimizer(
        "lion", weight_decay=0.03, options={"betas": (0.8, 0.9)}
    )
    assert config.parameter_groups == ParameterGroups(
        backbone_lr_scale=0.1,
        neck_lr_scale=0.5,
        head_lr_scale=2.0,
        exclude_from_decay="norms_and_biases",
    )
    assert (config.precision, config.mixing) == ("fp16", CutMix(alpha=0.7, p=0.3))
    decayed = build.create_train_config(_recipe("optimizer.layer_decay=0.7"))
    assert decayed.parameter_groups == ParameterGroups(layer_decay=0.7)


@pytest.mark.parametrize(("freeze", "trained"), [("backbone", 0), ("{stages: 2}", 2)])
def test_frozen_parts_do_not_require_gradients(freeze: str, trained: int) -> None:
    recipe = _recipe("model.backbone.name=resnet10t", f"model.freeze={freeze}")
    objective = build.create_objective(recipe, num_classes=CLASSES, in_channels=1)
    parameters = dict(objective.encoder.backbone.named_parameters())
    names = {name.split(".")[0] for name, one in parameters.items() if one.requires_grad}
    assert len(names) == trained
    assert all(parameter.requires_grad for parameter in objective.head.parameters())


def test_images_are_normalized_as_the_pretrained_model_expects(tmp_path: Path) -> None:
    recipe = _recipe(
        "data={source: synthetic, image_size: 32}",
        "model.backbone={name: tf_efficientnet_lite0, pretrained: weights.safetensors}",
    )
    dataset = build.load_dataset(recipe)
    half = (0.5, 0.5, 0.5)
    assert build.channel_statistics(recipe, dataset) == (half, half)
    assert build.channel_statistics(_recipe(), build.load_dataset(_recipe()))[0] != (0.5,)


def test_checkpoint_keys_name_the_parts_of_the_encoder() -> None:
    recipe = _recipe("augmentation.size=32", name="cifar10-scl")
    keys = build.create_objective(recipe, num_classes=CLASSES, in_channels=3).state_dict()
    assert "encoder.backbone.conv1.weight" in keys
    assert "encoder.projection.0.weight" in keys
    assert "head.prototypes" in keys
    assert not any(key.startswith("loss") for key in keys)


def test_validation_images_are_held_out_of_the_training_images() -> None:
    recipe = _recipe("data.validation_fraction=0.2")
    whole, held = build.load_dataset(_recipe()), build.load_dataset(recipe)
    assert len(held.train) + len(held.test) == len(whole.train)
    other = build.load_dataset(apply_overrides(recipe, ["seed=7"]))
    assert len(other.test) == len(held.test)
    assert not torch.equal(other.test.images, held.test.images), "another seed, another split"
    tested = build.load_dataset(recipe, split="test")
    assert torch.equal(tested.test.images, whole.test.images)
    assert torch.equal(tested.train.images, held.train.images)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.backbone.name=resnet81"], "resnet81"),
        (["model.backbone.name=vit_tiny_patch16_224"], "does not take images of augmentation.size"),
        (["loss.name=ntce", "loss.class_weights=[1, 2]"], "one weight for each of the 3 classes"),
        (
            ["loss.name=etf-dr", "model.projection={name: linear, out_dim: 1}"],
            "loss etf-dr: a simplex",
        ),
        (
            ["model.backbone.pretrained=none.safetensors"],
            "model.backbone: pretrained must be true or a file of weights, but none.safetensors",
        ),
        (["model.freeze={stages: 9}"], "model.freeze: "),
        (["model.backbone.stem=cifar"], "model.backbone: stem 'cifar' needs a ResNet"),
        (["model.backbone.zero_init_residual=true"], "zero_init_residual does not apply"),
    ],
)
def test_models_that_cannot_be_built(overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build.create_objective(_recipe(*overrides), num_classes=CLASSES, in_channels=1)


@pytest.mark.parametrize("backbone", ["mobilenetv3_small_050", "vit_tiny_patch16_224"])
def test_backbones_that_are_not_resnets(backbone: str) -> None:
    recipe = _recipe(f"model.backbone.name={backbone}", "augmentation.size=224", name="digits-nonl")
    objective = build.create_objective(recipe, num_classes=CLASSES, in_channels=3)
    with torch.no_grad():
        assert objective.eval().logits(torch.zeros(2, 3, 224, 224)).shape == (2, CLASSES)


def test_every_loss_has_a_title_for_tables() -> None:
    titles = [entry.title for entry in LOSSES.values()]
    assert len(set(titles)) == len(titles)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["optimizer.lr_scale.neck=0.5"], r"optimizer: lr_scale\.neck"),
        (
            ["model.freeze={stages: 2}", "optimizer.lr_scale.backbone=0.5"],
            r"optimizer: lr_scale\.backbone must be 1",
        ),
        (
            ["optimizer={name: lion, options: {beta: 0.9}}"],
            "optimizer: the optimizer lion cannot be created with the options",
        ),
    ],
)
def test_optimizers_that_do_not_fit(overrides: list[str], message: str) -> None:
    recipe = _recipe("augmentation.size=32", *overrides)
    objective = build.create_objective(recipe, num_classes=CLASSES, in_channels=1)
    with pytest.raises(RecipeError, match=message):
        build.create_train_config(recipe, objective)


@pytest.mark.parametrize("backbone", ["small", "resnet10t", "regnetx_002"])
def test_synchronized_batch_norm_keeps_names_weights_and_outputs(backbone: str) -> None:
    from protosphere.encoders import Encoder
    from protosphere.recipes.objectives import _sync_batch_norm

    torch.manual_seed(0)
    encoder = Encoder(create_backbone(backbone)).eval()
    images = torch.randn(2, 3, 32, 32)
    expected, state = encoder(images), dict(encoder.state_dict())
    converted = _sync_batch_norm(encoder, None)
    norms = [m for m in converted.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    assert norms
    assert all(isinstance(norm, torch.nn.SyncBatchNorm) for norm in norms)
    assert list(converted.state_dict()) == list(state)
    assert torch.equal(converted(images), expected)


@pytest.mark.bad_input
def test_a_batch_smaller_than_the_number_of_processes_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"at least the number of processes \(4\), got 3"):
        build.create_train_config(_recipe("training.batch_size=3"), world_size=4)


@pytest.mark.bad_input
def test_settings_that_do_not_go_with_fsdp_are_refused() -> None:
    config = build.create_train_config(_recipe("training.fsdp=true"), device="cuda", world_size=2)
    assert config.fsdp
    assert not config.compile
    for setting, message in (
        ("training.compile=true", "must be auto or false with training.fsdp, got true"),
        ("optimizer={name: lamb}", "must be one of sgd, .* with training.fsdp, got lamb"),
    ):
        recipe = _recipe("training.fsdp=true", setting)
        assert build.create_train_config(recipe).fsdp  # It has no effect on one process.
        with pytest.raises(RecipeError, match=message):
            build.create_train_config(recipe, world_size=2)
