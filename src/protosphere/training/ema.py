"""A moving average of weights, which is evaluated in their place."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """θ̄ ← θ̄ + (1 − d)(θ − θ̄) after each step, d = min(decay, (1 + t)/(10 + t)) after t steps.

    Of all floating numbers of a module, running statistics included. ``torch.optim.swa_utils`` asks the device how many
    steps there were; here the share is a tensor that is filled from outside, so that an update can be part of a graph.

    Args:
        module: whose weights; it must not be moved any more.
        decay: d, once there were steps enough.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> average = WeightAverage(layer, decay=0.5)
    >>> before, after = layer.weight.item(), layer.weight.data.add_(1.0).item()
    >>> average.at(9)
    >>> average.update()
    >>> with average.applied():
    ...     print(round(layer.weight.item() - before, 3))
    0.5
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"the decay of an average must lie between 0 and 1; got {decay}")
        self._decay = decay
        own = {
            name: value.detach()
            for name, value in module.state_dict().items()
            if value.is_floating_point()
        }
        self._own = own
        self._mean = {name: value.clone() for name, value in own.items()}
        self._share = torch.zeros((), device=next(iter(own.values())).device)

    def at(self, step: int) -> None:
        """Say how many steps were done before the one that is next."""
        self._share.fill_(1 - min(self._decay, (1 + step) / (10 + step)))

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are now."""
        means = list(self._mean.values())
        changes = torch._foreach_sub(list(self._own.values()), means)
        torch._foreach_mul_(changes, self._share)
        torch._foreach_add_(means, changes)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the module have the average for a while. Weights stay where they are in memory; values are exchanged."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, own in self._own.items():
            held = own.clone()
            own.copy_(self._mean[name])
            self._mean[name].copy_(held)

    def state(self) -> dict[str, Tensor]:
        """The average, by name."""
        return dict(self._mean)

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take up an average that was saved."""
        for name, value in self._mean.items():
            value.copy_(state[name])
