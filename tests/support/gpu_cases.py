"""What the processes on a GPU run: collectives, losses and training, with or without a group.

Inputs and results are on the CPU, since processes cannot pass on what is on the GPU.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from protosphere.data.loaders import FeatureLoader
from protosphere.losses import MixedLabels
from protosphere.parallel import Shards, gather_numbers, row_counts, with_gradient_of_sum
from protosphere.parallel.collectives import _Gather
from protosphere.parallel.gradients import GradientAverage, broadcast_state
from protosphere.parallel.launch import World
from protosphere.parallel.rows import exchange_rows
from protosphere.training import SGD, Schedule, TrainConfig, train
from support.fsdp_training import Run, train_together
from support.group_cases import COLLECTIVES, Case, Outcome, compute


def _labels_to(labels: Any, device: str) -> Any:
    if isinstance(labels, MixedLabels):
        return MixedLabels(*(part.to(device) for part in labels))
    return labels.to(device)


def compute_losses(
    world: World, device: str, use_group: bool, cases: list[tuple[Case, Tensor]]
) -> list[Outcome]:
    """Value and gradients of several losses."""
    outcomes = []
    for case, upstream in cases:
        settings = {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in case.settings.items()
        }
        temperature = None if case.temperature is None else case.temperature.to(device)
        moved = replace(
            case,
            features=case.features.to(device),
            prototypes=case.prototypes.to(device),
            labels=_labels_to(case.labels, device),
            temperature=temperature,
            settings=settings,
        )
        outcome = compute(world.group if use_group else None, moved, upstream.to(device))
        assert outcome.value.device.type == torch.device(device).type
        value, of_features, *others = outcome
        others = [None if gradient is None else gradient.cpu() for gradient in others]
        outcomes.append(Outcome(value.cpu(), of_features.cpu(), *others))
    return outcomes


def run_collectives(
    world: World, device: str, rows: Tensor, weights: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """Result and gradient of each collective; ranks have as many rows, weights those of all."""
    assert world.group is not None
    results = {}
    own = weights[: len(rows)].to(device)
    for name, function in COLLECTIVES.items():
        leaf = rows.to(device).requires_grad_()
        value = function(leaf, world.group)
        upstream = weights.to(device) if len(value) == len(weights) else own
        gradient = torch.zeros_like(leaf)
        if value.requires_grad:
            (gradient,) = torch.autograd.grad(value, leaf, upstream)
        results[name] = value.detach().cpu(), gradient.cpu()
    leaf = rows.to(device).requires_grad_()
    value = with_gradient_of_sum(torch.zeros_like(leaf), leaf, world.group)
    results["gradient of sum"] = (
        value.detach().cpu(),
        torch.autograd.grad(value, leaf, own)[0].cpu(),
    )
    # The function itself returns the rows of one process as they are.
    sizes = tuple(row_counts(len(rows), world.group, device=leaf.device))
    value = _Gather.apply(leaf, sizes, leaf.dtype, world.group)
    (gradient,) = torch.autograd.grad(value, leaf, weights.to(device))
    results["exchanged rows"] = value.detach().cpu(), gradient.cpu()
    return results


class Exchanged(NamedTuple):
    """What the processes have told each other."""

    numbers: list[list[int]]
    weight: Tensor
    gradient: Tensor
    shards: Tensor
    rows: Tensor
    decision: bool


def exchange_state(world: World, device: str) -> Exchanged:
    """Numbers, a broadcast weight, an averaged gradient, shards, rows, and a common decision."""
    assert world.group is not None
    numbers = gather_numbers(
        [world.rank, torch.tensor(7, device=device)], world.group, device=torch.device(device)
    )
    layer = nn.Linear(2, 1, bias=False).to(device)
    nn.init.constant_(layer.weight, 1.0 + world.rank)
    broadcast_state(layer, world.group)
    average = GradientAverage(list(layer.parameters()), world.group)
    (layer.weight.sum() * (1.0 + world.rank)).backward()
    average()
    assert layer.weight.grad is not None
    layout = Shards.divide(3, world.group)
    own = torch.arange(3.0, device=device)[layout.own]
    # Row r of each rank is for rank r.
    destinations = torch.arange(world.size, device=device)
    rows = exchange_rows(10.0 * world.rank + destinations, destinations, world.group)
    return Exchanged(
        numbers,
        layer.weight.detach().cpu(),
        layer.weight.grad.cpu(),
        layout.gather(own).cpu(),
        rows.cpu(),
        world.any(world.is_first),
    )


def train_with_batch_norm(
    world: World, device: str, use_group: bool, batch_size: int, compile: bool = False
) -> tuple[dict[str, Tensor], int]:
    """Weights and their averages after five steps in float64; number of synchronized layers."""
    from protosphere.recipes.loading import read_recipe
    from protosphere.recipes.objectives import create_objective

    generator = torch.Generator().manual_seed(1)
    images = torch.randn(20, 64, dtype=torch.float64, generator=generator).to(device)
    labels = (torch.arange(20) % 4).to(device)
    objective = create_objective(
        read_recipe("digits-nonl", []),
        num_classes=4,
        in_channels=1,
        device=device,
        group=world.group if use_group else None,
    ).double()
    synchronized = sum(isinstance(part, nn.SyncBatchNorm) for part in objective.modules())
    objective.encoder = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), objective.encoder)
    config = TrainConfig(
        Schedule(0.1, 5),
        batch_size,
        optimizer=SGD(momentum=0.9, weight_decay=1e-3),
        grad_clip=0.5,
        ema_decay=0.9,
        compile=compile,
    )
    loader = FeatureLoader(images, labels)
    *_, last = train(objective, loader, config, world=world if use_group else None)
    weights, state = last.checkpoint()
    assert last.step == 5
    averages = {f"average of {name}": value for name, value in state["ema"].items()}
    return {name: value.cpu() for name, value in (weights | averages).items()}, synchronized


def run_digits(
    world: World, device: str, use_group: bool, folder: str, settings: list[str]
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Run a recipe, and return its weights with their averages, and its metrics."""
    from torch._inductor import config as inductor

    from protosphere.recipes.build import load_dataset
    from protosphere.recipes.loading import read_recipe
    from protosphere.recipes.runner import run_recipe
    from protosphere.runs import RunFolder
    from protosphere.runs.checkpoints import load_checkpoint

    recipe = read_recipe("digits-nonl", settings)
    # Compiled code then draws random numbers as torch does.
    with inductor.patch(fallback_random=True):
        events = run_recipe(
            recipe,
            folder,
            load_dataset(recipe),
            device=device,
            world=world if use_group else None,
        )
        *_, last = events
    assert last.metrics is not None
    if use_group and not world.is_first:
        return {}, last.metrics
    checkpoint = load_checkpoint(RunFolder(folder).checkpoints)
    assert checkpoint is not None
    averages = {f"average of {k}": v for k, v in checkpoint.state["ema"].items()}
    return checkpoint.weights | averages, last.metrics


def backend(world: World) -> str:
    """Name of the backend of the group."""
    return str(torch.distributed.get_backend(world.group))


def train_divided(world: World, run: Run, use_group: bool) -> dict[str, Tensor]:
    """Weights and their average after five steps of a transformer; only the first rank has them."""
    weights, _, _, found = train_together(world if use_group else World(), run)
    assert bool(found["divided"]) == use_group
    return weights
