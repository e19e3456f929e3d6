"""What the processes of a test run: SGD on a small model in DistributedDataParallel."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from protosphere.classifiers import CosineClassifier, LinearClassifier
from protosphere.losses import MixedLabels
from protosphere.parallel import world_size
from support.losses import TABLE
from support.scalar_loops import Row

IMAGE_DIM, DIM = 6, 5


@dataclass(frozen=True)
class Batch:
    """A batch of one training step, or the part of a rank.

    Attributes:
        images: Inputs of the encoder.
        labels: Labels of any kind.
        reduction: Reduction of the loss.
        weights: Weight of each sample in the sum of the values, for ``reduction="none"``.
    """

    images: Tensor
    labels: Any
    reduction: str = "mean"
    weights: Tensor | None = None

    def split(self, sizes: list[int]) -> "list[Batch]":
        """The part of each rank."""
        parts = [replace(self, images=part) for part in self.images.split(sizes)]
        labels = (
            list(self.labels.split(sizes))
            if isinstance(self.labels, Tensor)
            else [
                MixedLabels(*fields)
                for fields in zip(*(field.split(sizes) for field in self.labels), strict=True)
            ]
        )
        parts = [replace(part, labels=own) for part, own in zip(parts, labels, strict=True)]
        if self.weights is None:
            return parts
        weights = self.weights.split(sizes)
        return [replace(part, weights=own) for part, own in zip(parts, weights, strict=True)]


class Trained(NamedTuple):
    """Losses and gradients of all steps, and the weights after them."""

    losses: list[Tensor]
    gradients: list[Tensor]
    weights: dict[str, Tensor]


def train_with_ddp(group: Any, index: int, num_classes: int, batches: list[Batch]) -> Trained:
    """Train with a loss of the table; on one process, without DDP, if there is no group."""
    row = TABLE[index]
    torch.manual_seed(0)
    objective = _Objective(row, num_classes, group).double()
    model: nn.Module = objective
    if group is not None:
        model = DistributedDataParallel(objective, process_group=group)
    parameters = [p for p in objective.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    losses, gradients = [], []
    for batch in batches:
        optimizer.zero_grad()
        value = model(batch.images, batch.labels, batch.reduction)
        if batch.weights is not None:
            # The processes have other values, whose sum DDP divides by their number.
            value = (value * batch.weights).sum() * world_size(group)
        value.backward()
        losses.append(value.detach())
        gradients += [_gradient(parameter) for parameter in parameters]
        optimizer.step()
    weights = {name: tensor.clone() for name, tensor in objective.state_dict().items()}
    return Trained(losses, gradients, weights)


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.clone()


class _Objective(nn.Module):
    """An encoder and a head, whose output is the loss."""

    def __init__(self, row: Row, num_classes: int, group: Any) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(IMAGE_DIM, 8), nn.Tanh(), nn.Linear(8, DIM))
        self.inputs = row.inputs
        if row.inputs != "features":
            self.head = _create_head(row, num_classes)
        class_weights = torch.linspace(0.5, 2, num_classes, dtype=torch.float64)
        self.losses = nn.ModuleDict(
            {
                reduction: row.module(
                    **row.options, class_weights=class_weights, reduction=reduction, group=group
                )
                for reduction in ("mean", "sum", "none")
            }
        )

    def forward(self, images: Tensor, labels: Any, reduction: str) -> Tensor:
        features, loss = self.encoder(images), self.losses[reduction]
        if self.inputs == "features":
            value: Tensor = loss(features, labels)
        elif self.inputs == "logits":
            value = loss(self.head(features), labels)
        else:
            value = loss(features, self.head, labels)
        return value


def _create_head(row: Row, num_classes: int) -> nn.Module:
    if row.temperature == "function":
        return LinearClassifier(DIM, num_classes)
    if row.inputs == "logits" or row.temperature == "head":
        return CosineClassifier(
            DIM, num_classes, temperature=0.3, learn_temperature=True, min_temperature=0.01
        )
    return CosineClassifier(DIM, num_classes, temperature=0.3)
