"""Training: the objective, the loop, the learning rate over a run."""

from protosphere.training.config import Settings
from protosphere.training.loop import Progress, TrainingError, train
from protosphere.training.objective import Objective
from protosphere.training.schedules import Schedule

__all__ = ["Objective", "Progress", "Schedule", "Settings", "TrainingError", "train"]
