"""The training step: forward, backward and update, run eagerly or with a compiled loss."""

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from protosphere.data.loaders import Loader, derive_seed
from protosphere.training.config import TrainConfig
from protosphere.training.ema import ExponentialMovingAverage
from protosphere.training.objective import Objective


@runtime_checkable
class Step(Protocol):
    """A training step, which owns the optimizer and the average of the weights."""

    @property
    def ema(self) -> ExponentialMovingAverage | None:
        """The moving average of the weights, if the run has one."""
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

    def state_dict(self) -> dict[str, Any]:
        """Return what resuming needs besides the weights, as plain types."""
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


class EagerStep:
    """A training step without a CUDA graph; see :class:`Step` for its methods.

    The two halves of a step are public, because :class:`~protosphere.training.graph_step.GraphStep`
    captures the second one.

    Args:
        objective: Module to train, on the device of the loader.
        loader: Loader of the training images.
        config: Settings of the run.
        for_graph: Whether :meth:`update` must be capturable in a CUDA graph: learning rate in a
            tensor, capturable optimizer, channels-last layout.
    """

    def __init__(
        self,
        objective: Objective,
        loader: Loader,
        config: TrainConfig,
        *,
        for_graph: bool = False,
    ) -> None:
        self.objective, self.loader, self.config = objective, loader, config
        self.device = loader.device
        self._channels_last = for_graph
        if for_graph:
            objective.to(memory_format=torch.channels_last)
        # A graph would keep a number forever; a tensor can be filled with the next one.
        first = config.schedule.at_epoch(0)
        self._lr = torch.tensor(first, device=self.device) if for_graph else first
        self._last_lr = first
        self.optimizer = config.optimizer.create(
            list(objective.parameters()), self._lr, capturable=for_graph
        )
        self._ema = (
            None
            if config.ema_decay is None
            else ExponentialMovingAverage(objective, config.ema_decay)
        )
        self._loss = (
            torch.compile(self._compute_loss, fullgraph=True, dynamic=False)
            if config.compile
            else self._compute_loss
        )

    @property
    def ema(self) -> ExponentialMovingAverage | None:
        """The moving average of the weights, if the run has one."""
        return self._ema

    def __call__(self, batch: tuple[Tensor, ...], *, step: int, lr: float) -> Tensor:
        """Do one training step; see :meth:`Step.__call__`."""
        self.prepare(step=step, lr=lr)
        return self.update(batch)

    def prepare(self, *, step: int, lr: float) -> None:
        """Set everything that differs between steps besides the batch.

        Args:
            step: Number of steps done before over the whole run.
            lr: Learning rate.
        """
        self._seed(derive_seed("step", self.config.seed, step))
        self._set_lr(lr)
        if self._ema is not None:
            self._ema.set_step(step)

    def update(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Compute the loss and update the weights.

        A CUDA graph may capture this: nothing waits for the device, and no shape depends on a
        value.

        Args:
            batch: A batch of :meth:`Loader.batches`.

        Returns:
            The loss before the update.
        """
        num_parts = self.config.grad_accum_steps
        losses = []
        self.optimizer.zero_grad(set_to_none=True)
        for part in zip(*(tensor.chunk(num_parts) for tensor in batch), strict=True):
            loss = self._loss(*part)
            if num_parts > 1:
                loss = loss * (len(part[0]) / len(batch[0]))
            loss.backward()
            losses.append(loss.detach())
        if self.config.grad_clip is not None:
            torch.nn.utils.clip_grad_norm_(self.objective.parameters(), self.config.grad_clip)
        self.optimizer.step()
        if self._ema is not None:
            self._ema.update()
        return losses[0] if num_parts == 1 else torch.stack(losses).sum()

    def state_dict(self) -> dict[str, Any]:
        """Return what resuming needs besides the weights; see :meth:`Step.state_dict`."""
        state = {
            "optimizer": self.optimizer.state_dict()["state"],
            "optimizer_name": self.config.optimizer.name,
        }
        return state if self._ema is None else state | {"ema": self._ema.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state; see :meth:`Step.load_state_dict`."""
        if state["optimizer_name"] != self.config.optimizer.name:
            raise ValueError(
                f"the state must be of the optimizer {self.config.optimizer.name}, "
                f"got {state['optimizer_name']}"
            )
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr  # Loading has replaced the tensor by a copy.
        for parameter, entries in self.optimizer.state.items():
            for name, value in entries.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    # The memory layout must be that of the parameter on this device.
                    entries[name] = torch.empty_like(parameter).copy_(value)
        if self._ema is not None:
            self._ema.load_state_dict(state["ema"])

    def _compute_loss(self, *batch: Tensor) -> Tensor:
        images, labels = self.loader.prepare(*batch)
        if self._channels_last and images.ndim == 4:  # Precomputed features have two dimensions.
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"
        ):
            loss: Tensor = self.objective(images, labels)
        return loss

    def _seed(self, seed: int) -> None:
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index or 0].manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def _set_lr(self, lr: float) -> None:
        if lr == self._last_lr:
            return
        self._last_lr = lr
        if isinstance(self._lr, Tensor):
            self._lr.fill_(lr)
        else:
            for group in self.optimizer.param_groups:
                group["lr"] = lr
