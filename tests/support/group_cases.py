"""What the processes of a test run: collectives and losses, with the gradients of each rank."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from protosphere.parallel import gather_rows, logsumexp_over, max_over, sum_over
from support.losses import TABLE

COLLECTIVES = {
    "sum": sum_over,
    "max": max_over,
    "logsumexp": logsumexp_over,
    "gather": gather_rows,
}


def collective(
    group: Any, name: str, tensor: Tensor, weights: Tensor | None = None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """The result of a collective, and the gradient of its product with the rank's weights."""
    leaf = tensor.clone().requires_grad_(weights is not None)
    result = COLLECTIVES[name](leaf, group, **options)
    if weights is None:
        return result.detach(), None
    (gradient,) = torch.autograd.grad(result, leaf, weights)
    return result.detach(), gradient


@dataclass(frozen=True)
class Case:
    """A loss to compute, on one process or on the ranks of a group.

    Attributes:
        row: Index of the loss in the table.
        features: Features of the samples.
        prototypes: Prototypes, the same on every rank.
        labels: Labels of any kind.
        temperature: A temperature with a gradient, or None.
        settings: Options of the loss.
        use_module: Whether to call the module instead of the function.
    """

    row: int
    features: Tensor
    prototypes: Tensor
    labels: Any
    temperature: Tensor | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    use_module: bool = False

    def split(self, sizes: list[int]) -> "list[Case]":
        """The case of each rank."""

        def parts(labels: Any) -> list[Any]:
            if isinstance(labels, Tensor):
                return list(labels.split(sizes))
            return [type(labels)(*row) for row in zip(*map(parts, labels), strict=True)]

        features, labels = self.features.split(sizes), parts(self.labels)
        return [replace(self, features=x, labels=y) for x, y in zip(features, labels, strict=True)]


class Outcome(NamedTuple):
    """Value and gradients; a gradient is None where there is no such input."""

    value: Tensor
    features: Tensor
    prototypes: Tensor | None
    temperature: Tensor | None


def compute(group: Any, case: Case, upstream: Tensor) -> Outcome:
    """The loss of a rank, or of the whole batch for ``group=None``, and its gradients."""
    row = TABLE[case.row]
    x, w = case.features.clone().requires_grad_(), case.prototypes.clone().requires_grad_()
    settings, inputs = dict(case.settings), [x]
    if row.inputs != "features":
        inputs.append(w)
    if case.temperature is not None:
        settings["temperature"] = case.temperature.clone().requires_grad_()
        inputs.append(settings["temperature"])
    call = row.call_module if case.use_module else row.call
    value = call(x, w, case.labels, group=group, **settings)
    gradients = list(torch.autograd.grad(value, inputs, upstream, materialize_grads=True))
    return Outcome(
        value.detach(),
        gradients.pop(0),
        gradients.pop(0) if row.inputs != "features" else None,
        gradients.pop(0) if gradients else None,
    )


def compute_all(group: Any, cases: list[tuple[Case, Tensor]]) -> list[Outcome]:
    """Several cases, one after the other."""
    return [compute(group, case, upstream) for case, upstream in cases]
