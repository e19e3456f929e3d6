"""Loss scaling for float16, on the device: nothing waits for it, so a CUDA graph can contain it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


class LossScaler:
    """A loss scale that falls when gradients overflow and grows while they do not.

    The results are those of ``torch.amp.GradScaler``, which reads from the device at every step.
    Here an overflow is a tensor, :attr:`found_inf`, that the fused optimizers of torch read
    themselves.

    Args:
        device: Device of the loss and the gradients.
        init_scale: Initial scale.
        growth_factor: Factor of the scale after ``growth_interval`` steps without an overflow.
        backoff_factor: Factor of the scale after an overflow.
        growth_interval: Number of steps without an overflow before the scale grows.

    Attributes:
        found_inf: 1 if the last gradients were not finite, otherwise 0.

    >>> scaler = LossScaler("cpu", init_scale=4.0)
    >>> gradient = torch.tensor([8.0, 4.0])
    >>> scaler.unscale([gradient])
    >>> gradient, bool(scaler.found_inf)
    (tensor([2., 1.]), False)
    """

    def __init__(
        self,
        device: torch.device | str,
        *,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        self._scale = torch.full((), init_scale, device=device)
        self._growth_tracker = torch.zeros((), dtype=torch.int32, device=device)
        self.found_inf: Float[Tensor, ""] = torch.zeros((), device=device)
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval = growth_interval

    @property
    def current(self) -> float:
        """The scale of the next step; reading it waits for the device."""
        return float(self._scale)

    def scale(self, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the loss multiplied by the scale.

        Args:
            loss: The loss.
        """
        return loss * self._scale

    @torch.no_grad()
    def unscale(self, gradients: Sequence[Tensor]) -> None:
        """Divide gradients by the scale in place, and note whether they are finite.

        Args:
            gradients: All gradients of a step.
        """
        # A process may have no row of a sharded parameter, and its largest entry is not defined.
        gradients = [gradient for gradient in gradients if gradient.numel()]
        largest = torch.nn.utils.get_total_norm(gradients, torch.inf)
        self.found_inf.copy_(~torch.isfinite(largest))
        if gradients:
            torch._foreach_mul_(gradients, self._scale.reciprocal())

    @torch.no_grad()
    def update(self) -> None:
        """Change the scale after a step."""
        overflow = self.found_inf > 0
        num_finite = torch.where(overflow, 0, self._growth_tracker + 1)
        grows = num_finite >= self._growth_interval
        grown = torch.where(grows, self._scale * self._growth_factor, self._scale)
        grown = torch.where(torch.isfinite(grown), grown, self._scale)
        self._scale.copy_(torch.where(overflow, self._scale * self._backoff_factor, grown))
        self._growth_tracker.copy_(torch.where(grows, 0, num_finite))

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and the number of steps since it last changed."""
        return {"scale": self.current, "growth_tracker": int(self._growth_tracker)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state.

        Args:
            state: What :meth:`state_dict` returned.

        Raises:
            KeyError: An entry is missing.
        """
        self._scale.fill_(state["scale"])
        self._growth_tracker.fill_(state["growth_tracker"])
