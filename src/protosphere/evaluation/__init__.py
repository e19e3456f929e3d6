"""Evaluation: what a trained objective is worth, and what its geometry is."""

from protosphere.evaluation.evaluate import Assessment, assess, take_means
from protosphere.evaluation.inference import Outputs, outputs

__all__ = ["Assessment", "Outputs", "assess", "outputs", "take_means"]
