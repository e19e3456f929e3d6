"""Exponential moving average of weights, which is evaluated in place of the weights themselves."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from protosphere.losses import FeatureQueue
from protosphere.training.fsdp import divide_like, own_part


class ExponentialMovingAverage:
    """Exponential moving average of the weights of a module.

    θ̄ ← d θ̄ + (1 − d) θ after each step, with d = min(decay, (1 + t)/(10 + t)) after t steps, for
    all floating-point entries of the state dict. Running statistics are among them, but their
    average does not fit the averaged weights, for which
    :class:`~protosphere.training.averaged_weights.AveragedWeights` computes others. Frozen parts,
    whose parameters do not require gradients, are left out: their average is what they are. So are
    queues of recent features, which are no weights.

    ``torch.optim.swa_utils`` reads the number of steps from the device at every update. Here the
    decay of a step is a tensor that is filled before the step, so that the update can be part of a
    CUDA graph.

    Args:
        module: Module to average; it must not be moved to another device afterwards.
        decay: Decay d after many steps.

    Raises:
        ValueError: ``decay`` is not between 0 and 1.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> ema = ExponentialMovingAverage(layer, decay=0.5)
    >>> before, after = layer.weight.item(), layer.weight.data.add_(1.0).item()
    >>> ema.set_step(9)
    >>> ema.update()
    >>> with ema.applied():
    ...     print(round(layer.weight.item() - before, 3))
    0.5
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"decay must be between 0 and 1, got {decay}")
        self._decay = decay
        state, excluded = module.state_dict(), _excluded_entries(module)
        self._weights = {
            name: value.detach()
            for name, value in state.items()
            if value.is_floating_point() and name not in excluded
        }
        self._averages = {name: value.clone() for name, value in self._weights.items()}
        # They share the memory of the above.
        self._own_weights = [own_part(weight) for weight in self._weights.values()]
        self._own_averages = [own_part(average) for average in self._averages.values()]
        device = next(iter(state.values())).device
        self._new_fraction = torch.zeros((), device=device)  # 1 − d of the next update.

    def set_step(self, step: int) -> None:
        """Set the decay of the next update.

        Args:
            step: Number of training steps done before it.
        """
        self._new_fraction.fill_(1 - min(self._decay, (1 + step) / (10 + step)))

    @torch.no_grad()
    def update(self) -> None:
        """Update the average with the current weights."""
        changes = torch._foreach_sub(self._own_weights, self._own_averages)
        torch._foreach_mul_(changes, self._new_fraction)
        torch._foreach_add_(self._own_averages, changes)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the module the averaged weights while the context is active.

        Values are swapped in place, so that a CUDA graph still finds the weights in its memory.
        """
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averaged weights by name, without those of frozen parts."""
        return dict(self._averages)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load averaged weights.

        Args:
            state: What :meth:`state_dict` returned.

        Raises:
            KeyError: The average of a weight is missing.
        """
        state = divide_like(state, self._averages)
        for name, average in self._averages.items():
            average.copy_(state[name])

    @torch.no_grad()
    def _swap(self) -> None:
        for name, weight in self._weights.items():
            held = weight.clone()
            weight.copy_(self._averages[name])
            self._averages[name].copy_(held)


def _excluded_entries(module: nn.Module) -> set[str]:
    """Return the entries of the state dict that belong to frozen parts and queues."""
    entries = {name for name, value in module.named_parameters() if not value.requires_grad}
    for name, part in module.named_modules():
        required = [parameter.requires_grad for parameter in part.parameters()]
        if isinstance(part, FeatureQueue) or (required and not any(required)):
            prefix = f"{name}." if name else ""
            entries.update(f"{prefix}{key}" for key in part.state_dict())
    return entries
