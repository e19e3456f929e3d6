"""What the processes of a test run: the training of a small model in float64."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Literal
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from protosphere.classifiers import (
    CosineClassifier,
    FixedFrameClassifier,
    LinearClassifier,
    MeanClassifier,
)
from protosphere.data.loaders import FeatureLoader
from protosphere.losses import (
    CrossEntropyLoss,
    DotRegressionLoss,
    NONLLoss,
    NormFaceLoss,
    NormFaceNONLLoss,
    NTCELoss,
    PrototypeLoss,
    SCLLoss,
)
from protosphere.parallel.gradients import broadcast_state
from protosphere.parallel.launch import World
from protosphere.runs.checkpoints import Checkpoint
from protosphere.training import SGD, Objective, Schedule, TrainConfig, train

NUM_CLASSES, NUM_SAMPLES, BATCH_SIZE = 4, 23, 20
# Weights, losses of the epochs, and the checkpoint that has been reached.
Result = tuple[dict[str, Tensor], list[float], Checkpoint]
_LEARNED = partial(CosineClassifier, learn_temperature=True, min_temperature=0.01)
# Loss, head and options; names that end in "soft labels" get class probabilities as labels.
LOSSES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "ce": (CrossEntropyLoss, LinearClassifier, {}),
    "ce, label smoothing": (CrossEntropyLoss, LinearClassifier, {"label_smoothing": 0.1}),
    "normface": (NormFaceLoss, _LEARNED, {}),
    "normface, cosine margin": (NormFaceLoss, CosineClassifier, {"margin": 0.2}),
    "normface, angle margin": (
        NormFaceLoss,
        CosineClassifier,
        {"margin": 0.3, "margin_kind": "angle"},
    ),
    "ntce": (NTCELoss, _LEARNED, {}),
    "ntce, soft labels": (NTCELoss, _LEARNED, {}),
    "nonl": (NONLLoss, _LEARNED, {}),
    "nonl, prototypes": (NONLLoss, _LEARNED, {"negatives": "prototypes"}),
    "nonl, two directions": (NONLLoss, _LEARNED, {"negatives": "both"}),
    "nonl, soft labels": (NONLLoss, _LEARNED, {}),
    "normface and nonl": (NormFaceNONLLoss, _LEARNED, {"normface_weight": 0.3}),
    "scl": (SCLLoss, MeanClassifier, {"temperature": 0.2}),
    "prototype loss": (PrototypeLoss, MeanClassifier, {"temperature": 0.2}),
    "dot regression": (DotRegressionLoss, FixedFrameClassifier, {}),
}


class _SoftLoader(FeatureLoader):
    """A loader whose labels are class probabilities."""

    def prepare(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        features, labels = super().prepare(*tensors)
        hard = nn.functional.one_hot(labels.clamp(min=0), NUM_CLASSES).to(features.dtype)
        soft = 0.7 * hard + 0.3 * features[:, :NUM_CLASSES].softmax(1)
        return features, torch.where(labels[:, None] < 0, 0, soft)


def create_objective(name: str, group: Any) -> Objective:
    """An objective of one of the losses, with the same weights every time."""
    torch.manual_seed(0)
    create_loss, create_head, options = LOSSES[name]
    encoder = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 6))
    class_weights = torch.linspace(0.5, 2, NUM_CLASSES)
    loss = create_loss(**options, class_weights=class_weights, group=group)
    if create_head is MeanClassifier:
        compute = lambda features, _, labels: loss(features, labels)  # noqa: E731
        return Objective(encoder, create_head(6, NUM_CLASSES), compute).double()
    return Objective(encoder, create_head(6, NUM_CLASSES), loss).double()


def create_loader(name: str) -> FeatureLoader:
    """The samples that the losses are trained on."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(NUM_SAMPLES, 5, dtype=torch.float64, generator=generator)
    # In the last class there is one sample, so that most processes have none of it.
    labels = torch.arange(NUM_SAMPLES) % (NUM_CLASSES - 1)
    labels[7], labels[11] = NUM_CLASSES - 1, -100
    return (_SoftLoader if name.endswith("soft labels") else FeatureLoader)(features, labels)


def train_five_steps(
    group: Any,
    loss: str,
    micro_batch_size: int | None,
    batch_size: int = BATCH_SIZE,
    resume: Checkpoint | None = None,
    stop_after: int | None = None,
) -> Result:
    """Weights, losses and checkpoint after five steps with momentum and clipping, or fewer."""
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
            create_loader(loss),
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


class _Disturbed(nn.Module):
    """Draws a random number in each pass; the second gradient may overflow."""

    def __init__(self, *, overflows: bool) -> None:
        super().__init__()
        self.overflows, self.draws = overflows, list[float]()

    def forward(self, features: Tensor) -> Tensor:
        self.draws.append(float(torch.rand(())))
        if self.overflows and len(self.draws) == 2:
            features.register_hook(lambda gradient: gradient * torch.inf)
        return features


def train_with_overflow(group: Any) -> tuple[dict[str, Tensor], float, list[float]]:
    """Weights and loss scale of float16 after an overflow on the last process, and its draws."""
    world = World()
    if group is not None:
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        world = World(rank, size, group=group, control=group)
    objective = create_objective("nonl", group)
    disturbed = _Disturbed(overflows=world.rank == world.size - 1)
    objective.encoder = nn.Sequential(objective.encoder, disturbed)
    config = TrainConfig(Schedule(0.3, 3), BATCH_SIZE, precision="fp16")
    *_, last = train(objective, create_loader("nonl"), config, world=world)
    weights, state = last.checkpoint()
    return weights, state["loss_scale"]["scale"], disturbed.draws


def run_digits(
    group: Any, folder: str, settings: list[str], start: Literal["fresh", "resume"] = "fresh"
) -> list[int]:
    """Run a recipe, and return the step of each event."""
    from protosphere.recipes.build import load_dataset
    from protosphere.recipes.loading import read_recipe
    from protosphere.recipes.runner import run_recipe

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    world = World(rank, size, group=group, control=group)
    recipe = read_recipe("digits-nonl", settings)
    events = run_recipe(recipe, folder, load_dataset(recipe), start=start, world=world)
    return [event.progress.step for event in events]


def error_of(group: Any, function: Callable[..., Any], *arguments: Any) -> str | None:
    """The error that a function raises on a rank, None if it raises none."""
    try:
        function(group, *arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def run_digits_without_disk(group: Any, folder: str, settings: list[str]) -> None:
    """Run a recipe whose checkpoints cannot be saved."""
    from protosphere.recipes import reports

    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    with patch.object(reports, "save_checkpoint", fail):
        run_digits(group, folder, settings)


def broadcast_other_shapes(group: Any) -> None:
    """Broadcast a module that has more outputs on the last process."""
    is_last = dist.get_rank(group) == dist.get_world_size(group) - 1
    broadcast_state(nn.Linear(4, 5 if is_last else 3), group)


def use_group_of_others(_: Any) -> None:
    """Use a group of the first process on all of them."""
    first_only: Any = dist.new_group([0])
    NTCELoss(group=first_only)


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
