"""What the processes of a test run: the training of a small model in float64."""

import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier, LinearClassifier, MeanClassifier
from protosphere.data.loaders import FeatureLoader
from protosphere.losses import CrossEntropyLoss, NONLLoss, NTCELoss, SCLLoss
from protosphere.parallel.launch import World
from protosphere.runs.checkpoints import Checkpoint
from protosphere.training import SGD, Objective, Schedule, TrainConfig, train

NUM_CLASSES, NUM_SAMPLES, BATCH_SIZE = 4, 23, 20
LOSSES: dict[str, tuple[Any, Any]] = {
    "ce": (CrossEntropyLoss, LinearClassifier),
    "ntce": (NTCELoss, CosineClassifier),
    "nonl": (NONLLoss, CosineClassifier),
    "scl": (SCLLoss, MeanClassifier),
}


def create_objective(loss: str, group: Any) -> Objective:
    torch.manual_seed(0)
    create_loss, create_head = LOSSES[loss]
    encoder = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 6))
    compute = create_loss(**({"temperature": 0.2} if loss == "scl" else {}), group=group)
    if loss == "scl":
        return Objective(
            encoder, create_head(6, NUM_CLASSES), lambda x, _, y: compute(x, y)
        ).double()
    return Objective(encoder, create_head(6, NUM_CLASSES), compute).double()


def train_five_steps(
    group: Any,
    loss: str,
    micro_batch_size: int | None,
    batch_size: int = BATCH_SIZE,
    resume: Checkpoint | None = None,
    stop_after: int | None = None,
) -> tuple[dict[str, Tensor], list[float], Checkpoint]:
    """Weights, losses and checkpoint after five steps with momentum and clipping, or fewer."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(NUM_SAMPLES, 5, dtype=torch.float64, generator=generator)
    # In the last class there is one sample, so that most processes have none of it.
    labels = (torch.arange(NUM_SAMPLES) % (NUM_CLASSES - 1)).index_fill(0, torch.tensor([7]), 3)
    config = TrainConfig(
        Schedule(0.3, 5),
        batch_size,
        optimizer=SGD(momentum=0.9, weight_decay=1e-3),
        micro_batch_size=micro_batch_size,
        grad_clip=0.5,
        ema_decay=0.9,
    )
    world = World()
    if group is not None:
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        world = World(rank, size, group=group, control=group)
    objective = create_objective(loss, group)
    if not world.is_first:
        with torch.no_grad():  # The first process decides what training starts from.
            for parameter in objective.parameters():
                parameter.add_(1.0)
    asked = itertools.count(1)
    # One process is asked to stop, and all of them do.
    reports = list(
        train(
            objective,
            FeatureLoader(features, labels),
            config,
            resume=resume,
            should_stop=lambda: next(asked) == stop_after and world.rank == world.size - 1,
            world=world,
        )
    )
    checkpoint = Checkpoint(reports[-1].step, *reports[-1].checkpoint())
    average = checkpoint.state["ema"]
    weights = checkpoint.weights | {f"average of {k}": v for k, v in average.items()}
    return weights, [report.loss for report in reports], checkpoint


def run_digits(group: Any, folder: str, settings: list[str]) -> int:
    """Run a recipe, and return the number of events."""
    from protosphere.recipes.build import load_dataset
    from protosphere.recipes.loading import read_recipe
    from protosphere.recipes.runner import run_recipe

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    world = World(rank, size, group=group, control=group)
    recipe = read_recipe("digits-nonl", settings)
    return len(list(run_recipe(recipe, folder, load_dataset(recipe), world=world)))


def decide(group: Any, failing: list[int]) -> tuple[Any, ...]:
    """What processes tell each other; some of them fail."""
    world = World(dist.get_rank(group), dist.get_world_size(group), group=group, control=group)
    error = None
    try:
        with world.together():
            if world.rank in failing:
                raise ValueError(f"own error of {world.rank}")
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    first = world.from_first(lambda: {"rank": world.rank})
    return error, first, world.any(world.rank in failing), world.gather(10 * world.rank)
