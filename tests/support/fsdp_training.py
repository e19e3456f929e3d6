"""What the processes of a test run: a small transformer whose weights they divide among them."""

import copy
import itertools
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier, ShardedCosineClassifier
from protosphere.data.loaders import FeatureLoader
from protosphere.encoders import Encoder
from protosphere.losses import NONLLoss
from protosphere.parallel.launch import World
from protosphere.runs.checkpoints import Checkpoint
from protosphere.training import Objective, ParameterGroups, Schedule, TrainConfig, train
from protosphere.training.fsdp import (
    find_blocks,
    is_divided,
    own_part,
    shard_encoder,
    whole_weights,
)
from protosphere.training.optimizers import SGD, OptimizerConfig

NUM_CLASSES, NUM_SAMPLES, BATCH_SIZE = 4, 23, 20


@dataclass(frozen=True)
class Run:
    """A training run of five steps."""

    fsdp: bool = True
    optimizer: OptimizerConfig = field(default_factory=lambda: SGD(momentum=0.9, weight_decay=1e-3))
    lr: float = 0.3
    micro_batch_size: int | None = None
    precision: Any = "fp32"
    frozen: bool = False
    sharded: bool = False
    again: bool = False
    device: str = "cpu"
    resume: Checkpoint | None = None
    stop_after: int | None = None


class _Images(FeatureLoader):
    """A loader of images in float64, which loaders of images do not have."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.features, self.labels = images, labels


def create_objective(group: Any, *, frozen: bool = False) -> Objective:
    """A transformer without batch norm; no number of processes divides the width of its layers."""
    import timm

    torch.manual_seed(0)
    backbone = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=8,
        patch_size=4,
        in_chans=1,
        embed_dim=15,
        depth=2,
        num_heads=3,
        num_classes=0,
        weight_init="jax",
    )
    encoder = Encoder(backbone, projection=nn.Linear(15, 7))
    for parameter in backbone.patch_embed.parameters():
        parameter.requires_grad_(not frozen)
    head = CosineClassifier(7, NUM_CLASSES, learn_temperature=True, min_temperature=0.01)
    return Objective(encoder, head, NONLLoss(group=group)).double()


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(NUM_SAMPLES, 1, 8, 8, dtype=torch.float64, generator=generator)
    # In the last class there is one sample, so that most processes have none of it.
    labels = (torch.arange(NUM_SAMPLES) % (NUM_CLASSES - 1)).index_fill(0, torch.tensor([7]), 3)
    return images, labels


def world_of(group: Any) -> World:
    if group is None:
        return World()
    return World(dist.get_rank(group), dist.get_world_size(group), group=group, control=group)


def train_five_steps(
    group: Any, run: Run
) -> tuple[dict[str, Tensor], list[float], Checkpoint, dict[str, Any]]:
    """Weights and their average, losses, checkpoint, and what was found on the way."""
    return train_together(world_of(group), run)


def train_together(
    world: World, run: Run
) -> tuple[dict[str, Tensor], list[float], Checkpoint, dict[str, Any]]:
    """What :func:`train_five_steps` returns."""
    objective = create_objective(world.group, frozen=run.frozen).to(run.device)
    if run.sharded:
        objective.head = ShardedCosineClassifier(7, NUM_CLASSES, group=world.group).double()
    images, labels = (tensor.to(run.device) for tensor in data())
    config = TrainConfig(
        Schedule(run.lr, 5),
        BATCH_SIZE,
        optimizer=run.optimizer,
        parameter_groups=ParameterGroups(
            head_lr_scale=0.5, layer_decay=0.9, exclude_from_decay="norms_and_biases"
        ),
        micro_batch_size=run.micro_batch_size,
        precision=run.precision,
        grad_clip=0.5,
        ema_decay=0.9,
        fsdp=run.fsdp,
    )
    if not world.is_first:
        with torch.no_grad():  # The first process decides what training starts from.
            for parameter in objective.parameters():
                parameter.add_(1.0)
    encoder = objective.encoder
    assert isinstance(encoder, Encoder)
    asked = itertools.count(1)
    losses, found = [], {}
    for progress in train(
        objective,
        _Images(images, labels),
        config,
        resume=copy.deepcopy(run.resume),  # Optimizers go on counting in it.
        should_stop=lambda: next(asked) == run.stop_after and world.rank == world.size - 1,
        world=world,
    ):
        losses.append(progress.loss)
        with progress.ema_weights(), whole_weights(encoder):
            # Other numbers of forward passes on each process, as evaluation may have them.
            with torch.no_grad():
                for _ in range(1 + 2 * world.rank):
                    averaged = encoder(images)
                    before_projection = encoder.without_projection()(images)
            found["averaged features"] = averaged.cpu()
            found["before projection"] = before_projection.cpu()
        with whole_weights(objective.encoder), torch.no_grad():
            found["features"] = objective.encoder(images).cpu()
        checkpoint = Checkpoint(progress.step, *progress.checkpoint())
    if run.again:
        list(train(objective, _Images(images, labels), config, world=world))
    found["divided"] = sorted(n for n, p in objective.named_parameters() if is_divided(p))
    found["blocks"] = len(find_blocks(objective.encoder))
    found["elements"] = sum(own_part(p).numel() for p in objective.encoder.parameters())
    average = checkpoint.state.get("ema", {})
    weights = checkpoint.weights | {f"average of {k}": v for k, v in average.items()}
    return {name: value.cpu() for name, value in weights.items()}, losses, checkpoint, found


def shard_for_a_gpu(group: Any) -> None:
    """Divide an encoder as on a GPU, which gloo cannot do."""
    shard_encoder(create_objective(group).encoder, group, device=torch.device("cuda"))
