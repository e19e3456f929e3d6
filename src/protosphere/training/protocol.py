"""What the training loop needs of a training step."""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from protosphere.training.ema import ExponentialMovingAverage


@runtime_checkable
class Step(Protocol):
    """A training step, which owns the optimizer and the average of the weights."""

    @property
    def ema(self) -> ExponentialMovingAverage | None:
        """The moving average of the weights, if the run has one."""
        ...

    @property
    def loss_scale(self) -> float | None:
        """The loss scale of float16, None in other precisions; it waits for the device."""
        ...

    def __call__(self, batch: tuple[Tensor, ...], *, step: int, lr: float) -> Tensor:
        """Do one training step.

        Args:
            batch: A batch of :meth:`Loader.batches`.
            step: Number of steps done before over the whole run; with the seed of the run it
                determines all random numbers of this step.
            lr: Learning rate.

        Returns:
            The loss before the update, on the device; it is valid until the next step.
        """
        ...

    def encode(self, batch: tuple[Tensor, ...], *, index: int) -> None:
        """Augment and encode a batch as a training step does, for the statistics of batch norm.

        Args:
            batch: A batch of :meth:`Loader.batches`.
            index: Number that determines the random numbers, with the seed of the run.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what resuming needs besides the weights, as plain types.

        Every process must call it: each of them may have a part of a queue of recent features.
        """
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state that was saved on this device or another one.

        Args:
            state: What :meth:`state_dict` returned.

        Raises:
            ValueError, KeyError, RuntimeError: The state is of another model, optimizer or
                average.
        """
        ...
