"""The shrinkage of whitened class means by cross-validation, from statistics that add up."""

from functools import reduce
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from protosphere.classifiers.class_means import (
    Features,
    Labels,
    Weights,
    check_samples,
    class_means,
)
from protosphere.classifiers.class_scatter import ClassScatter, empty_scatter
from protosphere.classifiers.whitening import (
    Rule,
    Shrinkage,
    automatic_shrinkage,
    check_rule,
    is_without_scatter,
)
from protosphere.geometry import normalize

ChosenShrinkage = Literal["cv"] | Shrinkage

SHRINKAGES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
NUM_FOLDS = 5
# Largest number of held-out samples per fold: their accuracy over all folds has a standard error
# below half a point.
MAX_HELD_OUT = 4000
# Largest number of held-out samples times classes per fold, which bounds the time.
_MAX_SCORES = 4_000_000
# By how many standard errors of the difference a value must be better than the automatic one.
_MIN_ERRORS = 1.0
_CHUNK_ROWS = 1 << 14


@torch.no_grad()
def cross_validated_shrinkage(
    features: Features,
    labels: Labels,
    *,
    num_classes: int,
    weights: Weights | None = None,
    rule: Rule = "cosine",
) -> Shrinkage:
    """Choose the shrinkage of whitened class means by five-fold cross-validation.

    Each of 15 values from 0.01 to 1 is evaluated on held-out samples. The value with the most
    correct predictions is chosen if it is better than ``"auto"`` by more than one standard error of
    the difference, and ``"auto"`` otherwise, which is the usual choice for clean labels. With many
    wrong labels, the within-class covariance contains the variance between classes, and much more
    shrinkage is better.

    The statistics of each fold are computed once and merged, and one eigendecomposition of the
    covariance per fold serves all values. At most 4,000 samples per fold are held out, or 4 million
    divided by the number of classes if that is less; the rest are used for training in every fold.
    The assignment to folds depends on the order of the samples.

    Args:
        features: Features of any floating dtype, on a device that supports float64, as a tensor or
            a NumPy array.
        labels: Class index of each sample, from 0 to ``num_classes - 1``.
        num_classes: Number of classes.
        weights: Weight of each sample, not negative; 1 if not given. Samples of weight 0 have no
            effect.
        rule: Decision rule, see :meth:`WhitenedClassMeans.scores`.

    Returns:
        The shrinkage, or ``"auto"``.

    Raises:
        TypeError: An argument is neither a tensor nor an array.
        ValueError: The arguments do not match.

    >>> features = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    >>> labels = torch.arange(300) % 3
    >>> cross_validated_shrinkage(features, labels, num_classes=3)
    'auto'
    """
    check_rule(rule)
    features, labels, weights = check_samples(features, labels, num_classes, weights)
    class_means(features, labels, num_classes=num_classes, weights=weights)  # Checks the values.
    max_held_out = min(MAX_HELD_OUT, max(_MAX_SCORES // num_classes, 1))
    counted = torch.ones_like(labels, dtype=torch.bool) if weights is None else weights > 0
    folds = torch.full(labels.shape, -1, device=labels.device)  # -1: never held out.
    folds[counted] = stratified_folds(labels[counted].cpu(), max_held_out=max_held_out).to(folds)
    parts = []
    for fold in range(-1, NUM_FOLDS):
        part = empty_scatter(num_classes, features.shape[1], device=features.device)
        # In chunks, so that no copy of all features is made.
        for rows in (folds == fold).nonzero().flatten().split(_CHUNK_ROWS):
            part = part.add(
                features[rows], labels[rows], None if weights is None else weights[rows]
            )
        parts.append(part)
    gain = torch.zeros(len(SHRINKAGES), dtype=torch.float64, device=features.device)
    variance = torch.zeros_like(gain)
    for fold in range(NUM_FOLDS):
        rows = (folds == fold).nonzero().flatten()
        rest = reduce(ClassScatter.merge, parts[: fold + 1] + parts[fold + 2 :])
        if not len(rows) or rest.degrees <= 0 or is_without_scatter(rest):
            continue
        hits = _correct(rest, features[rows], labels[rows], rule).double()
        differences = hits[1:] - hits[0]
        if weights is not None:
            differences *= weights[rows].double()
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
    # The device is given everywhere: torch's default device may be another one.
    generator = torch.Generator("cpu").manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator, device="cpu")
    order = order[labels[order].argsort(stable=True)]
    num_held_out = min(len(labels), NUM_FOLDS * max_held_out)
    positions = torch.arange(num_held_out, device="cpu")
    folds = torch.full((len(labels),), -1, device="cpu")
    folds[order[positions * len(labels) // max(num_held_out, 1)]] = positions % NUM_FOLDS
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
    absent = scatter.means.weights == 0
    means = ((scatter.means.means.nan_to_num() - scatter.center) @ basis).to(dtype)
    samples = (normalize(features.to(dtype)) - scatter.center.to(dtype)) @ basis.to(dtype)
    result = []
    for shrinkage in (automatic_shrinkage(scatter), *SHRINKAGES):
        # Scores in the basis of eigenvectors, where whitening divides by standard deviations.
        weights = 1 / ((1 - shrinkage) * variances + shrinkage * variances.mean())
        whitened = means * weights.to(dtype)
        squares = (whitened * means).sum(1)
        if rule == "cosine":
            scores = samples @ whitened.T / torch.where(squares > 0, squares, 1).sqrt()
        else:
            scores = samples @ whitened.T - squares / 2
        scores[:, absent] = -torch.inf
        result.append(scores.argmax(1) == labels)
    return torch.stack(result)
