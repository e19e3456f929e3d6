"""Imbalanced classes: their counts, and class weights for losses."""

import torch
from jaxtyping import Float, Integer
from torch import Tensor


def class_counts(
    labels: Integer[Tensor, "samples"], num_classes: int
) -> Integer[Tensor, "classes"]:
    """Return the number of samples of each class.

    Args:
        labels: Class index of each sample.
        num_classes: Number of classes.

    >>> class_counts(torch.tensor([0, 2, 2]), 3)
    tensor([1, 0, 2])
    """
    return torch.bincount(labels.cpu(), minlength=num_classes)


def balanced_class_weights(counts: Integer[Tensor, "classes"]) -> Float[Tensor, "classes"]:
    """Return weights that give every class the same total weight, N/(K n_c).

    They are those of scikit-learn's ``class_weight="balanced"``.

    Args:
        counts: Number of samples of each class, at least one each.

    Raises:
        ValueError: A class has no samples.

    >>> balanced_class_weights(torch.tensor([1, 3]))
    tensor([2.0000, 0.6667])
    """
    _check_counts(counts)
    return (counts.sum() / (len(counts) * counts.double())).float()


def effective_class_weights(
    counts: Integer[Tensor, "classes"], *, beta: float = 0.9999
) -> Float[Tensor, "classes"]:
    """Return the inverse of the effective number of samples, (1 − β)/(1 − β^n_c), with mean 1.

    Args:
        counts: Number of samples of each class, at least one each.
        beta: β, at least 0 and less than 1. 0 gives equal weights; close to 1, weights are
            proportional to the inverse of the counts.

    Raises:
        ValueError: A class has no samples, or β is out of range.

    >>> effective_class_weights(torch.tensor([1, 3]), beta=0.5)
    tensor([1.2727, 0.7273])

    Reference: Cui et al., "Class-balanced loss based on effective number of samples", 2019.
    """
    _check_counts(counts)
    if not 0 <= beta < 1:
        raise ValueError(f"beta must be at least 0 and less than 1, got {beta}")
    weights = (1 - beta) / (1 - beta ** counts.double())
    return (weights / weights.mean()).float()


def _check_counts(counts: Tensor) -> None:
    empty = torch.nonzero(counts < 1).flatten().tolist()
    if empty:
        raise ValueError(
            "counts must be at least 1 for every class, got "
            f"{int(counts[empty[0]])} for class {empty[0]}"
        )
