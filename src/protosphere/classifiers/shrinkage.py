"""The shrinkage of whitened class means by cross-validation, from statistics that add up."""

from functools import reduce
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from protosphere.classifiers.class_scatter import ClassScatter, class_scatter
from protosphere.classifiers.whitening import (
    Rule,
    Shrinkage,
    automatic_shrinkage,
    is_without_scatter,
)
from protosphere.geometry import normalize

ChosenShrinkage = Literal["cv"] | Shrinkage

SHRINKAGES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
NUM_FOLDS = 5
# Held-out samples per fold: their accuracy has a standard error of half a point or less over all
# folds, and a million samples are classified in no more time than these.
MAX_HELD_OUT = 4000
# By how many standard errors of the difference a value must be better than the automatic one.
_MIN_ERRORS = 2.0


@torch.no_grad()
def cross_validated_shrinkage(
    features: Float[Tensor, "samples dim"],
    labels: Integer[Tensor, "samples"],
    *,
    num_classes: int,
    weights: Float[Tensor, "samples"] | None = None,
    rule: Rule = "cosine",
) -> Shrinkage:
    """Choose the shrinkage of whitened class means by five-fold cross-validation.

    Each of 15 values from 0.01 to 1 classifies samples that were left out of the class means and
    the covariance. The best value is chosen if it classifies more of them correctly than
    ``"auto"`` by at least two standard errors of the difference. Otherwise ``"auto"`` is, which is
    as good for most features whose labels are right. Where labels are wrong, the within-class
    covariance contains the variance between classes, and much more shrinkage is better.

    The statistics of all folds come from one pass over the samples, and one eigendecomposition of
    the covariance per fold serves all values. Of more than 20,000 samples, 20,000 are left out.

    Args:
        features: Features of any floating dtype, on a device that supports float64.
        labels: Class index of each sample, from 0 to ``num_classes - 1``.
        num_classes: Number of classes.
        weights: Weight of each sample, not negative; 1 if not given.
        rule: Decision rule, see :meth:`WhitenedClassMeans.scores`.

    Returns:
        The shrinkage, or ``"auto"``.

    Raises:
        ValueError: The arguments do not match.

    >>> features = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    >>> labels = torch.arange(300) % 3
    >>> cross_validated_shrinkage(features, labels, num_classes=3)
    'auto'
    """
    folds = stratified_folds(labels.cpu(), max_held_out=MAX_HELD_OUT).to(labels.device)
    parts = []
    for fold in range(-1, NUM_FOLDS):  # -1: never left out.
        rows = folds == fold
        part = class_scatter(
            features[rows],
            labels[rows],
            num_classes=num_classes,
            weights=None if weights is None else weights[rows],
        )
        parts.append(part)
    gain = torch.zeros(len(SHRINKAGES), dtype=torch.float64, device=features.device)
    variance = torch.zeros_like(gain)
    for fold in range(NUM_FOLDS):
        rows = folds == fold
        rest = reduce(ClassScatter.merge, parts[: fold + 1] + parts[fold + 2 :])
        if not bool(rows.any()) or rest.degrees <= 0 or is_without_scatter(rest):
            continue
        hits = _correct(rest, features[rows], labels[rows].long(), rule).double()
        scale = 1 if weights is None else weights[rows].double()
        differences = (hits[1:] - hits[0]) * scale
        gain += differences.sum(1)
        variance += differences.square().sum(1)
    best = len(gain) - 1 - int(gain.flip(0).argmax())  # Of equal ones, the largest shrinkage.
    is_clear = float(gain[best]) > _MIN_ERRORS * float(variance[best].sqrt())
    return SHRINKAGES[best] if is_clear else "auto"


def stratified_folds(
    labels: Integer[Tensor, "samples"], *, max_held_out: int = MAX_HELD_OUT, seed: int = 0
) -> Int[Tensor, "samples"]:
    """Return the fold of each sample; samples of a class are spread over the folds.

    Args:
        labels: Class index of each sample, on the CPU.
        max_held_out: Largest number of samples in a fold.
        seed: Seed of the order of the samples.

    Returns:
        Indices from 0 to 4; -1 for samples beyond ``max_held_out``, a similar fraction of each
        class.
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order[labels[order].argsort(stable=True)]
    num_held_out = min(len(labels), NUM_FOLDS * max_held_out)
    held_out = order[torch.arange(num_held_out) * len(labels) // max(num_held_out, 1)]
    folds = torch.full((len(labels),), -1)
    folds[held_out] = torch.arange(num_held_out) % NUM_FOLDS
    return folds


def _correct(
    scatter: ClassScatter,
    features: Float[Tensor, "samples dim"],
    labels: Int[Tensor, "samples"],
    rule: Rule,
) -> Bool[Tensor, "shrinkages samples"]:
    """Return which samples are classified correctly with the automatic shrinkage and each value."""
    variances, basis = torch.linalg.eigh(scatter.within / scatter.degrees)
    variances = variances.clamp(min=0)
    dtype = torch.promote_types(features.dtype, torch.float32)
    means = (scatter.means.means - scatter.center) @ basis
    absent = means.isnan().any(1)
    samples = (normalize(features.to(dtype)) - scatter.center.to(dtype)) @ basis.to(dtype)
    result = []
    for shrinkage in (automatic_shrinkage(scatter), *SHRINKAGES):
        # Scores in the basis of eigenvectors, where whitening divides by standard deviations.
        weights = 1 / ((1 - shrinkage) * variances + shrinkage * variances.mean())
        whitened = means.nan_to_num() * weights
        squares = (whitened * means.nan_to_num()).sum(1)
        if rule == "cosine":
            whitened = whitened / torch.where(squares > 0, squares, 1).sqrt()[:, None]
            scores = samples @ whitened.to(dtype).T
        else:
            scores = samples @ whitened.to(dtype).T - squares.to(dtype) / 2
        scores[:, absent] = -torch.inf
        result.append(scores.argmax(1) == labels)
    return torch.stack(result)
