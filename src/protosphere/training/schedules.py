"""Learning rate schedules: cosine, multistep or constant, after a linear warmup."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal


@dataclass(frozen=True)
class Schedule:
    """The learning rate at every step of a run.

    A schedule has no state: a resumed run asks for the learning rate of its next step.

    - ``"cosine"``: lr_e = lr_min + ½ (lr − lr_min)(1 + cos(π e/E)) in epoch e of E, constant
      within an epoch, lr_min = ``min_lr_ratio`` · lr.
    - ``"multistep"``: lr · gamma^k after k milestones.
    - ``"constant"``: lr.

    The warmup is linear in steps, from ``warmup_lr`` to the value that the schedule has at the end
    of the warmup.

    Args:
        lr: Initial learning rate.
        epochs: Number of epochs of the run.
        name: ``"cosine"``, ``"multistep"`` or ``"constant"``.
        min_lr_ratio: Final learning rate divided by the initial one (cosine only).
        milestones: Epochs at which the learning rate is multiplied by ``gamma`` (multistep only).
        gamma: Factor of the learning rate at each milestone (multistep only).
        warmup_epochs: Number of warmup epochs.
        warmup_lr: Learning rate of the first step of the warmup.

    Raises:
        ValueError: An argument is out of range.

    >>> Schedule(0.2, epochs=10).at_step(0, steps_per_epoch=5)
    0.2
    """

    lr: float
    epochs: int
    name: Literal["cosine", "multistep", "constant"] = "cosine"
    _: KW_ONLY
    min_lr_ratio: float = 1e-3
    milestones: tuple[int, ...] = ()
    gamma: float = 0.2
    warmup_epochs: int = 0
    warmup_lr: float = 0.01

    def __post_init__(self) -> None:
        if self.name not in ("cosine", "multistep", "constant"):
            raise ValueError(f"name must be 'cosine', 'multistep' or 'constant', got {self.name!r}")
        for name in ("lr", "gamma", "warmup_lr"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be a positive number, got {value}")
        if self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {self.epochs}")
        if not 0 <= self.min_lr_ratio <= 1:
            raise ValueError(f"min_lr_ratio must be between 0 and 1, got {self.min_lr_ratio}")
        if not 0 <= self.warmup_epochs < self.epochs:
            raise ValueError(
                f"warmup_epochs must be at least 0 and less than epochs ({self.epochs}), "
                f"got {self.warmup_epochs}"
            )

    def at_epoch(self, epoch: int) -> float:
        """Return the learning rate of an epoch, without the warmup.

        Args:
            epoch: Index of the epoch, from 0.

        Returns:
            The learning rate.
        """
        if self.name == "constant":
            return self.lr
        if self.name == "multistep":
            passed = sum(epoch >= milestone for milestone in self.milestones)
            return float(self.lr * self.gamma**passed)
        min_lr = self.lr * self.min_lr_ratio
        return min_lr + (self.lr - min_lr) * (1 + math.cos(math.pi * epoch / self.epochs)) / 2

    def at_step(self, step: int, *, steps_per_epoch: int) -> float:
        """Return the learning rate of a step.

        Args:
            step: Index of the step, from 0 over the whole run.
            steps_per_epoch: Number of steps of an epoch.

        Returns:
            The learning rate.
        """
        warmup_steps = self.warmup_epochs * steps_per_epoch
        if step < warmup_steps:
            target = self.at_epoch(self.warmup_epochs)
            return self.warmup_lr + (target - self.warmup_lr) * step / warmup_steps
        return self.at_epoch(step // steps_per_epoch)
