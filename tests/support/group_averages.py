"""What the processes of a test run: averaged weights of a network with batch norm, in float64."""

from typing import Any

import torch
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier
from protosphere.data.loaders import FeatureLoader
from protosphere.losses import NONLLoss
from protosphere.training import Objective, Schedule, TrainConfig, train
from protosphere.training.averaged_weights import _average_over
from protosphere.training.fsdp import is_divided
from support.fsdp_training import world_of

NUM_CLASSES, NUM_SAMPLES, BATCH_SIZE = 4, 43, 20
# Averaged weights in each report, losses, and the weights themselves in the end.
Result = tuple[list[dict[str, Tensor]], list[float], dict[str, Tensor]]


def train_batch_norm(
    group: Any, micro_batch_size: int | None, fsdp: bool = False, is_evaluated: bool = True
) -> Result:
    """Train two batch norms, of which the second depends on how the first normalizes."""
    torch.manual_seed(0)
    encoder = nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 6), nn.BatchNorm1d(6)
    )
    objective = Objective(encoder, CosineClassifier(6, NUM_CLASSES), NONLLoss(group=group)).double()
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(NUM_SAMPLES, 5, dtype=torch.float64, generator=generator)
    loader = FeatureLoader(features, torch.arange(NUM_SAMPLES) % NUM_CLASSES)
    config = TrainConfig(
        Schedule(0.3, 3),
        BATCH_SIZE,
        micro_batch_size=micro_batch_size,
        ema_decay=0.9,
        fsdp=fsdp,
    )
    averages, losses = [], []
    for progress in train(objective, loader, config, world=world_of(group)):
        losses.append(progress.loss)
        if is_evaluated:
            with progress.ema_weights():
                average = _weights(objective)
            averages.append({n: value for n, value in average.items() if "num_batches" not in n})
    return averages, losses, _weights(objective)


def _weights(objective: Objective) -> dict[str, Tensor]:
    """Whole weights and statistics. Unlike this, a state dict would divide the weights again."""
    tensors: list[tuple[str, Any]] = [*objective.named_parameters(), *objective.named_buffers()]
    return {
        name: value.detach().full_tensor() if is_divided(value) else value.detach().clone()
        for name, value in tensors
    }


def average_synchronized(group: Any) -> list[float]:
    """What averaging over processes makes of synchronized statistics, other ones on each."""
    world = world_of(group)
    layers = [nn.SyncBatchNorm(1), nn.BatchNorm1d(1)]
    means = [layer.get_buffer("running_mean").fill_(world.rank) for layer in layers]
    _average_over(layers, group)
    return [float(mean) for mean in means]
