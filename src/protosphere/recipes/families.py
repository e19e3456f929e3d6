"""The recipes of each family, as functions of the loss."""

from dataclasses import replace
from typing import Any, NamedTuple

from protosphere.data.augmentation import (
    AugmentationPolicy,
    ColorJitter,
    PaddedCrop,
    RandomResizedCrop,
)
from protosphere.data.mixing import Mixup
from protosphere.recipes.datasets import DigitsData, FlowersData, FolderData, TorchvisionData
from protosphere.recipes.registry import LOSSES, CESettings
from protosphere.recipes.schema import Recipe
from protosphere.recipes.schema.sections import (
    AdamWSettings,
    Backbone,
    CheckpointSettings,
    CosineSchedule,
    EvaluationSettings,
    LRScale,
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


class _Tuned(NamedTuple):
    """Settings of a loss that were the best of its trials.

    Attributes:
        lr: Learning rate.
        weight_decay: Weight decay.
        loss: Settings of the loss.
        uses_mixup: Whether images are mixed, with α = 0.2.
    """

    lr: float
    weight_decay: float
    loss: dict[str, float]
    uses_mixup: bool = False


# Eight trials each on validation images of CIFAR-100: benchmarks/sweeps.py. None uses EMA.
_TUNED = {
    "ce": _Tuned(0.45, 5.22e-4, {"label_smoothing": 0.0815}),
    "normface": _Tuned(0.225, 9.0e-4, {"temperature": 0.0834}, uses_mixup=True),
    "ntce": _Tuned(0.225, 9.0e-4, {"temperature": 0.0834}, uses_mixup=True),
    "nonl": _Tuned(0.45, 5.22e-4, {"temperature": 0.118}),
    "normface-nonl": _Tuned(0.45, 5.22e-4, {"temperature": 0.118}),
}
TUNED_LOSSES = tuple(_TUNED)
_JITTER = ColorJitter(0.4, 0.4, 0.4, 0.1)
_RESNET18 = Backbone(name="resnet18", stem="cifar", zero_init_residual=False)


def _settings(name: str, temperature: float) -> Any:
    settings = LOSSES[name].settings
    return (
        settings(temperature=temperature) if "temperature" in settings.model_fields else settings()
    )


def digits(loss: str) -> Recipe:
    """Return a recipe for handwritten digits."""
    return Recipe(
        name=f"digits-{loss}",
        data=DigitsData(),
        augmentation=AugmentationPolicy(size=8, crop=PaddedCrop(padding=1), hflip=0.0),
        model=Model(backbone=Backbone(name="small")),
        loss=_settings(loss, 0.2),
        optimizer=SGDSettings(lr=0.1, weight_decay=5e-4),
        schedule=CosineSchedule(epochs=15),
        training=Training(batch_size=64),
        evaluation=EvaluationSettings(every=5),
        checkpoint=CheckpointSettings(every=5),
        probe=ProbeSettings(epochs=20, batch_size=64, lr=0.5, milestones=(12, 15, 18)),
    )


def digits_contrastive(loss: str) -> Recipe:
    """Return a contrastive recipe for handwritten digits."""
    recipe = digits(loss)
    return recipe.model_copy(
        update={
            "augmentation": replace(recipe.augmentation, num_views=2),
            "model": Model(backbone=Backbone(name="small"), projection=MLPProjection(out_dim=32)),
            "optimizer": SGDSettings(lr=0.05, weight_decay=5e-4),
        }
    )


def cifar(num_classes: int, loss: str) -> Recipe:
    """Return a recipe for CIFAR with the paper's settings."""
    return Recipe(
        name=f"cifar{num_classes}-{loss}",
        data=TorchvisionData(source="cifar10" if num_classes == 10 else "cifar100"),
        model=Model(backbone=_RESNET18),
        loss=_settings(loss, _TEMPERATURES[num_classes].get(loss, 0.1)),
        schedule=CosineSchedule(epochs=1000),
        training=Training(precision="bf16"),
    )


def cifar_contrastive(num_classes: int, loss: str) -> Recipe:
    """Return a contrastive recipe for CIFAR with the paper's settings."""
    return cifar(num_classes, loss).model_copy(
        update={
            "augmentation": AugmentationPolicy(num_views=2, color_jitter=_JITTER, grayscale=0.2),
            "model": Model(backbone=_RESNET18, projection=MLPProjection()),
            "optimizer": SGDSettings(lr=0.05),
        }
    )


def cifar100_strong(loss: str) -> Recipe:
    """Return a recipe for CIFAR-100 with settings that suit cross-entropy."""
    return _cifar_strong(100, loss)


def _cifar_strong(num_classes: int, loss: str) -> Recipe:
    source: Any = f"cifar{num_classes}"
    return Recipe(
        name=f"{source}-strong-{loss}",
        data=TorchvisionData(source=source),
        augmentation=AugmentationPolicy(crop=PaddedCrop()),
        model=Model(backbone=_RESNET18.model_copy(update={"zero_init_residual": True})),
        loss=_settings(loss, _TEMPERATURES[num_classes].get(loss, 0.1)),
        optimizer=SGDSettings(lr=0.1, weight_decay=5e-4),
        schedule=CosineSchedule(epochs=200),
        training=Training(batch_size=128, precision="bf16"),
    )


def cifar100_best(loss: str) -> Recipe:
    """Return a recipe for CIFAR-100 with the settings that were the best of a sweep of the loss."""
    recipe, tuned = cifar100_strong(loss), _TUNED[loss]
    mixing = Mixup(alpha=0.2) if tuned.uses_mixup else None
    return recipe.model_copy(
        update={
            "name": f"cifar100-best-{loss}",
            "augmentation": replace(recipe.augmentation, mixing=mixing),
            "loss": LOSSES[loss].settings(**tuned.loss),
            "optimizer": SGDSettings(lr=tuned.lr, weight_decay=tuned.weight_decay),
            "schedule": CosineSchedule(epochs=100),
            "training": Training(batch_size=512, precision="bf16"),
        }
    )


def cifar_long_tail(num_classes: int, loss: str) -> Recipe:
    """Return a recipe for long-tailed CIFAR with the settings of cifar100-strong."""
    recipe = _cifar_strong(num_classes, loss)
    return recipe.model_copy(
        update={
            "name": f"cifar{num_classes}-lt-{loss}",
            "data": recipe.data.model_copy(update={"long_tail": 0.01}),
        }
    )


def cifar100_strong_smooth() -> Recipe:
    """Return cifar100-strong-ce with label smoothing."""
    return cifar100_strong("ce").model_copy(
        update={"name": "cifar100-strong-ce-smooth", "loss": CESettings(label_smoothing=0.1)}
    )


def folder(loss: str) -> Recipe:
    """Return a recipe for a folder of images, trained from scratch."""
    return Recipe(
        name=f"folder-{loss}",
        data=FolderData(path="data/images"),
        augmentation=AugmentationPolicy(size=224),
        model=Model(backbone=Backbone(name="resnet18")),
        loss=_settings(loss, 0.1),
        optimizer=SGDSettings(lr=0.05, weight_decay=5e-4),
        schedule=CosineSchedule(epochs=100, warmup_epochs=5),
        training=Training(batch_size=64, precision="bf16"),
        evaluation=EvaluationSettings(every=5),
        checkpoint=CheckpointSettings(every=5),
    )


def folder_finetune(loss: str) -> Recipe:
    """Return a recipe that fine-tunes a pretrained backbone on a folder of images."""
    return _finetune(
        "folder-finetune",
        loss,
        data=FolderData(path="data/images"),
        backbone="resnet50",
        size=224,
        batch_size=64,
        epochs=30,
    )


def flowers102(loss: str) -> Recipe:
    """Return a recipe that fine-tunes a pretrained backbone on Flowers-102."""
    return _finetune(
        "flowers102",
        loss,
        data=FlowersData(),
        backbone="tf_efficientnet_lite0",
        size=112,
        batch_size=128,
        epochs=60,
    )


def _finetune(
    family: str,
    loss: str,
    *,
    data: Any,
    backbone: str,
    size: int,
    batch_size: int,
    epochs: int,
) -> Recipe:
    return Recipe(
        name=f"{family}-{loss}",
        data=data,
        augmentation=AugmentationPolicy(size=size, crop=RandomResizedCrop(scale=(0.35, 1.0))),
        model=Model(backbone=Backbone(name=backbone, pretrained=True)),
        loss=_settings(loss, 0.1),
        # The head starts anew and needs larger steps than the backbone.
        optimizer=AdamWSettings(
            lr=0.01,
            weight_decay=0.05,
            lr_scale=LRScale(backbone=0.1),
            exclude_from_decay="norms_and_biases",
        ),
        schedule=CosineSchedule(epochs=epochs, warmup_epochs=epochs // 10),
        training=Training(batch_size=batch_size, precision="bf16"),
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
        loss=_settings(loss, temperature),
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


def imagenet100(backbone: str, loss: str) -> Recipe:
    """Return a recipe for ImageNet-100 with the paper's settings."""
    name = "imagenet100" if backbone == "resnet50" else f"imagenet100-{backbone}"
    recipe = _imagenet("imagenet100", loss, backbone=backbone, batch_size=1024, temperature=0.2)
    return recipe.model_copy(update={"name": f"{name}-{loss}"})


def imagenet1k(batch_size: int, loss: str) -> Recipe:
    """Return a recipe for ImageNet-1K with the paper's settings."""
    name = "imagenet1k" if batch_size == 2048 else f"imagenet1k-{batch_size}"
    recipe = _imagenet(
        "imagenet1k", loss, backbone="resnet50", batch_size=batch_size, temperature=0.1
    )
    return recipe.model_copy(update={"name": f"{name}-{loss}"})


def imagenet_contrastive(dataset: str, loss: str) -> Recipe:
    """Return a contrastive recipe for ImageNet with the paper's settings."""
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
