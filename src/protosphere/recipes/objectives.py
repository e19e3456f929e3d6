"""Turn the model and the loss of a recipe into an objective."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from protosphere.classifiers.protocol import Head
from protosphere.encoders import Encoder, create_backbone, create_neck, create_projection
from protosphere.encoders.freezing import freeze_backbone
from protosphere.losses.module import LossModule
from protosphere.parallel import ProcessGroup
from protosphere.recipes.loss_settings import CosineHeadSettings
from protosphere.recipes.queues import QueueSettings
from protosphere.recipes.registry import LOSSES, create_sharded_head
from protosphere.recipes.schema import Recipe, RecipeError
from protosphere.recipes.schema.sections import FrozenStages
from protosphere.training import Objective


def create_objective(
    recipe: Recipe,
    *,
    num_classes: int,
    in_channels: int,
    device: torch.device | str = "cpu",
    class_counts: Sequence[int] | None = None,
    pretrained: Literal["recipe", "none"] = "recipe",
    group: ProcessGroup | None = None,
) -> Objective:
    """Create encoder, head and loss with the initial weights of the recipe's seed.

    Args:
        recipe: The recipe.
        num_classes: Number of classes of the data.
        in_channels: Number of channels of the images.
        device: Where the objective is put.
        class_counts: Number of training images of each class; only losses with class weights by
            name, logit adjustment or a queue need it.
        pretrained: ``"none"`` does not load the pretrained weights of the recipe, for objectives
            that get other weights.
        group: Processes that train together: the loss is that of the batch of all of them, and on
            GPUs batch norm has the statistics of all of them.

    Raises:
        RecipeError: The backbone does not fit the images, or the loss does not fit the classes.
    """
    torch.manual_seed(recipe.seed)
    sync = group if torch.device(device).type == "cuda" else None
    encoder = _create_encoder(recipe, in_channels, pretrained, sync)
    entry, settings = LOSSES[recipe.loss.name], recipe.loss
    if class_counts is not None:
        settings = settings.with_class_counts(class_counts)
    weights = settings.class_weights
    if isinstance(weights, tuple) and len(weights) != num_classes:
        raise RecipeError(
            f"loss.class_weights must have one weight for each of the {num_classes} classes, got "
            f"{len(weights)}"
        )
    try:
        if group is not None and getattr(settings, "shard_prototypes", False):
            assert isinstance(settings, CosineHeadSettings)
            head: Head = create_sharded_head(settings, encoder.out_dim, num_classes, group)
        else:
            head = entry.head(settings, encoder.out_dim, num_classes)
        loss = entry.loss(settings, group)
        queue: QueueSettings | None = getattr(settings, "queue", None)
        if queue is not None:
            assert isinstance(loss, LossModule)
            loss.queue = queue.create(
                encoder.out_dim,
                batch_size=recipe.training.batch_size,
                num_views=recipe.augmentation.num_views,
                num_train=int(settings.counts_tensor().sum()),
                group=group,
                is_divided=loss.queue_group is not None,
            )
    except ValueError as error:
        raise RecipeError(f"loss {settings.name}: {error}") from None
    if entry.call == "features":
        loss = _WithoutHead(loss)
    return Objective(encoder, head, loss).to(device)


class _WithoutHead(nn.Module):
    """Adapts a loss of (features, labels) to the call of an objective."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, features: Tensor, _: Head, labels: Tensor) -> Tensor:
        result: Tensor = self.loss(features, labels)
        return result


def _create_encoder(
    recipe: Recipe,
    in_channels: int,
    pretrained: Literal["recipe", "none"],
    sync: ProcessGroup | None,
) -> Encoder:
    model = recipe.model
    try:
        backbone = create_backbone(
            model.backbone.name,
            stem=model.backbone.stem,
            in_channels=in_channels,
            zero_init_residual=model.backbone.zero_init_residual,
            pretrained=model.backbone.pretrained if pretrained == "recipe" else False,
        )
    except ValueError as error:
        raise RecipeError(f"model.backbone: {error}") from None
    dim = _feature_dim(backbone, recipe, in_channels)
    projection = None
    if model.projection is not None:
        options = model.projection.model_dump()
        projection = create_projection(options.pop("name"), dim, **options)
    encoder = Encoder(backbone, create_neck(model.neck, dim), projection, feature_dim=dim)
    if sync is not None:
        # Before parts are frozen, which is remembered of the modules themselves.
        encoder = _sync_batch_norm(encoder, sync)
    if model.freeze != "none":
        stages = model.freeze.stages if isinstance(model.freeze, FrozenStages) else model.freeze
        try:
            freeze_backbone(encoder, stages)
        except ValueError as error:
            raise RecipeError(f"model.freeze: {error}") from None
    return encoder


def _sync_batch_norm(encoder: Encoder, group: ProcessGroup | None) -> Encoder:
    """Let batch norm use the statistics of all processes; the names of weights stay."""
    # Torch's own function drops the activation of timm's layers of norm and activation.
    from timm.layers.norm_act import (  # noqa: PLC0415  Only for several GPUs.
        convert_sync_batchnorm,
    )

    converted: Encoder = convert_sync_batchnorm(encoder, group)  # type: ignore[no-untyped-call]
    return converted


def _feature_dim(backbone: nn.Module, recipe: Recipe, channels: int) -> int:
    """Return the feature dimension by a trial: what models state of themselves is not always so."""
    size, name = recipe.augmentation.size, recipe.model.backbone.name
    try:
        with torch.no_grad():
            features = backbone.eval()(torch.zeros(1, channels, size, size))
    except (RuntimeError, AssertionError, ValueError, IndexError) as error:
        reason = " ".join(str(error).split())[:100]
        raise RecipeError(
            f"model.backbone {name} does not take images of augmentation.size {size} ({reason})"
        ) from None
    backbone.train()
    if features.ndim != 2:
        raise RecipeError(f"model.backbone {name} must return one vector per image")
    return int(features.shape[1])
