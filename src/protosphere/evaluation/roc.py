"""How well a score separates two sets of samples: AUROC, FPR at 95% TPR, average precision."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class DetectionMetrics(NamedTuple):
    """How well a score separates known samples, the positives, from unknown ones.

    Attributes:
        auroc: Probability that a known sample has a higher score than an unknown one, ties counted
            half; 0.5 for a score that says nothing.
        fpr95: Fraction of the unknown samples that are accepted by the threshold that accepts
            95% of the known ones.
        aupr: Average precision; it depends on how many samples of each kind there are.
    """

    auroc: float
    fpr95: float
    aupr: float


def detection_metrics(
    known: Float[Tensor, "known"], unknown: Float[Tensor, "unknown"]
) -> DetectionMetrics:
    """Compare the scores of known samples with those of unknown ones.

    Args:
        known: Scores of samples of known classes, the positives; higher means known.
        unknown: Scores of all other samples.

    Raises:
        ValueError: One of the two has no samples, or a score is not finite.

    >>> detection_metrics(torch.tensor([3.0, 2.0]), torch.tensor([2.0, 1.0]))
    DetectionMetrics(auroc=0.875, fpr95=0.5, aupr=0.8333333333333333)
    """
    return DetectionMetrics(
        auroc(known, unknown),
        false_positive_rate(known, unknown, true_positive_rate=0.95),
        average_precision(known, unknown),
    )


def auroc(known: Float[Tensor, "known"], unknown: Float[Tensor, "unknown"]) -> float:
    """Compute the area under the ROC curve exactly, in O(n log n).

    AUROC = (#{(i, j): s_i > s_j} + ½ #{(i, j): s_i = s_j}) / (n m) over known i and unknown j,
    counted in whole numbers.

    Args:
        known: Scores of the positives.
        unknown: Scores of the negatives.

    Raises:
        ValueError: One of the two has no samples, or a score is not finite.

    >>> auroc(torch.tensor([3.0, 2.0]), torch.tensor([2.0, 1.0]))
    0.875
    """
    positives, negatives = _count_by_score(known, unknown)
    below = negatives.cumsum(0) - negatives
    twice = (positives * (2 * below + negatives)).sum()
    return int(twice) / (2 * len(known) * len(unknown))


def false_positive_rate(
    known: Float[Tensor, "known"],
    unknown: Float[Tensor, "unknown"],
    *,
    true_positive_rate: float = 0.95,
) -> float:
    """Compute the fraction of unknown samples above the threshold that known samples set.

    The threshold is the largest score t with #{i: s_i ≥ t} ≥ TPR · n over the known samples i, and
    the result is #{j: s_j ≥ t}/m over the unknown samples j.

    Args:
        known: Scores of the positives.
        unknown: Scores of the negatives.
        true_positive_rate: Fraction of the positives that must be accepted.

    Raises:
        ValueError: One of the two has no samples, a score is not finite, or the fraction is not
            between 0 and 1.

    >>> false_positive_rate(torch.arange(20.0), torch.arange(-19.0, 1.0))
    0.0
    """
    if not 0 < true_positive_rate <= 1:
        raise ValueError(
            f"true_positive_rate must be greater than 0 and at most 1, got {true_positive_rate}"
        )
    _check(known, unknown)
    # 0.95 · n may be rounded to just above a whole number.
    needed = math.ceil(true_positive_rate * len(known) - 1e-9)
    threshold = known.detach().cpu().double().sort(descending=True).values[max(needed, 1) - 1]
    return int((unknown.detach().cpu().double() >= threshold).sum()) / len(unknown)


def average_precision(known: Float[Tensor, "known"], unknown: Float[Tensor, "unknown"]) -> float:
    """Compute the average precision Σ_t (R_t − R_{t−1}) P_t over all distinct thresholds t.

    Args:
        known: Scores of the positives.
        unknown: Scores of the negatives.

    Raises:
        ValueError: One of the two has no samples, or a score is not finite.

    >>> average_precision(torch.tensor([3.0, 2.0]), torch.tensor([2.0, 1.0]))
    0.8333333333333333
    """
    positives, negatives = (counts.flip(0) for counts in _count_by_score(known, unknown))
    precisions = positives.cumsum(0).double() / (positives + negatives).cumsum(0)
    return float((positives * precisions).sum() / len(known))


def _count_by_score(known: Tensor, unknown: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many samples of each kind have each distinct score, in increasing order."""
    _check(known, unknown)
    # To the CPU first: not every device has float64.
    scores = torch.cat([known.detach().cpu().double(), unknown.detach().cpu().double()])
    values, groups = scores.unique(return_inverse=True)
    return (
        torch.bincount(groups[: len(known)], minlength=len(values)),
        torch.bincount(groups[len(known) :], minlength=len(values)),
    )


def _check(known: Tensor, unknown: Tensor) -> None:
    for name, scores in (("known", known), ("unknown", unknown)):
        if scores.ndim != 1 or not len(scores):
            raise ValueError(
                f"scores of {name} samples must have shape (samples,) and at least one sample, "
                f"got {tuple(scores.shape)}"
            )
        if not bool(torch.isfinite(scores).all()):
            raise ValueError(f"scores of {name} samples must be finite, got NaN or infinity")
