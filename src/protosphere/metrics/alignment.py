"""Alignments: how near samples, class means and prototypes are to each other, from class sums alone."""

import torch
from jaxtyping import Float
from torch import Tensor

from protosphere.geometry.class_statistics import ClassStatistics, Space
from protosphere.metrics.frame import Frame, UndefinedMetricError, named


def weight_class_alignment(
    weights: Frame, means: Frame, *, space: Space = "sphere"
) -> Float[Tensor, ""]:
    """Prototypes to class means: mean_c ‖w_c − μ_c/‖μ_c‖‖²; in raw space mean_c ‖w_c − μ_c‖².

    At collapse 0. Features that cannot be negative have orthogonal means at best: 2 − 2√(1 − 1/K) with a simplex of
    prototypes.
    """
    directions = means.vectors
    if space == "sphere":
        lengths = torch.linalg.vector_norm(directions, dim=1, keepdim=True)
        lost = (lengths < 1e-12).flatten()
        if bool(lost.any()):
            raise UndefinedMetricError(
                f"class means must have a direction; that of {named(lost, 'is zero')}"
            )
        directions = directions / lengths
    return (weights.vectors - directions).square().sum(1).mean()


def weight_instance_alignment(statistics: ClassStatistics, weights: Frame) -> Float[Tensor, ""]:
    """Prototypes to samples: mean_i ‖w_{y_i} − u_i‖² = Σ_c (S_c + n_c ‖w_c − μ_c‖²)/N, S_c the class's spread.

    At collapse 0. Features that cannot be negative: at best 2 − 2√(1 − 1/K).
    """
    if not bool(statistics.counts.sum() > 0):
        raise UndefinedMetricError("alignment needs samples; there are none")
    distances = (weights.vectors - statistics.means).square().sum(1)
    return (
        statistics.counts * (statistics.variances() + distances)
    ).sum() / statistics.counts.sum()


def instance_alignment(statistics: ClassStatistics) -> Float[Tensor, ""]:
    """Samples of a class to each other: mean of ‖u_i − u_j‖² over all pairs i ≠ j of one class.

    = Σ_c 2 n_c S_c / Σ_c n_c (n_c − 1), S_c = Σ_{i: y_i=c} ‖u_i − μ_c‖². At collapse 0, with ReLU features too.
    """
    counts = statistics.counts
    pairs = (counts * (counts - 1)).sum()
    if not bool(pairs > 0):
        raise UndefinedMetricError(
            "alignment between samples needs two of one class; no class has two"
        )
    return (2 * counts.square() * statistics.variances()).sum() / pairs
