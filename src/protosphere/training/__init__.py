"""Training: objective, settings, learning rate schedules and the training loop."""

from protosphere.training.config import SGD, AdamW, TrainConfig
from protosphere.training.ema import ExponentialMovingAverage
from protosphere.training.loop import Progress, TrainingError, train
from protosphere.training.objective import Objective
from protosphere.training.schedules import Schedule

__all__ = [
    "SGD",
    "AdamW",
    "ExponentialMovingAverage",
    "Objective",
    "Progress",
    "Schedule",
    "TrainConfig",
    "TrainingError",
    "train",
]
