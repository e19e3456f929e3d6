"""What the processes of a test run: training with prototypes sharded over them, in float64."""

import copy
import itertools
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier, ShardedCosineClassifier
from protosphere.data.loaders import FeatureLoader
from protosphere.losses import NONLLoss, NormFaceLoss, NormFaceNONLLoss, NTCELoss
from protosphere.parallel.launch import World
from protosphere.runs.checkpoints import Checkpoint
from protosphere.training import SGD, AdamW, Objective, Schedule, TrainConfig, train
from protosphere.training.step import EagerStep

NUM_SAMPLES, BATCH_SIZE, INPUTS, DIM = 23, 20, 5, 6
LOSSES: dict[str, Any] = {
    "normface": NormFaceLoss,
    "ntce": NTCELoss,
    "nonl": NONLLoss,
    "normface-nonl": partial(NormFaceNONLLoss, normface_weight=0.3),
}
OPTIMIZERS: dict[str, Any] = {
    "sgd": SGD(momentum=0.9, weight_decay=1e-2),
    "adamw": AdamW(weight_decay=1e-2),
}


class Training(NamedTuple):
    """What training gives on one process."""

    losses: list[float]
    checkpoint: Checkpoint
    num_prototypes: int
    largest: int


def create_world(group: Any) -> World:
    """The processes of a group as the trainer sees them."""
    if group is None:
        return World()
    return World(dist.get_rank(group), dist.get_world_size(group), group=group, control=group)


def create_objective(group: Any, loss: str, num_classes: int, *, sharded: bool) -> Objective:
    """An objective with the same weights every time, whose temperature is learned."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(INPUTS, 16), nn.Tanh(), nn.Linear(16, DIM))
    options: dict[str, Any] = {"learn_temperature": True, "min_temperature": 0.01}
    head = (
        ShardedCosineClassifier(DIM, num_classes, **options, group=group)
        if sharded
        else CosineClassifier(DIM, num_classes, **options)
    )
    weights = torch.linspace(0.5, 2, num_classes)
    return Objective(encoder, head, LOSSES[loss](class_weights=weights, group=group)).double()


def train_five_steps(
    group: Any,
    loss: str,
    num_classes: int,
    settings: dict[str, Any] | None = None,
    resume: Checkpoint | None = None,
    sharded: bool = True,
) -> Training:
    """Train for five epochs of one step, or for fewer, with all settings that need all shards."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(NUM_SAMPLES, INPUTS, dtype=torch.float64, generator=generator)
    labels = torch.randint(num_classes, (NUM_SAMPLES,), generator=generator)
    labels[11] = -100
    options: dict[str, Any] = {"optimizer": "sgd", "grad_clip": 0.5, "ema_decay": 0.9}
    options |= settings or {}
    epochs = options.pop("epochs", 5)
    options["optimizer"] = OPTIMIZERS[options["optimizer"]]
    config = TrainConfig(Schedule(0.3, 5), BATCH_SIZE, **options)
    world = create_world(group)
    resume = copy.deepcopy(resume)  # What is sent to processes is in memory that they share.
    objective = create_objective(group, loss, num_classes, sharded=sharded)
    losses = []
    for report in train(
        objective, FeatureLoader(features, labels), config, resume=resume, world=world
    ):
        losses.append(report.loss)
        if report.epoch == epochs:
            checkpoint = Checkpoint(report.step, *report.checkpoint())
            break
    head = objective.head
    tensors = [*objective.state_dict().values()]
    return Training(losses, checkpoint, len(head.prototypes), max(t.numel() for t in tensors))


def overflow(group: Any, overflows: bool) -> tuple[dict[str, Tensor], float | None]:
    """Weights and loss scale after a step of float16 whose shards overflow on some processes."""
    factor = torch.inf if overflows else 1.0

    def loss(features: Tensor, head: ShardedCosineClassifier, _: Tensor) -> Tensor:
        return features.float().mean() + factor * head.prototypes.sum()

    created = create_objective(group, "ntce", 3, sharded=True).float()
    objective = Objective(created.encoder, created.head, loss)
    loader = FeatureLoader(torch.randn(8, INPUTS), torch.zeros(8, dtype=torch.long))
    config = TrainConfig(Schedule(0.3, 5), 8, precision="fp16", grad_clip=1.0)
    step = EagerStep(objective, loader, config, world=create_world(group))
    step((torch.arange(8),), step=0, lr=0.3)
    return objective.state_dict(), step.loss_scale


def run_digits(
    group: Any,
    folder: str,
    settings: list[str],
    stop_after: int | None = None,
    init_from: str | None = None,
) -> int:
    """Run a recipe on the processes, and return the number of prototypes of this one."""
    from protosphere.recipes import runner
    from protosphere.recipes.build import load_dataset
    from protosphere.recipes.loading import read_recipe

    heads, train_objective = [], runner.train

    def train_and_remember(objective: Objective, *arguments: Any, **options: Any) -> Any:
        heads.append(objective.head)
        return train_objective(objective, *arguments, **options)

    recipe, asked = read_recipe("digits-nonl", settings), itertools.count(1)
    runner.train = train_and_remember
    try:
        for _ in runner.run_recipe(
            recipe,
            folder,
            load_dataset(recipe),
            start="resume",
            init_from=init_from,
            should_stop=lambda: next(asked) == stop_after,
            world=create_world(group),
        ):
            pass
    finally:
        runner.train = train_objective
    return len(heads[0].prototypes)
