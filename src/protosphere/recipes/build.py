"""Turn a recipe into objects: dataset, loaders, objective and training configuration."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch

from protosphere.data.augmentation import Augmentation
from protosphere.data.class_groups import group_classes, read_class_groups
from protosphere.data.datasets import ChannelStatistics, DataError, ImageDataset, split_validation
from protosphere.data.folder_memory import (
    MemoryImages,
    fits_in_memory,
    load_into_memory,
    memory_limit,
)
from protosphere.data.folders import ImageFiles
from protosphere.data.imbalance import class_counts
from protosphere.data.label_noise import add_label_noise
from protosphere.data.loaders import FolderLoader, Loader, MemoryLoader
from protosphere.data.long_tail import take_long_tail
from protosphere.data.progress import Progress, no_progress, split_progress
from protosphere.data.splits import ImageSet, Split
from protosphere.encoders.pretrained import input_config
from protosphere.recipes.datasets import DATASETS, DataSettings, ImageFilesData, LoadOptions
from protosphere.recipes.objectives import create_objective
from protosphere.recipes.schema import Recipe, RecipeError
from protosphere.recipes.schema.sections import (
    AdamWSettings,
    SGDSettings,
    TimmOptimizerSettings,
)
from protosphere.training import (
    SGD,
    AdamW,
    Objective,
    OptimizerConfig,
    ParameterGroups,
    Schedule,
    TimmOptimizer,
    TrainConfig,
)
from protosphere.training.fsdp import OPTIMIZERS as FSDP_OPTIMIZERS

__all__ = [
    "EvaluationSplit",
    "channel_statistics",
    "count_classes",
    "create_loaders",
    "create_objective",
    "create_probe_config",
    "create_train_config",
    "keeps_in_memory",
    "load_dataset",
]

EvaluationSplit = Literal["test", "validation"]
_WARMUP_LR = 0.01


def load_dataset(
    recipe: Recipe, *, download: bool = False, split: EvaluationSplit | None = None
) -> ImageDataset:
    """Load the data of a recipe.

    The keys of ``data`` act in this order: ``class_groups`` on all images; ``validation_fraction``;
    ``long_tail`` and ``label_noise`` on the training images that remain, so that validation and
    test images keep all classes and their true labels. Which images a long tail keeps and which
    labels are wrong does not depend on the seed of the recipe: runs with other losses and other
    seeds train on the same images and labels (unless ``validation_fraction``, whose choice does
    depend on the seed, has taken other images away).

    Args:
        recipe: The recipe.
        download: Whether a missing dataset is downloaded.
        split: Which images stand in ``dataset.test``: the test images, or those held out of the
            training images. None takes what the recipe evaluates on.

    Returns:
        The dataset. Its training images never contain the held-out ones.

    Raises:
        DataError: The data are missing or not valid, a class has no training images, or the groups
            of classes do not match.
    """
    fraction = recipe.data.validation_fraction
    split = recipe.split if split is None else split
    if split not in ("test", "validation"):
        raise DataError(f"split must be test or validation, got {split!r}")
    if split == "validation" and not recipe.data.has_validation:
        raise DataError("there are no validation images: data.validation_fraction is 0")
    options = LoadOptions(recipe.seed, download, split)
    dataset = DATASETS[recipe.data.source].load(recipe.data, options)
    _check_classes(dataset)
    if recipe.data.class_groups is not None:
        dataset = _group_classes(dataset, recipe.data.class_groups)
    if fraction:
        train, validation = split_validation(dataset.train, fraction, seed=recipe.seed)
        dataset = replace(
            dataset, train=train, test=dataset.test if split == "test" else validation
        )
    return replace(dataset, train=_change_training_images(recipe.data, dataset.train))


def _group_classes(dataset: ImageDataset, source: str) -> ImageDataset:
    groups = read_class_groups(source)
    return replace(
        dataset,
        train=group_classes(dataset.train, groups),
        test=group_classes(dataset.test, groups),
    )


def _change_training_images(data: DataSettings, train: Split) -> Split:
    """Take images away for a long tail, and add wrong labels."""
    if data.long_tail is not None:
        train = take_long_tail(train, data.long_tail)
    if data.label_noise is not None:
        noise = data.label_noise
        train = add_label_noise(train, name=noise.name, fraction=noise.fraction)
    return train


def _check_classes(dataset: ImageDataset) -> None:
    counts = torch.bincount(dataset.train.labels, minlength=dataset.train.num_classes)
    empty = torch.nonzero(counts == 0).flatten().tolist()
    if empty:
        name = dataset.train.class_names[empty[0]]
        others = f" (nor do {len(empty) - 1} others)" if len(empty) > 1 else ""
        raise DataError(f"every class must have training images; {name} has none{others}")


def create_loaders(
    recipe: Recipe,
    dataset: ImageDataset,
    device: torch.device | str,
    *,
    statistics: ChannelStatistics | None = None,
    in_memory: bool | None = None,
    progress: Progress = no_progress,
) -> tuple[Loader, Loader]:
    """Create the loaders of the training images and of those for evaluation.

    Folders of images are read into memory first if the recipe says so.

    Args:
        recipe: The recipe.
        dataset: The images.
        device: Where batches are put.
        statistics: Mean and standard deviation to normalize with; None takes those of
            :func:`channel_statistics`.
        in_memory: What ``data.in_memory: auto`` means; None decides by the size of the memory.
        progress: Called with the fraction of the images that has been read into memory.

    Raises:
        RecipeError: The augmentation is for color images and these are grayscale.
    """
    policy = recipe.augmentation
    if dataset.train.channels == 1 and policy.needs_color:
        key = "grayscale" if policy.color_jitter is None else "color_jitter"
        raise RecipeError(f"augmentation.{key} needs color images; these are grayscale")
    statistics = channel_statistics(recipe, dataset) if statistics is None else statistics
    augmentation = Augmentation(policy, *statistics)
    sampler = recipe.data.sampler

    def create(split: Split) -> Loader:
        if isinstance(split, ImageFiles):
            workers = recipe.data.workers if isinstance(recipe.data, ImageFilesData) else 0
            return FolderLoader(
                split, augmentation, device=device, workers=workers, sampler=sampler
            )
        assert isinstance(split, ImageSet | MemoryImages)
        return MemoryLoader(split.to(device), augmentation, sampler=sampler)

    train, test = _in_memory(recipe, dataset, device, in_memory, progress)
    return create(train), create(test)


def keeps_in_memory(
    recipe: Recipe, dataset: ImageDataset, device: torch.device | str, *, copies: int = 1
) -> bool:
    """Return what ``data.in_memory: auto`` means on this machine.

    Args:
        recipe: The recipe.
        dataset: The images.
        device: Where batches are put.
        copies: Number of processes on this machine, each of which keeps the images.
    """
    if not isinstance(dataset.train, ImageFiles):
        return True
    num_images = copies * (len(dataset.train) + len(dataset.test))
    return fits_in_memory(num_images, recipe.augmentation.size, limit_bytes=memory_limit(device))


def _in_memory(
    recipe: Recipe,
    dataset: ImageDataset,
    device: torch.device | str,
    in_memory: bool | None,
    progress: Callable[[float], None],
) -> tuple[Split, Split]:
    """Return the splits, images on disk read into memory if the recipe says so."""
    train, test, size = dataset.train, dataset.test, recipe.augmentation.size
    if not (isinstance(train, ImageFiles) and isinstance(test, ImageFiles)):
        return train, test
    data = recipe.data
    wanted = data.in_memory if isinstance(data, ImageFilesData) else "auto"
    if wanted == "auto" and in_memory is not None:
        wanted = in_memory
    elif wanted == "auto":
        wanted = keeps_in_memory(recipe, dataset, device)
    if not wanted:
        return train, test
    workers = data.workers if isinstance(data, ImageFilesData) else 8
    stages = split_progress(progress, [len(train), len(test)])
    return (
        load_into_memory(train, size=size, workers=workers, progress=stages[0]),
        load_into_memory(test, size=size, workers=workers, progress=stages[1]),
    )


def channel_statistics(recipe: Recipe, dataset: ImageDataset) -> ChannelStatistics:
    """Return mean and standard deviation to normalize with.

    Args:
        recipe: The recipe.
        dataset: The images.

    Returns:
        Those that a pretrained backbone was trained with, otherwise those of the training images.
    """
    backbone = recipe.model.backbone
    if not backbone.pretrained:
        return dataset.train.channel_statistics()
    config = input_config(backbone.name, in_channels=dataset.train.channels)
    if config is None:
        return dataset.train.channel_statistics()
    return ChannelStatistics(config.mean, config.std)


def count_classes(dataset: ImageDataset) -> tuple[int, ...]:
    """Return the number of training images of each class."""
    return tuple(class_counts(dataset.train.labels, dataset.train.num_classes).tolist())


def create_train_config(
    recipe: Recipe,
    objective: Objective | None = None,
    *,
    device: torch.device | str = "cpu",
    report_every: int | None = None,
    world_size: int = 1,
) -> TrainConfig:
    """Create the training configuration.

    Args:
        recipe: The recipe.
        objective: The objective to train, to check that the settings of the optimizer fit it.
        device: Where to train; ``compile: auto`` compiles on a GPU, unless the objective has
            synchronized batch norm, at which a compiled encoder falls into pieces, or processes
            divide its weights.
        report_every: Number of steps between progress reports within an epoch.
        world_size: Number of processes that train together.

    Raises:
        RecipeError: The optimizer cannot be created, or its settings do not fit the objective; or
            the batch does not fit several processes, or something does not go with ``fsdp``.
    """
    training, optimizer = recipe.training, recipe.optimizer
    is_divided = training.fsdp and world_size > 1
    if is_divided:
        _check_fsdp(recipe)
    compiled = training.compile
    if compiled == "auto":
        is_whole = not (is_divided or _has_sync_batch_norm(objective))
        compiled = torch.device(device).type == "cuda" and is_whole
    if training.batch_size < world_size:
        raise RecipeError(
            f"training.batch_size must be at least the number of processes ({world_size}), got "
            f"{training.batch_size}"
        )
    groups = _create_parameter_groups(optimizer)
    try:
        created = _create_optimizer(optimizer)
        if objective is not None:
            groups.split(objective)
    except ValueError as error:
        text = re.sub(r"(backbone|neck|head)_lr_scale", r"lr_scale.\1", str(error))
        raise RecipeError(f"optimizer: {text}") from None
    return TrainConfig(
        _create_schedule(recipe),
        training.batch_size,
        optimizer=created,
        micro_batch_size=training.micro_batch_size,
        grad_clip=training.grad_clip,
        ema_decay=training.ema_decay,
        precision=training.precision,
        compile=compiled,
        fsdp=training.fsdp,
        mixing=recipe.augmentation.mixing,
        parameter_groups=groups,
        seed=recipe.seed,
        report_every=report_every,
    )


def _check_fsdp(recipe: Recipe) -> None:
    if recipe.training.compile is True:
        raise RecipeError("training.compile must be auto or false with training.fsdp, got true")
    if recipe.optimizer.name not in FSDP_OPTIMIZERS:
        raise RecipeError(
            f"optimizer.name must be one of {', '.join(FSDP_OPTIMIZERS)} with training.fsdp, got "
            f"{recipe.optimizer.name}"
        )


def _has_sync_batch_norm(objective: Objective | None) -> bool:
    parts = () if objective is None else objective.modules()
    return any(isinstance(part, torch.nn.SyncBatchNorm) for part in parts)


def _create_parameter_groups(
    settings: SGDSettings | AdamWSettings | TimmOptimizerSettings,
) -> ParameterGroups:
    return ParameterGroups(
        backbone_lr_scale=settings.lr_scale.backbone,
        neck_lr_scale=settings.lr_scale.neck,
        head_lr_scale=settings.lr_scale.head,
        layer_decay=settings.layer_decay,
        exclude_from_decay=settings.exclude_from_decay,
    )


def _create_optimizer(
    settings: SGDSettings | AdamWSettings | TimmOptimizerSettings,
) -> OptimizerConfig:
    if isinstance(settings, SGDSettings):
        return SGD(momentum=settings.momentum, weight_decay=settings.weight_decay)
    if isinstance(settings, AdamWSettings):
        return AdamW(betas=settings.betas, weight_decay=settings.weight_decay)
    return TimmOptimizer(
        settings.name, weight_decay=settings.weight_decay, options=settings.options
    )


def _create_schedule(recipe: Recipe) -> Schedule:
    settings = recipe.schedule
    decay = settings.model_dump(exclude={"name", "epochs", "warmup_epochs", "warmup_lr"})
    return Schedule(
        recipe.optimizer.lr,
        settings.epochs,
        settings.name,
        warmup_epochs=settings.warmup_epochs,
        warmup_lr=settings.warmup_lr or _default_warmup_lr(recipe.optimizer.lr),
        **decay,
    )


def _default_warmup_lr(lr: float) -> float:
    return _WARMUP_LR if lr > _WARMUP_LR else lr / 10


def create_probe_config(recipe: Recipe, *, device: torch.device | str = "cpu") -> TrainConfig:
    """Create the configuration that linear probes are trained with: SGD without weight decay.

    Args:
        recipe: The recipe of the run.
        device: Where to train.
    """
    probe = recipe.probe
    schedule = Schedule(
        probe.lr, probe.epochs, "multistep", milestones=probe.milestones, gamma=probe.gamma
    )
    return replace(
        create_train_config(recipe, device=device),
        schedule=schedule,
        batch_size=probe.batch_size,
        optimizer=SGD(momentum=0.9, weight_decay=0.0),
        micro_batch_size=None,
        grad_clip=None,
        ema_decay=None,
        mixing=None,
        parameter_groups=ParameterGroups(),
    )
