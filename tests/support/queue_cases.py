"""What the processes of a test run: losses and training with a queue of recent features."""

import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier, MeanClassifier
from protosphere.data.loaders import FeatureLoader
from protosphere.losses import (
    NONLLoss,
    NTCELoss,
    QueuedFeatures,
    SCLLoss,
    nonl_loss,
    ntce_loss,
    scl_loss,
)
from protosphere.parallel.launch import World
from protosphere.recipes.queues import QueueSettings
from protosphere.runs.checkpoints import Checkpoint
from protosphere.training import SGD, Objective, Schedule, TrainConfig, train

NUM_CLASSES, WIDTH, DIM, NUM_SAMPLES, BATCH_SIZE = 4, 5, 6, 47, 10
MODULES: dict[str, Any] = {"ntce": NTCELoss, "nonl": NONLLoss, "both": NONLLoss, "scl": SCLLoss}
FUNCTIONS: dict[str, Any] = {
    "ntce": ntce_loss,
    "nonl": nonl_loss,
    "both": nonl_loss,
    "scl": scl_loss,
}
Case = tuple[str, Tensor, Tensor, Tensor, QueuedFeatures, dict[str, Any]]


def compute(group: Any, cases: list[Case]) -> list[list[Tensor]]:
    """Value and gradients of features and prototypes of each case."""
    results = []
    for name, features, prototypes, labels, queue, settings in cases:
        x, w = features.clone().requires_grad_(), prototypes.clone().requires_grad_()
        options = {"negatives": "both"} if name == "both" else {}
        tensors = (x, labels) if name == "scl" else (x, w, labels)
        value = FUNCTIONS[name](*tensors, queue=queue, group=group, **options, **settings)
        ones = torch.ones_like(value)
        gradients = torch.autograd.grad(value, (x, w), ones, materialize_grads=True)
        results.append([value.detach(), *gradients])
    return results


def _objective(name: str, group: Any, settings: QueueSettings) -> Objective:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, DIM))
    options = {"negatives": "both"} if name == "both" else {}
    loss = MODULES[name](group=group, **options)
    loss.queue = settings.create(
        DIM,
        batch_size=BATCH_SIZE,
        num_views=1,
        num_train=NUM_SAMPLES,
        group=group,
        is_divided=loss.queue_group is not None,
    )
    if name == "scl":
        return Objective(encoder, MeanClassifier(DIM, NUM_CLASSES), _WithoutHead(loss)).double()
    return Objective(encoder, CosineClassifier(DIM, NUM_CLASSES), loss).double()


class _WithoutHead(nn.Module):
    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, features: Tensor, _: Any, labels: Tensor) -> Tensor:
        return self.loss(features, labels)


def train_steps(
    group: Any,
    name: str,
    settings: dict[str, Any],
    resume: Checkpoint | None = None,
    stop_after: int | None = None,
    micro_batch_size: int | None = None,
) -> tuple[dict[str, Tensor], Checkpoint]:
    """Weights after two epochs of four steps, or fewer, and the last checkpoint."""
    world = World()
    if group is not None:
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        world = World(rank, size, group=group, control=group)
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(NUM_SAMPLES, WIDTH, dtype=torch.float64, generator=generator)
    labels = torch.arange(NUM_SAMPLES) % NUM_CLASSES
    labels[[7, 11]] = -100
    config = TrainConfig(
        Schedule(0.3, 2),
        BATCH_SIZE,
        optimizer=SGD(momentum=0.9, weight_decay=1e-3),
        micro_batch_size=micro_batch_size,
        ema_decay=0.9,
    )
    objective = _objective(name, group, QueueSettings(**settings))
    asked = itertools.count(1)
    for progress in train(
        objective,
        FeatureLoader(features, labels),
        config,
        resume=resume,
        should_stop=lambda: next(asked) == stop_after,
        world=world,
    ):
        last = Checkpoint(progress.step, *progress.checkpoint())
    return dict(objective.named_parameters()), last


def refuse(group: Any, settings: QueueSettings, is_divided: bool) -> str:
    """The error of a queue that does not hold whole steps."""
    sizes = {"batch_size": 10, "num_views": 2, "num_train": 100}
    try:
        settings.create(DIM, **sizes, group=group, is_divided=is_divided)
    except ValueError as error:
        return str(error)
    return ""
