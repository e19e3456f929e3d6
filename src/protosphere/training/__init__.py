"""Training: the objective, the loop, the learning rate over a run."""

from protosphere.training.loop import Progress, TrainingError, train
from protosphere.training.objective import Objective
from protosphere.training.schedules import Schedule
from protosphere.training.settings import Settings

__all__ = ["Objective", "Progress", "Schedule", "Settings", "TrainingError", "train"]
