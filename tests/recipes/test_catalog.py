"""The catalog: every recipe builds, round-trips and trains; the paper's have its settings."""

import pytest
import torch

from protosphere.data.augmentation import ColorJitter, PaddedCrop, RandomResizedCrop
from protosphere.data.datasets import load_synthetic
from protosphere.recipes import build, catalog
from protosphere.recipes.registry import LOSSES
from protosphere.recipes.schema import (
    Recipe,
    RecipeError,
    apply_overrides,
    find_difference,
    recipe_from_yaml,
)
from protosphere.training import SGD, train

CLASSIFIER = [name for name, entry in LOSSES.items() if entry.training == "classifier"]
CONTRASTIVE = [name for name, entry in LOSSES.items() if entry.training == "contrastive"]
SMALL = [
    "schedule.warmup_epochs=0",
    "schedule.epochs=1",
    "training.batch_size=8",
    "model.backbone={name: small}",
    "augmentation.size=8",
]


@pytest.mark.parametrize("name", catalog.names())
def test_every_recipe_builds_round_trips_and_trains(name: str) -> None:
    recipe = catalog.get_recipe(name)
    assert recipe.name == name
    assert recipe_from_yaml(recipe.to_yaml()) == recipe
    assert len(catalog.description(name)) > 20
    small = apply_overrides(recipe, SMALL)
    dataset = load_synthetic(num_classes=5, num_samples=20, image_size=8)
    objective = build.create_objective(small, num_classes=5, in_channels=3)
    loader, _ = build.create_loaders(small, dataset, "cpu")
    before = {key: value.clone() for key, value in objective.state_dict().items()}
    reports = list(train(objective, loader, build.create_train_config(small)))
    assert reports[-1].step == 2
    assert any(not torch.equal(before[key], value) for key, value in objective.state_dict().items())
    images, _ = next(iter(loader.evaluation_batches(20)))
    assert objective.logits(images).shape == (20, 5)


def test_names_are_unique_and_every_loss_has_recipes() -> None:
    names = catalog.names()
    assert len(set(names)) == len(names)
    for loss in LOSSES:
        assert f"cifar100-{loss}" in names


# Settings of the paper by family: backbone, epochs, batch size, lr, warmup epochs, image size.
BEST_TEMPERATURES = {
    "cifar10": {"normface": 0.6, "ntce": 0.6, "nonl": 0.2},
    "cifar100": {"normface": 0.3, "ntce": 0.2, "nonl": 0.1},
}
PAPER = {
    "cifar10": ("resnet18", 1000, 512, 0.2, 0, 32),
    "cifar100": ("resnet18", 1000, 512, 0.2, 0, 32),
    "imagenet100": ("resnet50", 500, 1024, 0.4, 10, 224),
    "imagenet100-resnet101": ("resnet101", 500, 1024, 0.4, 10, 224),
    "imagenet100-resnet152": ("resnet152", 500, 1024, 0.4, 10, 224),
    "imagenet1k": ("resnet50", 500, 2048, 0.8, 10, 224),
    "imagenet1k-4096": ("resnet50", 500, 4096, 1.6, 10, 224),
    "imagenet1k-8192": ("resnet50", 500, 8192, 3.2, 10, 224),
}
PAPER_CONTRASTIVE = {
    "cifar10": ("resnet18", 1000, 512, 0.05, 0, 32),
    "cifar100": ("resnet18", 1000, 512, 0.05, 0, 32),
    "imagenet100": ("resnet50", 500, 1024, 3.2, 10, 224),
    "imagenet1k": ("resnet50", 500, 2048, 0.8, 5, 224),
}
PROBE_LR = {"cifar10": 5.0, "cifar100": 5.0, "imagenet100": 2.0, "imagenet1k": 0.8}


def _check_paper_settings(
    recipe: Recipe, backbone: str, epochs: int, batch_size: int, lr: float, warmup: int, size: int
) -> None:
    assert (recipe.model.backbone.name, recipe.schedule.epochs) == (backbone, epochs)
    assert (recipe.training.batch_size, recipe.augmentation.size) == (batch_size, size)
    assert recipe.optimizer.lr == pytest.approx(lr)
    config = build.create_train_config(recipe)
    assert config.optimizer == SGD(momentum=0.9, weight_decay=1e-4)
    schedule = config.schedule
    assert (schedule.name, schedule.min_lr_ratio) == ("cosine", 1e-3)
    assert (schedule.warmup_epochs, schedule.warmup_lr) == (warmup, 0.01)
    assert recipe.model.backbone.stem == ("cifar" if size == 32 else "imagenet")
    assert recipe.model.backbone.zero_init_residual is False
    assert recipe.augmentation.crop == RandomResizedCrop(scale=(0.2, 1.0))
    assert recipe.augmentation.hflip == 0.5
    if size == 224:
        assert (recipe.data.classes is None) == (not recipe.name.startswith("imagenet100"))
    assert recipe.seed == 42


@pytest.mark.parametrize("family", PAPER)
@pytest.mark.parametrize("loss", CLASSIFIER)
def test_settings_of_the_paper(family: str, loss: str) -> None:
    recipe = catalog.get_recipe(f"{family}-{loss}")
    _check_paper_settings(recipe, *PAPER[family])
    policy = recipe.augmentation
    assert (recipe.model.neck, recipe.model.projection, policy.num_views) == ("none", None, 1)
    assert (policy.color_jitter, policy.grayscale, policy.gaussian_blur) == (None, 0, 0)


@pytest.mark.parametrize("family", PAPER)
@pytest.mark.parametrize("loss", ["normface", "ntce", "nonl"])
def test_temperatures_of_the_paper(family: str, loss: str) -> None:
    default = 0.2 if family.startswith("imagenet100") else 0.1
    expected = BEST_TEMPERATURES.get(family, {}).get(loss, default)
    assert catalog.get_recipe(f"{family}-{loss}").loss.temperature == expected


@pytest.mark.parametrize("family", PAPER_CONTRASTIVE)
@pytest.mark.parametrize("loss", CONTRASTIVE)
def test_settings_of_the_paper_for_contrastive_training(family: str, loss: str) -> None:
    recipe = catalog.get_recipe(f"{family}-{loss}")
    _check_paper_settings(recipe, *PAPER_CONTRASTIVE[family])
    policy, cifar = recipe.augmentation, family.startswith("cifar")
    assert policy.color_jitter == ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8)
    assert (policy.num_views, policy.grayscale, policy.gaussian_blur > 0) == (2, 0.2, not cifar)
    assert recipe.loss.temperature == 0.1
    projection = build.create_objective(recipe, num_classes=10, in_channels=3).encoder.projection
    widths = [layer.out_features for layer in projection if hasattr(layer, "out_features")]
    assert widths == [512 if cifar else 2048, 128]
    probe = build.create_probe_config(recipe)
    schedule = probe.schedule
    assert (schedule.name, schedule.lr, schedule.gamma) == ("multistep", PROBE_LR[family], 0.2)
    expected = (100, (60, 75, 90)) if cifar else (90, (30, 60, 80))
    assert (schedule.epochs, schedule.milestones) == expected
    assert probe.optimizer == SGD(momentum=0.9, weight_decay=0.0)


def test_strong_recipes() -> None:
    strong = catalog.get_recipe("cifar100-strong-ce")
    assert (strong.schedule.epochs, strong.training.batch_size) == (200, 128)
    assert strong.optimizer.weight_decay == 5e-4
    assert strong.augmentation.crop == PaddedCrop(padding=4)
    assert strong.model.backbone.zero_init_residual is True
    smooth = catalog.get_recipe("cifar100-strong-ce-smooth")
    named = smooth.model_copy(update={"name": strong.name})
    assert find_difference(strong, named) == "loss.label_smoothing is 0.0 there and 0.1 here"


@pytest.mark.parametrize("family", ["cifar10", "cifar100", "imagenet100", "imagenet1k"])
def test_recipes_with_a_batch_norm_neck(family: str) -> None:
    plain = catalog.get_recipe(f"{family}-etf-dr")
    neck = catalog.get_recipe(f"{family}-etf-dr-batchnorm").model_copy(update={"name": plain.name})
    assert find_difference(plain, neck) == "model.neck is none there and batchnorm here"


@pytest.mark.bad_input
def test_names_that_do_not_exist() -> None:
    with pytest.raises(
        RecipeError, match=r"no recipe 'cifar100-nol'; did you mean cifar100-nonl\?"
    ):
        catalog.get_recipe("cifar100-nol")
    with pytest.raises(RecipeError, match="no recipe 'zzz'; `protosphere recipes` lists them"):
        catalog.get_recipe("zzz")
