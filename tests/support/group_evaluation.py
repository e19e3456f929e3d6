"""What the processes of a test run: the evaluation of a small model, and its compiled training."""

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier, LinearClassifier, MeanClassifier
from protosphere.data.loaders import Batch, FeatureLoader
from protosphere.data.splits import DataError
from protosphere.evaluation import Evaluation, evaluate
from protosphere.losses import NONLLoss
from protosphere.parallel.gradients import GradientAverage
from protosphere.parallel.launch import World
from protosphere.training import Objective, Schedule, TrainConfig, train

DIM, NUM_CLASSES, NUM_TRAIN, NUM_TEST, BATCH_SIZE = 6, 5, 47, 23, 5
HEADS: dict[str, Any] = {
    "cosine": CosineClassifier,
    "linear": LinearClassifier,
    "mean": MeanClassifier,
}


class CountingLoader(FeatureLoader):
    """Features that record which of them were evaluated; one of them may be unreadable."""

    def __init__(self, features: Tensor, labels: Tensor, unreadable: int | None = None) -> None:
        super().__init__(features, labels)
        self.seen: list[int] = []
        self.unreadable = unreadable

    def evaluation_batches(
        self, batch_size: int, *, shard: tuple[int, int] = (0, 1)
    ) -> Iterator[Batch]:
        for features, labels in super().evaluation_batches(batch_size, shard=shard):
            numbers = [int((self.features == row).all(1).nonzero()) for row in features]
            if self.unreadable in numbers:
                raise DataError(f"image {self.unreadable} cannot be read")
            self.seen += numbers
            yield features, labels


def create_loaders(unreadable: int | None = None) -> tuple[CountingLoader, CountingLoader]:
    """Training and test features; most processes have none of the last class."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(NUM_TRAIN) % (NUM_CLASSES - 1)
    labels[[7, 9, 41]] = NUM_CLASSES - 1
    offsets = torch.randn(NUM_CLASSES, DIM, generator=generator)
    train, test = (
        torch.randn(n, DIM, generator=generator) + offsets[labels[:n]]
        for n in (NUM_TRAIN, NUM_TEST)
    )
    return CountingLoader(train, labels, unreadable), CountingLoader(test, labels[:NUM_TEST])


def create_objective(head: str, dim: int, rank: int) -> Objective:
    """The same weights on every process, and running statistics that only the first one has."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(DIM, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, dim))
    objective = Objective(encoder, HEADS[head](dim, NUM_CLASSES), lambda x, *_: x.sum())
    normalization = encoder[1]
    assert isinstance(normalization.running_mean, Tensor)
    normalization.running_mean.copy_(torch.linspace(-1, 1, 8) + rank)
    return objective


def evaluate_part(
    group: Any, head: str, metrics: Any, batch_size: int, dim: int = 8
) -> tuple[Evaluation, list[int], list[int], list[float]]:
    """Evaluate; return the result, the images of this process, and what a fitted head has."""
    warnings.simplefilter("error")
    world = create_world(group)
    objective = create_objective(head, dim, world.rank)
    train, test = create_loaders()
    list(objective.encoder.children())[2].eval()
    result = evaluate(objective, train, test, metrics=metrics, batch_size=batch_size, world=world)
    modes = [child.training for child in objective.encoder.children()]
    assert modes == [True, True, False, True]
    prototypes = objective.head.prototypes.detach()
    return result, train.seen, test.seen, prototypes.flatten().tolist()


def create_world(group: Any) -> World:
    if group is None:
        return World()
    return World(dist.get_rank(group), dist.get_world_size(group), group=group, control=group)


def fail_in_evaluation(group: Any, metrics: Any, case: str) -> str:
    """Evaluate with an image that one process cannot read, or without images of a class."""
    world = create_world(group)
    unreadable = BATCH_SIZE if case == "image" and world.rank == 1 else None
    train, test = create_loaders(unreadable)
    if case == "class":
        train.labels = train.labels.clamp(max=NUM_CLASSES - 2)
    if case == "features":
        train.features[12] = torch.inf
    try:
        evaluate(
            create_objective("cosine", 8, world.rank),
            train,
            test,
            metrics=metrics,
            batch_size=BATCH_SIZE,
            world=world,
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def run_and_evaluate(group: Any, name: str, folder: str, settings: list[str]) -> list[Any]:
    """Run a recipe, and return what the events say of its evaluations."""
    from protosphere.recipes.build import load_dataset
    from protosphere.recipes.loading import read_recipe
    from protosphere.recipes.runner import run_recipe

    recipe = read_recipe(name, settings)
    events = run_recipe(recipe, folder, load_dataset(recipe), world=create_world(group))
    return [(event.metrics, event.best, event.stopped_early) for event in events]


def train_with_compiler(group: Any, compile: bool) -> tuple[list[Tensor], int]:
    """Weights after three epochs, with batch norm and dropout, in float64; number of graphs."""
    from torch._dynamo.utils import counters

    world = create_world(group)
    torch.manual_seed(0)
    encoder = nn.Sequential(
        nn.Linear(DIM, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 4)
    )
    loss = NONLLoss(group=world.group)
    objective = Objective(encoder, CosineClassifier(4, NUM_CLASSES), loss).double()
    train_loader, _ = create_loaders()
    config = TrainConfig(Schedule(0.3, 3), 21, compile=compile)
    loader = FeatureLoader(train_loader.features.double(), train_loader.labels)
    # Graphs of forward and backward pass, without machine code, which takes seconds.
    with mock.patch("torch.compile", partial(torch.compile, backend="aot_eager")):
        for _ in train(objective, loader, config, world=world):
            pass
    weights = [value.detach() for value in objective.state_dict().values()]
    return weights, counters["stats"]["unique_graphs"]


def average_gradients(group: Any, overlaps: bool) -> tuple[list[list[Tensor | None]], list[int]]:
    """Averaged gradients of three steps; number of exchanges that start in each backward pass.

    Some parameters have gradients on one process only, one of them not at every step.
    """
    rank = dist.get_rank(group)
    torch.manual_seed(0)
    layers = [nn.Linear(3, 3).double() for _ in range(4)]
    layers[1].float()
    encoder, head = nn.ModuleList(layers[:3]), layers[3]
    parameters = [*head.parameters(), *encoder.parameters()]
    average = GradientAverage(parameters, group, encoder=encoder if overlaps else None)
    results, started = [], []
    with mock.patch("protosphere.parallel.gradients._BUCKET_BYTES", 1):
        for step in range(3):
            values = torch.full((2, 3), float(1 + rank + step), dtype=torch.float64)
            values = torch.tanh(layers[0](values)).float()
            values = torch.tanh(layers[1](values)).double()
            if rank == 0 and step != 2:
                values = values * layers[2].weight.sum()
            for parameter in parameters:
                parameter.grad = None
            with average.overlap():
                head(values).sum().backward()
            started.append(len(average._exchanges))
            average()
            results.append([None if p.grad is None else p.grad.clone() for p in parameters])
    return results, started
