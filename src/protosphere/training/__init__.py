"""Training: for now the schedules of the learning rate."""

from protosphere.training.schedules import Schedule

__all__ = ["Schedule"]
