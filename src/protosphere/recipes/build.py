"""Where names meet classes, and nowhere else: a recipe's parts as objects."""

import torch.nn.functional as F
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier, FixedFrameClassifier, LinearClassifier
from protosphere.data.pipeline import Augmentation
from protosphere.data.sources import ImageSet, Source, hold_out, load
from protosphere.encoders import backbone, neck
from protosphere.losses import dot_regression_loss, nonl_loss, normface_loss, ntce_loss
from protosphere.recipes import schema
from protosphere.training import Objective, Schedule, Settings
from protosphere.training.objective import Loss

_CONTRASTS = {"normface": normface_loss, "ntce": ntce_loss, "nonl": nonl_loss}


def build_source(recipe: schema.Recipe, *, download: bool = False) -> Source:
    """The data, with the validation part in the test's place where the recipe holds one out."""
    source = load(recipe.data.source, root=recipe.data.root, path=recipe.data.path, download=download)
    if not recipe.data.validation_share:
        return source
    train, held = hold_out(source.train, recipe.data.validation_share, seed=recipe.seed)
    return Source(source.name, train, held)


def build_augmentation(recipe: schema.Recipe, data: ImageSet) -> Augmentation:
    """What is done to the images; they are normalised by the statistics of the training part."""
    mean, std = data.channel_statistics()
    return Augmentation(**recipe.views.model_dump(), mean=mean, std=std)


def build_objective(recipe: schema.Recipe, *, num_classes: int, in_channels: int) -> Objective:
    """Encoder, head and loss."""
    body = backbone(recipe.encoder.backbone, stem=recipe.encoder.stem, in_channels=in_channels)
    dim = body.num_features
    if not isinstance(dim, int):
        raise schema.RecipeError(
            f"encoder.backbone must say how wide its features are; {recipe.encoder.backbone} does not"
        )
    encoder = nn.Sequential(body, neck(recipe.encoder.neck, dim))
    return Objective(encoder, _head(recipe.loss, dim, num_classes), _loss(recipe.loss))


def build_settings(recipe: schema.Recipe, *, report_every: int | None = None) -> Settings:
    """How to train."""
    how = recipe.optimisation
    schedule = Schedule(
        how.rate, how.epochs, how.schedule, final_share=how.final_share, warmup_epochs=how.warmup_epochs
    )
    return Settings(
        schedule,
        batch=how.batch,
        optimizer=how.optimizer,
        momentum=how.momentum,
        weight_decay=how.weight_decay,
        clip=how.clip,
        precision=how.precision,
        seed=recipe.seed,
        report_every=report_every,
    )


def _head(loss: schema.Loss, dim: int, num_classes: int) -> nn.Module:
    if loss.kind == "ce":
        return LinearClassifier(dim, num_classes)
    if loss.kind == "etf-dr":
        return FixedFrameClassifier(dim, num_classes)
    return CosineClassifier(dim, num_classes, temperature=loss.temperature)


def _loss(loss: schema.Loss) -> Loss:
    if loss.kind == "ce":

        def cross_entropy(features: Tensor, head: nn.Module, labels: Tensor) -> Tensor:
            return F.cross_entropy(head(features).float(), labels, label_smoothing=loss.label_smoothing)

        return cross_entropy
    if loss.kind == "etf-dr":
        return lambda features, head, labels: dot_regression_loss(features, head.prototypes, labels)  # type: ignore[arg-type]
    contrast = _CONTRASTS[loss.kind]
    return lambda features, head, labels: contrast(features, head.prototypes, labels, temperature=loss.temperature)  # type: ignore[arg-type]
