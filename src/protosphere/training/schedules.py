"""The learning rate over a run: cosine by whole epochs, steps, or constant, after a warm-up by single steps."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Schedule:
    """The learning rate at each step of a run. A value without state: a resumed run asks for step t and goes on.

    Cosine: η_e = η_min + ½ (η_0 − η_min)(1 + cos(π e/E)), e whole epochs of E. Steps: η_0 γ^k, k the milestones passed.
    Warm-up: linear in single steps, from ``warmup_rate`` to the schedule's value at the end of the warm-up.

    Attributes:
        rate: η_0.
        epochs: E.
        kind: of the decay.
        final_share: η_min/η_0 of the cosine.
        milestones: of the steps, in epochs.
        gamma: of the steps.
        warmup_epochs: how long the warm-up is.
        warmup_rate: where it begins.

    >>> Schedule(0.2, epochs=10).at(0, steps_per_epoch=5)
    0.2
    """

    rate: float
    epochs: int
    kind: Literal["cosine", "steps", "constant"] = "cosine"
    final_share: float = 1e-3
    milestones: tuple[int, ...] = ()
    gamma: float = 0.2
    warmup_epochs: int = 0
    warmup_rate: float = 0.01

    def __post_init__(self) -> None:
        if not self.rate > 0 or self.epochs < 1:
            raise ValueError(
                f"a schedule needs a positive rate and an epoch; got {self.rate} and {self.epochs}"
            )
        if not 0 <= self.warmup_epochs < self.epochs:
            raise ValueError(
                f"the warm-up must be shorter than the run, {self.epochs} epochs; got {self.warmup_epochs}"
            )
        if self.kind not in ("cosine", "steps", "constant"):
            raise ValueError(f"a schedule is 'cosine', 'steps' or 'constant'; got {self.kind!r}")

    def at_epoch(self, epoch: int) -> float:
        """The rate of a whole epoch, the warm-up left out."""
        if self.kind == "constant":
            return self.rate
        if self.kind == "steps":
            return float(
                self.rate * self.gamma ** sum(epoch >= milestone for milestone in self.milestones)
            )
        least = self.rate * self.final_share
        return least + (self.rate - least) * (1 + math.cos(math.pi * epoch / self.epochs)) / 2

    def at(self, step: int, *, steps_per_epoch: int) -> float:
        """The rate of a step, counted from 0 over the whole run."""
        warmup = self.warmup_epochs * steps_per_epoch
        if step < warmup:
            target = self.at_epoch(self.warmup_epochs)
            return self.warmup_rate + (target - self.warmup_rate) * step / warmup
        return self.at_epoch(step // steps_per_epoch)
