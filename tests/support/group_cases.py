"""What the processes of a test run: collectives and losses, with the gradients of each rank."""

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from protosphere.parallel import gather_rows, logsumexp_over, max_over, sum_over, world
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


def exchanged_bytes(group: Any, case: Case) -> int:
    """Size of all tensors that a rank gives to collectives, forward and backward."""
    total = 0

    def counted(function: Callable[..., Any], position: int) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal total
            total += arguments[position].nbytes
            return function(*arguments, **options)

        return call

    originals = {name: getattr(dist, name) for name in ("all_reduce", "all_gather_into_tensor")}
    try:
        for position, (name, function) in enumerate(originals.items()):
            setattr(dist, name, counted(function, position))
        compute(group, case, torch.ones((), dtype=case.features.dtype))
    finally:
        for name, function in originals.items():
            setattr(dist, name, function)
    return total


def compiled(group: Any, case: Case) -> tuple[Tensor, Tensor]:
    """Value and gradient of the compiled loss."""
    row, x = TABLE[case.row], case.features.clone().requires_grad_()

    def loss(x: Tensor) -> Tensor:
        return row.call(x, case.prototypes, case.labels, group=group, **case.settings)

    value = torch.compile(loss, fullgraph=True, backend="eager")(x)
    (gradient,) = torch.autograd.grad(value, x)
    return value.detach(), gradient


def messages_of_modules(group: Any) -> tuple[list[str], list[str]]:
    """What modules log when they are made without and with a group, and that copies keep it."""
    world._LOGGED_NAMES.clear()
    with _logged() as without:
        for row in (TABLE[0], TABLE[0], TABLE[-1]):
            row.module()
    with _logged() as given:
        module = TABLE[0].module(group=group)
    assert copy.deepcopy(module).group is group
    return without, given


@contextmanager
def _logged() -> Iterator[list[str]]:
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    log, handler = logging.getLogger("protosphere"), Keep()
    log.addHandler(handler)
    try:
        yield messages
    finally:
        log.removeHandler(handler)
