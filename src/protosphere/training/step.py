"""The training step: forward, backward and update, run eagerly or with a compiled loss."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from protosphere.data.loaders import Loader, derive_seed
from protosphere.data.mixing import mix_images
from protosphere.losses import MixedLabels
from protosphere.parallel import max_over
from protosphere.parallel.gradients import GradientAverage
from protosphere.parallel.launch import World
from protosphere.training.config import TrainConfig
from protosphere.training.ema import ExponentialMovingAverage
from protosphere.training.fsdp import clip_gradients, divide_like, is_divided, own_part
from protosphere.training.loss_scaling import LossScaler
from protosphere.training.micro_batches import micro_batch_backward, split_batch
from protosphere.training.objective import Objective
from protosphere.training.sharded_state import find_sharded_parameters

_AUTOCAST_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class EagerStep:
    """A training step without a CUDA graph.

    See :class:`~protosphere.training.protocol.Step` for its methods. The parts of a step are
    public, because :class:`~protosphere.training.graph_step.GraphStep` captures :meth:`update`, or
    only :meth:`compute_gradients`.

    Args:
        objective: Module to train, on the device of the loader.
        loader: Loader of the training images.
        config: Settings of the run.
        for_graph: Whether a step must be capturable in a CUDA graph: if the optimizer can be
            captured, learning rates are in tensors.
        world: The processes that train the objective together.

    Attributes:
        captures_optimizer: Whether :meth:`apply_gradients` is capturable too.

    Raises:
        ValueError: The parameter groups do not fit the objective; or its head is sharded over other
            processes, or the optimizer does not go with that.
    """

    def __init__(
        self,
        objective: Objective,
        loader: Loader,
        config: TrainConfig,
        *,
        for_graph: bool = False,
        world: World | None = None,
    ) -> None:
        self.objective, self.loader, self.config = objective, loader, config
        self.world = World() if world is None else world
        self.device = loader.device
        self.captures_optimizer = for_graph and config.optimizer.is_capturable
        self._channels_last = config.compile and self.device.type == "cuda"
        if self._channels_last:
            objective.to(memory_format=torch.channels_last)
        self._groups = config.parameter_groups.split(objective)
        self._last_lr = config.schedule.at_epoch(0)
        # A graph would keep a number forever; a tensor can be filled with the next one.
        self._lr_tensors = [
            torch.tensor(self._last_lr * group.lr_scale, device=self.device)
            for group in self._groups
            if self.captures_optimizer
        ]
        self.optimizer = config.optimizer.create(
            [
                {"params": group.parameters}
                | ({} if group.has_weight_decay else {"weight_decay": 0.0})
                for group in self._groups
            ],
            self._lr_tensors[0] if self.captures_optimizer else self._last_lr,
            capturable=self.captures_optimizer,
        )
        self._write_lr()
        self._parameters = [p for group in self._groups for p in group.parameters]
        self._sharded = find_sharded_parameters(objective, config.optimizer, self.world.group)
        # Gradients of divided weights have been averaged in the backward pass, and those of shards
        # of the head are not averaged.
        divided = {id(p) for p in self._parameters if is_divided(p)} | set(map(id, self._sharded))
        whole = [p for p in self._parameters if id(p) not in divided]
        self._is_divided = len(whole) < len(self._parameters)
        self._average_gradients = GradientAverage(
            whole, self.world.group if whole else None, encoder=objective.encoder
        )
        self._group_settings = [_settings(group) for group in self.optimizer.param_groups]
        self._scaler = LossScaler(self.device) if config.precision == "fp16" else None
        if self._scaler is not None and self.captures_optimizer:
            # The fused optimizers of torch read this tensor and skip the step if it is 1.
            self.optimizer.found_inf = self._scaler.found_inf  # type: ignore[attr-defined]
        self._ema = (
            None
            if config.ema_decay is None
            else ExponentialMovingAverage(objective, config.ema_decay)
        )
        # Synchronized batch norm is not in the graph: its shapes depend on values.
        is_whole = not any(isinstance(part, nn.SyncBatchNorm) for part in objective.modules())
        compiled: Callable[[Any], Any] = (
            partial(torch.compile, fullgraph=is_whole, dynamic=False)
            if config.compile
            else _identity
        )
        self._encode = compiled(self._compute_features)
        if self.world.group is None:
            # One graph for the whole step, and two for a batch in pieces.
            self._whole, self._loss = compiled(self._compute_whole), compiled(self._compute_loss)
        else:
            # The exchange of the losses is in no graph.
            self._whole, self._loss = self._compute_parts, self._compute_loss

    @property
    def ema(self) -> ExponentialMovingAverage | None:
        """The moving average of the weights, if the run has one."""
        return self._ema

    @property
    def loss_scale(self) -> float | None:
        """The loss scale of float16; see :attr:`Step.loss_scale`."""
        return None if self._scaler is None else self._scaler.current

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
        self._seed("step", step)
        if lr != self._last_lr:
            self._last_lr = lr
            self._write_lr()
        if self._ema is not None:
            self._ema.set_step(step)

    @torch.no_grad()
    def encode(self, batch: tuple[Tensor, ...], *, index: int) -> None:
        """Augment and encode a batch; see :meth:`Step.encode`."""
        self._seed("encode", index)
        for piece in self._pieces(batch):
            self._compute_features(*piece)

    def update(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Compute the loss and update the weights.

        A CUDA graph may capture this if the optimizer is capturable: nothing waits for the device,
        and no shape depends on a value.

        Args:
            batch: A batch of :meth:`Loader.batches`.

        Returns:
            The loss before the update.
        """
        loss = self.compute_gradients(batch)
        self.apply_gradients()
        return loss

    def compute_gradients(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Compute the loss and its gradients, unscaled and clipped; a CUDA graph may capture this.

        Gradients are averaged over the processes first, so that all of them clip alike, and an
        overflow on one of them is one on all.

        Args:
            batch: A batch of :meth:`Loader.batches`, or the part of this process.

        Returns:
            The loss.
        """
        self.optimizer.zero_grad(set_to_none=True)
        if self.config.micro_batch_size is None:
            loss: Tensor = self._whole(*batch)
            with self._average_gradients.overlap():
                self._backward(loss)
        else:
            loss = micro_batch_backward(
                self.objective.encoder,
                self._pieces(batch),
                self._encode,
                self._loss,
                self._backward,
            )
        self._average_gradients()
        if self._scaler is not None:
            self._scaler.unscale([own_part(p.grad) for p in self._parameters if p.grad is not None])
            if self._is_divided:  # An overflow may be in the part of another process.
                self._scaler.found_inf.copy_(max_over(self._scaler.found_inf, self.world.group))
        max_norm = self.config.grad_clip
        if max_norm is not None and self._is_divided:
            clip_gradients(self._parameters, max_norm, self.world.group, sharded=self._sharded)
        elif max_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, max_norm)
        return loss.detach()

    def apply_gradients(self) -> None:
        """Update the weights, unless gradients of float16 overflowed, and their average."""
        # A captured optimizer skips the step itself; asking here would wait for the device.
        if self._scaler is None or self.captures_optimizer or not bool(self._scaler.found_inf):
            self.optimizer.step()
        if self._scaler is not None:
            self._scaler.update()
        if self._ema is not None:
            self._ema.update()

    def state_dict(self) -> dict[str, Any]:
        """Return what resuming needs besides the weights; see :meth:`Step.state_dict`."""
        optimizer = self.optimizer.state_dict()
        state: dict[str, Any] = {
            "optimizer": optimizer.pop("state"),
            "optimizer_name": self.config.optimizer.name,
            "parameter_groups": [group.description() for group in self._groups],
        }
        changed = [
            {name: value for name, value in _settings(group).items() if name not in initial}
            | {name: group[name] for name, value in initial.items() if group[name] is not value}
            for group, initial in zip(
                self.optimizer.param_groups, self._group_settings, strict=True
            )
        ]
        if any(changed):  # Some optimizers count their steps there.
            state["optimizer_groups"] = changed
        del optimizer["param_groups"]
        if optimizer:  # And some have more, such as a random state.
            state["optimizer_extra"] = optimizer
        if self._scaler is not None:
            state["loss_scale"] = self._scaler.state_dict()
        if self._ema is not None:
            state["ema"] = self._ema.state_dict()
        queue = self.objective.gather_queue()
        if queue is not None:
            state["queue"] = queue
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state; see :meth:`Step.load_state_dict`."""
        if state["optimizer_name"] != self.config.optimizer.name:
            raise ValueError(
                f"the state must be of the optimizer {self.config.optimizer.name}, "
                f"got {state['optimizer_name']}"
            )
        if state["parameter_groups"] != [group.description() for group in self._groups]:
            raise ValueError("the state must be of the same parameter groups")
        groups = self.optimizer.state_dict()["param_groups"]
        for group, changed in zip(groups, state.get("optimizer_groups", []), strict=False):
            group.update(changed)
        extra = state.get("optimizer_extra", {})
        saved_state = state["optimizer"]
        if self._is_divided:
            saved_state = {
                index: divide_like(entries, self._parameters[index])
                for index, entries in saved_state.items()
            }
        self.optimizer.load_state_dict({"state": saved_state, "param_groups": groups} | extra)
        self._write_lr()  # Loading has replaced the tensors by copies.
        for index, entries in self.optimizer.state_dict()["state"].items():
            for name, value in entries.items():
                saved, parameter = saved_state[index][name], self._parameters[index]
                if not isinstance(value, Tensor) or name == "step":
                    continue
                # torch has converted it to the type of the parameter.
                entries[name] = value.to(saved.dtype).copy_(saved)
                if value.shape == parameter.shape:
                    # The memory layout must be that of the parameter on this device.
                    entries[name] = torch.empty_like(parameter, dtype=saved.dtype).copy_(saved)
        if self._scaler is not None:
            self._scaler.load_state_dict(state["loss_scale"])
        if self._ema is not None:
            self._ema.load_state_dict(state["ema"])
        self.objective.load_queue(state.get("queue"))

    def _pieces(self, batch: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        """Return the pieces of a batch that are encoded at a time."""
        if self.config.micro_batch_size is None:
            return [batch]
        count = self.world.size
        num_samples = min(self.config.batch_size, len(self.loader))
        sizes = None if count == 1 else (num_samples // count, -(-num_samples // count))
        return split_batch(batch, self.config.micro_batch_size, sizes=sizes)

    def _compute_whole(self, *batch: Tensor) -> Tensor:
        return self._compute_loss(*self._compute_features(*batch))

    def _compute_parts(self, *batch: Tensor) -> Tensor:
        return self._compute_loss(*self._encode(*batch))

    def _compute_features(self, *batch: Tensor) -> tuple[Tensor, Tensor | MixedLabels]:
        """Augment and encode a batch or a piece of it."""
        images, labels = self.loader.prepare(*batch)
        targets: Tensor | MixedLabels = labels
        if self.config.mixing is not None:
            images, weights = mix_images(images, self.config.mixing)
            targets = MixedLabels(labels, labels.roll(1), weights)
        if self._channels_last and images.ndim == 4:  # Precomputed features have two dimensions.
            images = images.contiguous(memory_format=torch.channels_last)
        with self._autocast():
            return self.objective.encoder(images), targets

    def _compute_loss(self, features: Tensor, targets: Tensor | MixedLabels) -> Tensor:
        with self._autocast():
            loss: Tensor = self.objective.loss(features, self.objective.head, targets)
        return loss

    def _autocast(self) -> torch.autocast:
        precision = self.config.precision
        return torch.autocast(
            self.device.type,
            _AUTOCAST_TYPES.get(precision, torch.bfloat16),
            enabled=precision in _AUTOCAST_TYPES,
        )

    def _backward(self, loss: Tensor) -> None:
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    def _seed(self, purpose: str, number: int) -> None:
        # Processes augment other images, with other random numbers.
        process = "" if self.world.is_first else f" of process {self.world.rank}"
        seed = derive_seed(f"{purpose}{process}", self.config.seed, number)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index or 0].manual_seed(seed)
        else:
            torch.manual_seed(seed)  # Of the CPU and, if there is one, of MPS.

    def _write_lr(self) -> None:
        """Write the learning rate of each group."""
        for index, group in enumerate(self.optimizer.param_groups):
            lr = self._last_lr * self._groups[index].lr_scale
            if self.captures_optimizer:
                group["lr"] = self._lr_tensors[index].fill_(lr)
            else:
                group["lr"] = lr


def _identity(function: Any) -> Any:
    return function


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a parameter group of an optimizer besides the learning rate."""
    return {name: value for name, value in group.items() if name not in ("params", "lr")}
