"""Where names meet classes, and nowhere else: a recipe's parts as objects."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protosphere.classifiers import (
    CosineClassifier,
    FixedFrameClassifier,
    LinearClassifier,
    MeanClassifier,
)
from protosphere.data.augmentation import Augmentation
from protosphere.data.datasets import DataError, ImageSet, Part, Source, hold_out, load, synthetic
from protosphere.data.folders import IMAGENET_MEAN, IMAGENET_STD, FileFeed, ImageFiles, load_folder
from protosphere.data.loaders import Feed, MemoryFeed
from protosphere.encoders import backbone, neck, projection
from protosphere.losses import (
    dot_regression_loss,
    nonl_loss,
    normface_loss,
    ntce_loss,
    prototype_loss,
    scl_loss,
)
from protosphere.recipes import schema
from protosphere.training import Objective, Schedule, Settings
from protosphere.training.objective import Loss

# Mean and standard deviation of each channel.
Statistics = tuple[tuple[float, ...], tuple[float, ...]]
_CONTRASTS = {"normface": normface_loss, "ntce": ntce_loss, "nonl": nonl_loss}
_SAMPLES = {"scl": scl_loss, "proto": prototype_loss}


def build_source(
    recipe: schema.Recipe,
    *,
    download: bool = False,
    tested: Literal["as trained", "test"] = "as trained",
) -> Source:
    """The data, with the validation part in the test's place where the recipe holds one out.

    Args:
        recipe: what they are.
        download: fetch a set that is not there.
        tested: ``"test"`` leaves the test images in their place.

    Raises:
        DataError: they are not there, make no sense, or have a class without training images.
    """
    source = _source(recipe.data, recipe.seed, download=download)
    counts = torch.bincount(source.train.labels, minlength=source.train.num_classes)
    if not bool(counts.all()):
        names = [
            source.train.class_names[index]
            for index in torch.nonzero(counts == 0).flatten().tolist()
        ]
        raise DataError(
            f"every class must have training images; {names[0]} has none ({len(names)} such classes)"
        )
    if not recipe.data.validation_share:
        return source
    if tested == "test" and not len(source.test):
        raise DataError(f"there must be test images in {recipe.data.path}; there are none")
    train, held = hold_out(source.train, recipe.data.validation_share, seed=recipe.seed)
    return Source(source.name, train, source.test if tested == "test" else held)


def _source(data: schema.Data, seed: int, *, download: bool) -> Source:
    if data.source == "synthetic":
        return synthetic(
            data.num_classes, samples=data.samples, resolution=data.resolution, seed=seed
        )
    if data.source == "folder":
        assert data.path is not None  # The schema has seen to it.
        parts = load_folder(
            data.path,
            classes=data.classes,
            test_part="optional" if data.validation_share else "needed",
        )
        return Source(Path(data.path).name, *parts)
    return load(data.source, root=data.root, path=data.path, download=download)


def build_feeds(
    recipe: schema.Recipe,
    source: Source,
    device: torch.device | str,
    *,
    statistics: Statistics | None = None,
) -> tuple[Feed, Feed]:
    """The training and the test images, on their way to a device.

    Args:
        recipe: what is done to them.
        source: the images.
        device: where they go.
        statistics: what they are normalized by; else that of the training part, for folders that of ImageNet.
    """
    train, test = source.train, source.test
    if train.channels == 1 and (any(recipe.views.jitter) or recipe.views.gray_probability):
        raise schema.RecipeError(
            "views.jitter and views.gray_probability are for images in color; these are gray"
        )
    augmentation = build_augmentation(recipe, *(statistics or normalization(train)))
    first, second = (_feed(part, augmentation, device, recipe) for part in (train, test))
    return first, second


def normalization(part: Part) -> Statistics:
    """Mean and standard deviation of each channel that images are normalized by."""
    return (
        part.channel_statistics() if isinstance(part, ImageSet) else (IMAGENET_MEAN, IMAGENET_STD)
    )


def build_augmentation(
    recipe: schema.Recipe, mean: Sequence[float], std: Sequence[float]
) -> Augmentation:
    """What is done to images."""
    views = recipe.views
    return Augmentation(
        **views.model_dump(exclude={"count"}),
        blur_kernel=_blur_kernel(views.size),
        mean=tuple(mean),
        std=tuple(std),
    )


def _feed(
    part: Part, augmentation: Augmentation, device: torch.device | str, recipe: schema.Recipe
) -> Feed:
    views = recipe.views.count
    if isinstance(part, ImageSet):
        return MemoryFeed(part.to(device), augmentation, views=views)
    assert isinstance(part, ImageFiles)
    return FileFeed(
        part, augmentation, device=torch.device(device), views=views, workers=recipe.data.workers
    )


def _blur_kernel(size: int) -> int:
    """A tenth of the image's side, odd, as contrastive training has it."""
    return max(3, size // 10 // 2 * 2 + 1)


def build_objective(recipe: schema.Recipe, *, num_classes: int, in_channels: int) -> Objective:
    """Encoder (backbone, neck and projection, one after the other), head and loss."""
    how = recipe.encoder
    body = backbone(how.backbone, stem=how.stem, in_channels=in_channels)
    dim = _width(body, recipe, in_channels)
    last = projection(how.projection, dim, hidden=how.projection_hidden, out=how.projection_dim)
    encoder = nn.Sequential(body, neck(how.neck, dim), last)
    out = dim if how.projection == "none" else how.projection_dim
    return Objective(encoder, _head(recipe.loss, out, num_classes), _loss(recipe.loss))


def _width(body: nn.Module, recipe: schema.Recipe, channels: int) -> int:
    """How wide the features are: by trying, since what models say of themselves is not always so."""
    size = recipe.views.size
    try:
        with torch.no_grad():
            features = body.eval()(torch.zeros(1, channels, size, size))
    except (RuntimeError, AssertionError, ValueError, IndexError) as error:
        reason = " ".join(str(error).split())[:100]
        raise schema.RecipeError(
            f"encoder.backbone {recipe.encoder.backbone} must take images of views.size {size}; it does not ({reason})"
        ) from None
    body.train()
    if features.ndim != 2:
        raise schema.RecipeError(
            f"encoder.backbone must give a vector an image; {recipe.encoder.backbone} does not"
        )
    return int(features.shape[1])


def build_settings(
    recipe: schema.Recipe, *, device: torch.device | str = "cpu", report_every: int | None = None
) -> Settings:
    """How to train on a device."""
    how = recipe.optimization
    schedule = Schedule(
        how.rate,
        how.epochs,
        how.schedule,
        final_share=how.final_share,
        milestones=how.milestones,
        gamma=how.gamma,
        warmup_epochs=how.warmup_epochs,
        warmup_rate=how.warmup_rate,
    )
    execution = how.execution
    if execution == "auto":
        execution = "compiled" if torch.device(device).type == "cuda" else "eager"
    return Settings(
        schedule,
        batch=how.batch,
        accumulate=how.accumulate,
        optimizer=how.optimizer,
        momentum=how.momentum,
        weight_decay=how.weight_decay,
        clip=how.clip,
        average=how.average,
        precision=how.precision,
        execution=execution,
        seed=recipe.seed,
        report_every=report_every,
    )


def build_probe_settings(recipe: schema.Recipe, *, device: torch.device | str = "cpu") -> Settings:
    """How linear layers are trained on the features of a run: SGD without weight decay, in steps."""
    how = recipe.probe
    schedule = Schedule(how.rate, how.epochs, "steps", milestones=how.milestones, gamma=how.gamma)
    main = build_settings(recipe, device=device)
    return replace(
        main,
        schedule=schedule,
        batch=how.batch,
        accumulate=1,
        optimizer="sgd",
        momentum=0.9,
        weight_decay=0.0,
        clip=None,
        average=None,
        report_every=None,
    )


def _head(loss: schema.Loss, dim: int, num_classes: int) -> nn.Module:
    if loss.kind == "ce":
        return LinearClassifier(dim, num_classes)
    if loss.kind == "etf-dr":
        return FixedFrameClassifier(dim, num_classes)
    if loss.kind in _SAMPLES:
        return MeanClassifier(dim, num_classes, temperature=loss.temperature)
    return CosineClassifier(dim, num_classes, temperature=loss.temperature)


def _loss(loss: schema.Loss) -> Loss:
    if loss.kind == "ce":

        def cross_entropy(features: Tensor, head: nn.Module, labels: Tensor) -> Tensor:
            with torch.autocast(features.device.type, enabled=False):
                return F.cross_entropy(
                    head(features.float()), labels, label_smoothing=loss.label_smoothing
                )

        return cross_entropy
    if loss.kind == "etf-dr":
        return lambda features, head, labels: dot_regression_loss(features, head.prototypes, labels)  # type: ignore[arg-type]
    if loss.kind in _SAMPLES:
        between = _SAMPLES[loss.kind]
        return lambda features, _, labels: between(features, labels, temperature=loss.temperature)
    contrast = _CONTRASTS[loss.kind]
    return lambda features, head, labels: contrast(
        features, head.prototypes, labels, temperature=loss.temperature
    )  # type: ignore[arg-type]
