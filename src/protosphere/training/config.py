"""The settings of a training run: optimizer, batch size, precision and the like."""

import math
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from protosphere.training.schedules import Schedule


def _check_momentum(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and less than 1, got {value}")


def _check_weight_decay(value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"weight_decay must be a number of at least 0, got {value}")


@runtime_checkable
class OptimizerConfig(Protocol):
    """What an optimizer of :class:`TrainConfig` must have; :class:`SGD` and :class:`AdamW` do."""

    @property
    def name(self) -> str:
        """Name of the optimizer, as it is stored in checkpoints."""
        ...

    def create(
        self, parameters: Iterable[nn.Parameter], lr: float | Tensor, *, capturable: bool = False
    ) -> torch.optim.Optimizer:
        """Create the optimizer.

        Args:
            parameters: Parameters to optimize.
            lr: Learning rate; a tensor if it is changed in place.
            capturable: Whether a step must be capturable in a CUDA graph.

        Returns:
            The optimizer.
        """
        ...


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent.

    Args:
        momentum: Momentum factor.
        weight_decay: Weight decay (L2 penalty) of all parameters.

    Raises:
        ValueError: An argument is out of range.
    """

    momentum: float = 0.9
    weight_decay: float = 1e-4
    name: ClassVar[str] = "sgd"

    def __post_init__(self) -> None:
        _check_momentum("momentum", self.momentum)
        _check_weight_decay(self.weight_decay)

    def create(
        self, parameters: Iterable[nn.Parameter], lr: float | Tensor, *, capturable: bool = False
    ) -> torch.optim.Optimizer:
        """Create the optimizer; see :meth:`OptimizerConfig.create`."""
        return torch.optim.SGD(
            parameters,
            lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            fused=True if capturable else None,
        )


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay.

    Args:
        betas: Decay rates of the running averages of the gradient and of its square.
        weight_decay: Weight decay coefficient of all parameters.

    Raises:
        ValueError: An argument is out of range.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 1e-4
    name: ClassVar[str] = "adamw"

    def __post_init__(self) -> None:
        for beta in self.betas:
            _check_momentum("betas", beta)
        _check_weight_decay(self.weight_decay)

    def create(
        self, parameters: Iterable[nn.Parameter], lr: float | Tensor, *, capturable: bool = False
    ) -> torch.optim.Optimizer:
        """Create the optimizer; see :meth:`OptimizerConfig.create`."""
        return torch.optim.AdamW(
            parameters,
            lr,
            betas=self.betas,
            weight_decay=self.weight_decay,
            fused=True if capturable else None,
            capturable=capturable,
        )


@dataclass(frozen=True)
class TrainConfig:
    """The settings of a training run.

    Args:
        schedule: Learning rate schedule, which includes the number of epochs.
        batch_size: Number of samples of a step. Samples that do not fill a batch at the end of an
            epoch are left out; the order of samples differs in each epoch.
        optimizer: Optimizer, :class:`SGD` or :class:`AdamW`.
        grad_accum_steps: Number of equal parts into which a batch is divided to save memory; their
            gradients are accumulated. Losses that contrast samples see one part at a time.
        grad_clip: Maximum norm of the gradient; None for no clipping.
        ema_decay: Decay of the exponential moving average of the weights; None for no average.
        precision: Precision of the encoder, ``"fp32"`` or ``"bf16"``; losses compute in float32.
        compile: Whether to compile the training step; on a GPU it is captured as a CUDA graph in
            channels-last layout as well.
        seed: Seed of the order of samples and of their augmentation.
        report_every: Number of steps between reports, in addition to the one at the end of each
            epoch; None for no others.

    Raises:
        ValueError: An argument is out of range.

    >>> TrainConfig(Schedule(0.1, epochs=3), batch_size=64, optimizer=SGD(momentum=0.8)).seed
    42
    """

    schedule: Schedule
    batch_size: int
    _: KW_ONLY
    optimizer: OptimizerConfig = SGD()
    grad_accum_steps: int = 1
    grad_clip: float | None = None
    ema_decay: float | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    seed: int = 42
    report_every: int | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.grad_accum_steps < 1 or self.batch_size % self.grad_accum_steps:
            raise ValueError(
                f"grad_accum_steps must divide batch_size ({self.batch_size}), "
                f"got {self.grad_accum_steps}"
            )
        if self.grad_clip is not None and not self.grad_clip > 0:
            raise ValueError(f"grad_clip must be a positive number, got {self.grad_clip}")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise ValueError(f"ema_decay must be between 0 and 1, got {self.ema_decay}")
        if self.precision not in ("fp32", "bf16"):
            raise ValueError(f"precision must be 'fp32' or 'bf16', got {self.precision!r}")
        if self.report_every is not None and self.report_every < 1:
            raise ValueError(f"report_every must be at least 1, got {self.report_every}")
