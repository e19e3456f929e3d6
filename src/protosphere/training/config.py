"""The settings of a training run: optimizer, batch size, precision and the like."""

from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

from protosphere.data.mixing import Mixing
from protosphere.training.optimizers import SGD, AdamW, OptimizerConfig, TimmOptimizer
from protosphere.training.parameter_groups import ParameterGroups
from protosphere.training.schedules import Schedule

__all__ = ["SGD", "AdamW", "OptimizerConfig", "Precision", "TimmOptimizer", "TrainConfig"]

Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class TrainConfig:
    """The settings of a training run.

    Args:
        schedule: Learning rate schedule, which includes the number of epochs.
        batch_size: Number of samples of a step. Samples that do not fill a batch at the end of an
            epoch are left out; the order of samples differs in each epoch.
        optimizer: Optimizer, :class:`SGD`, :class:`AdamW` or :class:`TimmOptimizer`.
        parameter_groups: Learning rate multipliers of parts of the model, layer-wise decay, and
            parameters without weight decay.
        mixing: Mixup or CutMix, applied to augmented images; the loss then gets
            :class:`~protosphere.losses.MixedLabels`. None for none.
        micro_batch_size: Number of samples that the encoder computes at a time, to save memory;
            None for the whole batch. The loss and its gradient are those of the whole batch; see
            :mod:`protosphere.training.micro_batches`.
        grad_clip: Maximum norm of the gradient; None for no clipping.
        ema_decay: Decay of the exponential moving average of the weights; None for no average.
        precision: Precision of the encoder: ``"fp32"``, ``"bf16"``, or ``"fp16"`` with loss
            scaling. Losses compute in float32.
        compile: Whether to compile the training step; on a GPU it is captured as a CUDA graph in
            channels-last layout as well. On several processes, only augmentation and encoder are
            compiled, because the loss exchanges data.
        fsdp: Whether several processes divide the weights of the encoder, their gradients and the
            state of the optimizer among them; see :mod:`protosphere.training.fsdp`. It has no
            effect on one process.
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
    optimizer: OptimizerConfig = field(default_factory=SGD)
    parameter_groups: ParameterGroups = field(default_factory=ParameterGroups)
    mixing: Mixing | None = None
    micro_batch_size: int | None = None
    grad_clip: float | None = None
    ema_decay: float | None = None
    precision: Precision = "fp32"
    compile: bool = False
    fsdp: bool = False
    seed: int = 42
    report_every: int | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.micro_batch_size is not None and not 1 < self.micro_batch_size < self.batch_size:
            raise ValueError(
                "micro_batch_size must be at least 2 and less than batch_size "
                f"({self.batch_size}), got {self.micro_batch_size}"
            )
        if self.grad_clip is not None and not self.grad_clip > 0:
            raise ValueError(f"grad_clip must be a positive number, got {self.grad_clip}")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise ValueError(f"ema_decay must be between 0 and 1, got {self.ema_decay}")
        if self.precision not in ("fp32", "bf16", "fp16"):
            raise ValueError(f"precision must be 'fp32', 'bf16' or 'fp16', got {self.precision!r}")
        if self.report_every is not None and self.report_every < 1:
            raise ValueError(f"report_every must be at least 1, got {self.report_every}")
