"""The recipes that come with the package: families with one recipe per loss, and variants."""

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from protosphere.data.augmentation import (
    AugmentationPolicy,
    ColorJitter,
    PaddedCrop,
    RandomResizedCrop,
)
from protosphere.recipes.datasets import DigitsData, FolderData, TorchvisionData
from protosphere.recipes.registry import LOSSES, CESettings
from protosphere.recipes.schema import Recipe, RecipeError
from protosphere.recipes.schema.sections import (
    Backbone,
    CheckpointSettings,
    CosineSchedule,
    EvaluationSettings,
    MLPProjection,
    Model,
    ProbeSettings,
    SGDSettings,
    Training,
)

# The temperatures with which the paper reports its best results, chosen on the test set there.
_TEMPERATURES = {
    10: {"normface": 0.6, "ntce": 0.6, "nonl": 0.2},
    100: {"normface": 0.3, "ntce": 0.2, "nonl": 0.1},
}
_JITTER = ColorJitter(0.4, 0.4, 0.4, 0.1)
_RESNET18 = Backbone(name="resnet18", stem="cifar", zero_init_residual=False)


@dataclass(frozen=True)
class Family:
    """Recipes that differ in their loss alone.

    Attributes:
        make: Creates the recipe of a loss, given the loss's name.
        losses: Names of the losses that it has recipes for.
        description: What the recipes are and which accuracy to expect.
    """

    make: Callable[[str], Recipe]
    losses: tuple[str, ...]
    description: str


def _loss(name: str, temperature: float) -> Any:
    settings = LOSSES[name].settings
    return (
        settings(temperature=temperature) if "temperature" in settings.model_fields else settings()
    )


def _losses(training: str) -> tuple[str, ...]:
    return tuple(name for name, entry in LOSSES.items() if entry.training == training)


def _digits(loss: str) -> Recipe:
    return Recipe(
        name=f"digits-{loss}",
        data=DigitsData(),
        augmentation=AugmentationPolicy(size=8, crop=PaddedCrop(padding=1), hflip=0.0),
        model=Model(backbone=Backbone(name="small")),
        loss=_loss(loss, 0.2),
        optimizer=SGDSettings(lr=0.1, weight_decay=5e-4),
        schedule=CosineSchedule(epochs=15),
        training=Training(batch_size=64),
        evaluation=EvaluationSettings(every=5),
        checkpoint=CheckpointSettings(every=5),
        probe=ProbeSettings(epochs=20, batch_size=64, lr=0.5, milestones=(12, 15, 18)),
    )


def _digits_contrastive(loss: str) -> Recipe:
    recipe = _digits(loss)
    return recipe.model_copy(
        update={
            "augmentation": replace(recipe.augmentation, num_views=2),
            "model": Model(backbone=Backbone(name="small"), projection=MLPProjection(out_dim=32)),
            "optimizer": SGDSettings(lr=0.05, weight_decay=5e-4),
        }
    )


def _cifar(num_classes: int, loss: str) -> Recipe:
    return Recipe(
        name=f"cifar{num_classes}-{loss}",
        data=TorchvisionData(source="cifar10" if num_classes == 10 else "cifar100"),
        model=Model(backbone=_RESNET18),
        loss=_loss(loss, _TEMPERATURES[num_classes].get(loss, 0.1)),
        schedule=CosineSchedule(epochs=1000),
        training=Training(precision="bf16"),
    )


def _cifar_contrastive(num_classes: int, loss: str) -> Recipe:
    return _cifar(num_classes, loss).model_copy(
        update={
            "augmentation": AugmentationPolicy(num_views=2, color_jitter=_JITTER, grayscale=0.2),
            "model": Model(backbone=_RESNET18, projection=MLPProjection()),
            "optimizer": SGDSettings(lr=0.05),
        }
    )


def _cifar100_strong(loss: str) -> Recipe:
    return Recipe(
        name=f"cifar100-strong-{loss}",
        data=TorchvisionData(source="cifar100"),
        augmentation=AugmentationPolicy(crop=PaddedCrop()),
        model=Model(backbone=_RESNET18.model_copy(update={"zero_init_residual": True})),
        loss=_loss(loss, _TEMPERATURES[100].get(loss, 0.1)),
        optimizer=SGDSettings(lr=0.1, weight_decay=5e-4),
        schedule=CosineSchedule(epochs=200),
        training=Training(batch_size=128, precision="bf16"),
    )


def _cifar100_strong_smooth() -> Recipe:
    return _cifar100_strong("ce").model_copy(
        update={"name": "cifar100-strong-ce-smooth", "loss": CESettings(label_smoothing=0.1)}
    )


def _folder(loss: str) -> Recipe:
    return Recipe(
        name=f"folder-{loss}",
        data=FolderData(path="data/images"),
        augmentation=AugmentationPolicy(size=224),
        model=Model(backbone=Backbone(name="resnet18")),
        loss=_loss(loss, 0.1),
        optimizer=SGDSettings(lr=0.05, weight_decay=5e-4),
        schedule=CosineSchedule(epochs=100, warmup_epochs=5),
        training=Training(batch_size=64, precision="bf16"),
        evaluation=EvaluationSettings(every=5),
        checkpoint=CheckpointSettings(every=5),
    )


def _imagenet(
    dataset: str, loss: str, *, backbone: str, batch_size: int, temperature: float
) -> Recipe:
    return Recipe(
        name=f"{dataset}-{loss}",
        data=FolderData(
            path="data/imagenet",
            classes="data/imagenet100.txt" if dataset == "imagenet100" else None,
        ),
        augmentation=AugmentationPolicy(size=224, crop=RandomResizedCrop()),
        model=Model(backbone=Backbone(name=backbone, zero_init_residual=False)),
        loss=_loss(loss, temperature),
        optimizer=SGDSettings(lr=0.1 * batch_size / 256),
        schedule=CosineSchedule(epochs=500, warmup_epochs=10),
        training=Training(batch_size=batch_size, precision="bf16"),
        evaluation=EvaluationSettings(every=25, metrics="cheap"),
        checkpoint=CheckpointSettings(every=1),
        probe=ProbeSettings(
            epochs=90,
            batch_size=1024,
            lr=2.0 if dataset == "imagenet100" else 0.8,
            milestones=(30, 60, 80),
        ),
    )


def _imagenet100(backbone: str, loss: str) -> Recipe:
    name = "imagenet100" if backbone == "resnet50" else f"imagenet100-{backbone}"
    recipe = _imagenet("imagenet100", loss, backbone=backbone, batch_size=1024, temperature=0.2)
    return recipe.model_copy(update={"name": f"{name}-{loss}"})


def _imagenet1k(batch_size: int, loss: str) -> Recipe:
    name = "imagenet1k" if batch_size == 2048 else f"imagenet1k-{batch_size}"
    recipe = _imagenet(
        "imagenet1k", loss, backbone="resnet50", batch_size=batch_size, temperature=0.1
    )
    return recipe.model_copy(update={"name": f"{name}-{loss}"})


def _imagenet_contrastive(dataset: str, loss: str) -> Recipe:
    small = dataset == "imagenet100"
    batch_size = 1024 if small else 2048
    recipe = _imagenet(dataset, loss, backbone="resnet50", batch_size=batch_size, temperature=0.1)
    return recipe.model_copy(
        update={
            "augmentation": AugmentationPolicy(
                size=224, num_views=2, color_jitter=_JITTER, grayscale=0.2, gaussian_blur=0.5
            ),
            "model": recipe.model.model_copy(update={"projection": MLPProjection()}),
            "optimizer": SGDSettings(lr=(0.8 if small else 0.1) * batch_size / 256),
            "schedule": CosineSchedule(epochs=500, warmup_epochs=10 if small else 5),
        }
    )


def _with_batchnorm(family: str) -> Recipe:
    recipe = get_recipe(f"{family}-etf-dr")
    return recipe.model_copy(
        update={
            "name": f"{family}-etf-dr-batchnorm",
            "model": recipe.model.model_copy(update={"neck": "batchnorm"}),
        }
    )


_CLASSIFIER, _CONTRASTIVE = _losses("classifier"), _losses("contrastive")


def _families() -> Iterator[tuple[str, Family]]:
    """Yield the families with the prefix of their recipes' names."""
    yield (
        "digits",
        Family(
            _digits,
            _CLASSIFIER,
            "Handwritten digits (8x8 pixels) on a CPU in seconds. Test accuracy 95 to 99 %.",
        ),
    )
    for num_classes, paper in (
        (10, "ce 94.6, etf-dr 94.4, normface 94.8, ntce 94.7, nonl 94.9"),
        (100, "ce 72.1, etf-dr 72.1, normface 72.4, ntce 72.9, nonl 73.6"),
    ):
        yield (
            f"cifar{num_classes}",
            Family(
                lambda loss, k=num_classes: _cifar(k, loss),  # type: ignore[misc]
                _CLASSIFIER,
                f"CIFAR-{num_classes} with the paper's settings: ResNet-18, 1000 epochs, batch "
                f"size 512, SGD with lr 0.2 and cosine decay. Test accuracy in the paper: {paper} "
                "%. docs/benchmarks.md has shorter runs.",
            ),
        )
    yield (
        "cifar100-strong",
        Family(
            _cifar100_strong,
            _CLASSIFIER,
            "CIFAR-100 with settings that suit cross-entropy: ResNet-18 with zero-initialized "
            "residual blocks, 200 epochs, batch size 128, SGD with lr 0.1 and weight decay 5e-4, "
            "padded crops. docs/benchmarks.md has measured accuracies.",
        ),
    )
    yield (
        "folder",
        Family(
            _folder,
            _CLASSIFIER,
            "Your own images: a folder with train/CLASS/* and val/CLASS/*, given by data.path. "
            "ResNet-18 from scratch, 224 pixels, 100 epochs, batch size 64.",
        ),
    )
    for backbone, paper in (
        ("resnet50", "ce 84.4, etf-dr 84.5, normface 84.4, ntce 84.7, nonl 84.9"),
        ("resnet101", "ce 85.3, normface 85.4, ntce 85.4, nonl 85.5"),
        ("resnet152", "ce 85.5, normface 85.6, ntce 85.4, nonl 85.8"),
    ):
        yield (
            "imagenet100" if backbone == "resnet50" else f"imagenet100-{backbone}",
            Family(
                lambda loss, name=backbone: _imagenet100(name, loss),  # type: ignore[misc]
                _CLASSIFIER,
                f"ImageNet-100 with the paper's settings: {backbone}, 224 pixels, 500 epochs, "
                "batch size 1024. Images from data/imagenet (train, val), classes listed in "
                f"data/imagenet100.txt. Test accuracy in the paper: {paper} %; not yet measured "
                "with this package.",
            ),
        )
    for batch_size, paper in (
        (2048, "ce 75.4, etf-dr 75.4 (best batch size), normface 75.6, ntce 76.0, nonl 75.0"),
        (4096, "ce 75.4, normface 76.4, ntce 76.7, nonl 76.2"),
        (8192, "ce 75.1, normface 76.3, ntce 76.7, nonl 76.5"),
    ):
        yield (
            "imagenet1k" if batch_size == 2048 else f"imagenet1k-{batch_size}",
            Family(
                lambda loss, size=batch_size: _imagenet1k(size, loss),  # type: ignore[misc]
                _CLASSIFIER,
                "ImageNet-1K with the paper's settings: ResNet-50, 224 pixels, 500 epochs, batch "
                f"size {batch_size}. Images from data/imagenet (train, val). Test accuracy in the "
                f"paper: {paper} %; not yet measured with this package.",
            ),
        )


def _contrastive_families() -> Iterator[tuple[str, Family]]:
    yield (
        "digits",
        Family(
            _digits_contrastive,
            _CONTRASTIVE,
            "Handwritten digits, two views of each image and a projection head; classified by "
            "class means. Test accuracy about 99 %.",
        ),
    )
    for num_classes, paper in ((10, "95.0"), (100, "73.9")):
        yield (
            f"cifar{num_classes}",
            Family(
                lambda loss, k=num_classes: _cifar_contrastive(k, loss),  # type: ignore[misc]
                _CONTRASTIVE,
                f"CIFAR-{num_classes}, contrastive, with the paper's settings: two views with "
                "color jitter, ResNet-18 with a 512-512-128 projection head, 1000 epochs, batch "
                "size 512, SGD with lr 0.05; classified by class means. Test accuracy of scl in "
                f"the paper: {paper} %. docs/benchmarks.md has shorter runs.",
            ),
        )
    for dataset, title, paper in (
        ("imagenet100", "ImageNet-100", "86.8"),
        ("imagenet1k", "ImageNet-1K", "75.1"),
    ):
        yield (
            dataset,
            Family(
                lambda loss, name=dataset: _imagenet_contrastive(name, loss),  # type: ignore[misc]
                _CONTRASTIVE,
                f"{title}, contrastive, with the paper's settings: two views with color jitter "
                "and blur, ResNet-50 with a 2048-2048-128 projection head, 500 epochs; classified "
                f"by class means. Test accuracy of scl in the paper: {paper} %; not yet measured "
                "with this package.",
            ),
        )


def _variants() -> Iterator[tuple[str, Callable[[], Recipe], str]]:
    """Yield recipes that are not members of a family: name, constructor, description."""
    yield (
        "cifar100-strong-ce-smooth",
        _cifar100_strong_smooth,
        "cifar100-strong-ce with label smoothing 0.1; not yet measured with this package.",
    )
    for family in ("cifar10", "cifar100", "imagenet100", "imagenet1k"):
        yield (
            f"{family}-etf-dr-batchnorm",
            lambda name=family: _with_batchnorm(name),  # type: ignore[misc]
            f"{family}-etf-dr with a batch norm after the last ReLU of the encoder, so that "
            "features can be negative and reach the simplex ETF; not yet measured with this "
            "package.",
        )


def _entries() -> Iterator[tuple[list[tuple[str, Callable[[], Recipe]]], str]]:
    for families in (_families(), _contrastive_families()):
        for prefix, family in families:
            recipes = [
                (f"{prefix}-{loss}", lambda loss=loss, make=family.make: make(loss))
                for loss in family.losses
            ]
            yield recipes, family.description  # type: ignore[misc]
    for name, make, description in _variants():
        yield [(name, make)], description


def groups() -> list[tuple[list[str], str]]:
    """Return the recipes in groups: the names that belong together and their description."""
    return [([name for name, _ in recipes], text) for recipes, text in _entries()]


def names() -> list[str]:
    """Return the names of all recipes."""
    return [name for group, _ in groups() for name in group]


def get_recipe(name: str) -> Recipe:
    """Return a recipe by name.

    Raises:
        RecipeError: There is no recipe of that name.
    """
    for recipes, _ in _entries():
        for known, make in recipes:
            if known == name:
                return make()
    near = difflib.get_close_matches(name, names(), 1)
    hint = f"did you mean {near[0]}?" if near else "`protosphere recipes` lists them"
    raise RecipeError(f"there is no recipe {name!r}; {hint}")


def description(name: str) -> str:
    """Return what a recipe is and which accuracy to expect."""
    return next(text for group, text in groups() if name in group)
