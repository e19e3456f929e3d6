"""Training: objective, settings, learning rate schedules and the training loop."""

from protosphere.training.config import TrainConfig
from protosphere.training.ema import ExponentialMovingAverage
from protosphere.training.loop import Progress, TrainingError, train
from protosphere.training.objective import Objective
from protosphere.training.optimizers import SGD, AdamW, OptimizerConfig, TimmOptimizer
from protosphere.training.parameter_groups import ParameterGroups
from protosphere.training.schedules import Schedule

__all__ = [
    "SGD",
    "AdamW",
    "ExponentialMovingAverage",
    "Objective",
    "OptimizerConfig",
    "ParameterGroups",
    "Progress",
    "Schedule",
    "TimmOptimizer",
    "TrainConfig",
    "TrainingError",
    "train",
]
