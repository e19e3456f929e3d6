"""How to train: the decisions that loop and steps read."""

from dataclasses import dataclass
from typing import Literal

from protosphere.training.schedules import Schedule

Execution = Literal["eager", "compiled"]


@dataclass(frozen=True)
class Settings:
    """How to train.

    Attributes:
        schedule: of the learning rate; it also says how many epochs.
        batch: samples a step; the rest of an epoch that does not fill one is left out, another rest each time.
        accumulate: pieces of the batch whose gradients are added before the step; what samples are contrasted with is
            the piece then, for losses that contrast samples.
        optimizer: which.
        momentum: of SGD.
        weight_decay: on all parameters.
        clip: the length beyond which the gradient is shortened; None leaves it.
        average: the decay of a moving average of weights; None for no average.
        precision: of the encoder's arithmetic; losses keep float32 in any case.
        execution: ``"compiled"`` compiles the step and, on a GPU, replays it as one CUDA graph in channels-last layout.
        seed: of the order of samples and of their augmentation.
        report_every: steps between records, besides one at the end of each epoch; None for no others.
    """

    schedule: Schedule
    batch: int
    accumulate: int = 1
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: float = 0.9
    weight_decay: float = 1e-4
    clip: float | None = None
    average: float | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    execution: Execution = "eager"
    seed: int = 42
    report_every: int | None = None

    def __post_init__(self) -> None:
        if self.batch < 1 or self.accumulate < 1 or self.batch % self.accumulate:
            raise ValueError(
                f"a batch must divide into equal pieces; got {self.batch} samples and {self.accumulate} pieces"
            )
