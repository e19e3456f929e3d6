"""What the processes of a test run: losses and training with prototypes sharded over them."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from protosphere.classifiers import ShardedCosineClassifier
from protosphere.losses import nonl_loss, normface_loss, ntce_loss
from protosphere.losses.sharded import (
    sharded_nonl_loss,
    sharded_normface_loss,
    sharded_ntce_loss,
)
from protosphere.parallel import Shards

FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "normface": (normface_loss, sharded_normface_loss),
    "ntce": (ntce_loss, sharded_ntce_loss),
    "nonl": (nonl_loss, sharded_nonl_loss),
}


@dataclass(frozen=True)
class Case:
    """A loss to compute, on one process or on the ranks of a group.

    Attributes:
        loss: Name of the loss.
        features: Features of the samples.
        prototypes: Prototypes of all classes, of which each rank takes its own.
        labels: Class index of each sample.
        upstream: Gradient of the loss.
        settings: Options of the loss.
    """

    loss: str
    features: Tensor
    prototypes: Tensor
    labels: Any
    upstream: Tensor
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def is_reduced(self) -> bool:
        return self.settings.get("reduction") != "none"

    def split(self, sizes: list[int]) -> "list[Case]":
        """The case of each rank."""
        upstream = [self.upstream] * len(sizes) if self.is_reduced else self.upstream.split(sizes)
        parts = zip(self.features.split(sizes), self.labels.split(sizes), upstream, strict=True)
        return [replace(self, features=x, labels=y, upstream=u) for x, y, u in parts]


class Outcome(NamedTuple):
    """Value and gradients."""

    value: Tensor
    features: Tensor
    prototypes: Tensor
    temperature: Tensor


def compute(group: Any, case: Case) -> Outcome:
    """The loss of a rank, or of the whole batch for ``group=None``, and its gradients."""
    replicated, sharded = FUNCTIONS[case.loss]
    temperature = torch.tensor(0.3, dtype=case.features.dtype, requires_grad=True)
    x, settings = case.features.clone().requires_grad_(), dict(case.settings)
    if case.loss == "nonl":
        settings["min_temperature"] = 0.1
    if group is None:
        w = case.prototypes.clone().requires_grad_()
        value = replicated(x, w, case.labels, temperature=temperature, **settings)
    else:
        shards = Shards.divide(len(case.prototypes), group)
        w = case.prototypes[shards.own].clone().requires_grad_()
        value = sharded(
            x, w, case.labels, shards=shards, temperature=temperature, group=group, **settings
        )
    gradients = torch.autograd.grad(value, (x, w, temperature), case.upstream)
    return Outcome(value.detach(), *gradients)


def compute_all(group: Any, cases: list[Case]) -> list[Outcome]:
    """Several cases, one after the other."""
    return [compute(group, case) for case in cases]


def frozen_features(group: Any, case: Case) -> Tensor:
    """The gradient of the prototypes alone, where no gradient reaches the features."""
    shards = Shards.divide(len(case.prototypes), group)
    w = case.prototypes[shards.own].clone().requires_grad_()
    value = FUNCTIONS[case.loss][1](
        case.features, w, case.labels, shards=shards, temperature=0.3, group=group
    )
    value.backward()
    assert w.grad is not None
    return w.grad


class _Largest(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [value for value in tree_leaves(result) if isinstance(value, Tensor)]
        self.numel = max([self.numel, *(tensor.numel() for tensor in tensors)])
        return result


def largest_tensor(group: Any, case: Case) -> int:
    """Number of elements of the largest tensor of a loss and its gradients."""
    with _Largest() as largest:
        compute(group, case)
    return largest.numel


class HeadOutcome(NamedTuple):
    """What a sharded head computes."""

    own: Tensor
    full: Tensor
    logits: Tensor
    predictions: Tensor
    of_full_classifier: Tensor
    text: str


def use_head(group: Any, dim: int, num_classes: int, features: Tensor) -> HeadOutcome:
    """Create a head from a seed, and classify features."""
    torch.manual_seed(0)
    head = ShardedCosineClassifier(
        dim, num_classes, temperature=0.2, learn_temperature=True, group=group
    )
    state = torch.get_rng_state()
    full = head.full_classifier()
    assert torch.equal(torch.get_rng_state(), state)
    return HeadOutcome(
        head.prototypes.detach(),
        head.full_prototypes(),
        head(features),
        head.predict(features),
        full(features).detach(),
        repr(head),
    )
