"""Warning about logits that no cosine head returns."""

import warnings
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from protosphere.kernels.problem import can_read_values, inside_functorch

# No cosine over a temperature of 0.01 or more is larger. One percent is for cosines in bfloat16.
_LARGEST_LOGIT = 100.0
_TOLERANCE = 1.01


class LargeLogitWarning:
    """Warns once about logits that no cosine head returns, without waiting for a device."""

    def __init__(self) -> None:
        self.warned = False
        self._on_host: Tensor | None = None
        self._copied: torch.cuda.Event | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Events and pinned memory belong to a process.
        return {"warned": self.warned, "_on_host": None, "_copied": None}

    def check(self, logits: Tensor, kept: Tensor) -> None:
        """Look at the logits of kept samples, or at those of an earlier call on a GPU."""
        if self.warned or logits.numel() == 0 or inside_functorch():
            return
        largest = None
        if can_read_values(logits):
            largest = float(_largest(logits, kept))
        elif logits.device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            largest = self._largest_of_earlier_call(logits, kept)
        if largest is not None and largest > _TOLERANCE * _LARGEST_LOGIT:
            self.warned = True
            warnings.warn(
                "NONLFromLogits expects cosines divided by a temperature but got a logit of "
                f"{largest:.4g} in absolute value; after an ordinary linear layer the loss "
                "decreases without bound, use CosineClassifier as the head",
                UserWarning,
                stacklevel=5,
            )

    def _largest_of_earlier_call(self, logits: Tensor, kept: Tensor) -> float | None:
        """Return the value whose copy has arrived, if any, and start the next copy."""
        largest = None
        if self._copied is not None and self._on_host is not None:
            if not self._copied.query():
                return None
            largest = float(self._on_host)
        if self._on_host is None:
            self._on_host = torch.zeros((), dtype=torch.float32, pin_memory=True)
        self._on_host.copy_(_largest(logits, kept), non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record(torch.cuda.current_stream(logits.device))
        return largest


def _largest(logits: Tensor, kept: Tensor) -> Float[Tensor, ""]:
    """Return the largest absolute logit of the kept samples."""
    return logits.abs().amax(1).masked_fill(~kept, 0).amax().float()
