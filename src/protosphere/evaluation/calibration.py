"""Calibration: how far confidences are from the fraction of correct predictions.

By hand rather than with ``torchmetrics.functional``: that has no bins of equal mass, needs the
probabilities of all classes at once, and puts predictions of confidence 1, which a softmax in
float32 often has, into a bin of their own.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

_NUM_BINS = 15
_CHUNK_ROWS = 8192


class SampleScores(NamedTuple):
    """What is kept of the logits of a batch, one number of each kind per sample.

    Attributes:
        predictions: Index of the class with the largest logit.
        confidences: Softmax probability of that class.
        losses: Cross-entropy of the softmax, −log p of the true class.
    """

    predictions: Integer[Tensor, "samples"]
    confidences: Float[Tensor, "samples"]
    losses: Float[Tensor, "samples"]


def score_samples(
    logits: Float[Tensor, "samples classes"], labels: Integer[Tensor, "samples"]
) -> SampleScores:
    """Reduce logits to prediction, confidence and cross-entropy of each sample.

    Args:
        logits: One logit per sample and class.
        labels: True class index of each sample.

    >>> scores = score_samples(torch.tensor([[0.0, 2.0], [0.0, 0.0]]), torch.tensor([1, 0]))
    >>> scores.predictions.tolist(), [round(value, 4) for value in scores.confidences.tolist()]
    ([1, 0], [0.8808, 0.5])
    >>> [round(value, 4) for value in scores.losses.tolist()]
    [0.1269, 0.6931]
    """
    largest, predictions = logits.max(1)
    # Relative to the largest logit, whose size would otherwise cost digits.
    shifted = logits - largest[:, None]
    log_normalizers = shifted.logsumexp(1)
    own = shifted.gather(1, labels.long()[:, None])[:, 0]
    return SampleScores(predictions, (-log_normalizers).exp(), log_normalizers - own)


def expected_calibration_error(
    confidences: Float[Tensor, "samples"],
    correct: Bool[Tensor, "samples"],
    *,
    num_bins: int = _NUM_BINS,
) -> float:
    """Compute the expected calibration error (ECE) with bins of equal width.

    ECE = Σ_b (n_b/n) |accuracy_b − confidence_b|, with B bins ((b−1)/B, b/B] of the confidence.

    Args:
        confidences: Probability of the predicted class of each sample.
        correct: Whether each prediction is correct.
        num_bins: Number of bins.

    Returns:
        The error, between 0 and 1.

    Raises:
        ValueError: There are no samples or no bins, or the shapes differ.

    >>> confidences = torch.tensor([0.9, 0.9, 0.6, 0.6])
    >>> round(expected_calibration_error(confidences, torch.tensor([True, True, True, False])), 4)
    0.1

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017.
    """
    _check(confidences, correct, num_bins)
    confidences, gaps = _gaps(confidences, correct)
    return _weighted_error(gaps, _equal_width_bins(confidences, num_bins), num_bins)


def adaptive_calibration_error(
    confidences: Float[Tensor, "samples"],
    correct: Bool[Tensor, "samples"],
    *,
    num_bins: int = _NUM_BINS,
) -> float:
    """Compute the calibration error with bins of equal mass.

    Σ_b (n_b/n) |accuracy_b − confidence_b|, with the samples in order of confidence divided into B
    bins whose sizes differ by at most one. Samples of equal confidence count as equally correct,
    with their mean, so that the order of the samples does not matter.

    Args:
        confidences: Probability of the predicted class of each sample.
        correct: Whether each prediction is correct.
        num_bins: Number of bins.

    Returns:
        The error, between 0 and 1.

    Raises:
        ValueError: There are no samples or no bins, or the shapes differ.

    >>> confidences = torch.tensor([0.9, 0.9, 0.6, 0.6])
    >>> correct = torch.tensor([True, True, True, False])
    >>> round(adaptive_calibration_error(confidences, correct, num_bins=2), 4)
    0.1

    Reference:
        Nguyen and O'Connor, Posterior Calibration and Exploratory Analysis for Natural Language
        Processing Models, EMNLP 2015.
    """
    _check(confidences, correct, num_bins)
    confidences, gaps = _gaps(confidences, correct)
    _, groups, counts = confidences.unique(return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), dtype=gaps.dtype).index_add_(0, groups, gaps)
    # The groups are in order of confidence; each sample has the mean gap of its group.
    ordered = (sums / counts).repeat_interleave(counts)
    sizes = [len(chunk) for chunk in torch.arange(len(gaps)).tensor_split(num_bins)]
    bins = torch.arange(num_bins).repeat_interleave(torch.tensor(sizes))
    return _weighted_error(ordered, bins, num_bins)


class ReliabilityBin(NamedTuple):
    """One bin of a reliability diagram.

    Attributes:
        lower: Lower end of the bin; a confidence must be greater.
        upper: Upper end of the bin, which belongs to it.
        num_samples: Number of samples whose confidence is in the bin.
        confidence: Mean confidence of these samples; None without samples.
        accuracy: Fraction of them that is classified correctly; None without samples.
    """

    lower: float
    upper: float
    num_samples: int
    confidence: float | None
    accuracy: float | None


def reliability_table(
    confidences: Float[Tensor, "samples"],
    correct: Bool[Tensor, "samples"],
    *,
    num_bins: int = _NUM_BINS,
) -> tuple[ReliabilityBin, ...]:
    """Compute mean confidence and accuracy in bins of equal width, for a reliability diagram.

    The bins are those of :func:`expected_calibration_error`, which is the mean distance between the
    two columns, weighted by the number of samples.

    Args:
        confidences: Probability of the predicted class of each sample.
        correct: Whether each prediction is correct.
        num_bins: Number of bins.

    Returns:
        The bins in increasing order of the confidence, also those without samples.

    Raises:
        ValueError: There are no samples or no bins, or the shapes differ.

    >>> confidences = torch.tensor([0.9, 0.9, 0.6, 0.6])
    >>> correct = torch.tensor([True, True, True, False])
    >>> [one.accuracy for one in reliability_table(confidences, correct, num_bins=4)]
    [None, None, 0.5, 1.0]

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017.
    """
    _check(confidences, correct, num_bins)
    confidences, gaps = _gaps(confidences, correct)
    bins = _equal_width_bins(confidences, num_bins)
    counts = torch.bincount(bins, minlength=num_bins).tolist()
    zeros = torch.zeros(num_bins, dtype=torch.float64)
    totals = zeros.index_add(0, bins, confidences).tolist()
    num_correct = zeros.index_add(0, bins, (gaps + confidences).round()).tolist()
    return tuple(
        ReliabilityBin(
            index / num_bins,
            (index + 1) / num_bins,
            count,
            totals[index] / count if count else None,
            num_correct[index] / count if count else None,
        )
        for index, count in enumerate(counts)
    )


class CalibrationMetrics(NamedTuple):
    """How good the probabilities of a classifier are.

    Attributes:
        accuracy: Fraction of correct predictions; a temperature does not change it.
        nll: Mean negative log-likelihood −log p of the true class.
        brier: Mean of Σ_c (p_c − [c = y])², between 0 and 2.
        ece: Expected calibration error with bins of equal width.
        adaptive_ece: Calibration error with bins of equal mass.
    """

    accuracy: float
    nll: float
    brier: float
    ece: float
    adaptive_ece: float


class Calibration(NamedTuple):
    """The result of :func:`measure_calibration`.

    Attributes:
        metrics: Calibration errors and proper scores.
        reliability: Mean confidence and accuracy in bins of equal width.
    """

    metrics: CalibrationMetrics
    reliability: tuple[ReliabilityBin, ...]


def measure_calibration(
    logits: Float[Tensor, "samples classes"],
    labels: Integer[Tensor, "samples"],
    *,
    temperature: float = 1.0,
    num_bins: int = _NUM_BINS,
) -> Calibration:
    """Measure the calibration of the softmax of logits divided by a temperature.

    Args:
        logits: One logit per sample and class, on a device that supports float64.
        labels: True class index of each sample.
        temperature: Number that the logits are divided by.
        num_bins: Number of bins of the calibration errors and of the reliability table.

    Raises:
        ValueError: There are no samples or no bins, or the temperature is not positive.

    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> measured = measure_calibration(logits, torch.tensor([0, 0]))
    >>> round(measured.metrics.brier, 4), measured.metrics.accuracy
    (0.79, 0.5)
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    if not len(labels):
        raise ValueError("there must be at least one sample, got none")
    columns: list[tuple[Tensor, ...]] = []
    # In chunks: float64 doubles the memory of the logits.
    for rows, targets in zip(logits.split(_CHUNK_ROWS), labels.split(_CHUNK_ROWS), strict=True):
        scaled = rows.double() / temperature
        scores = score_samples(scaled, targets)
        errors = scaled.softmax(1)
        errors[torch.arange(len(targets), device=errors.device), targets.long()] -= 1
        correct = scores.predictions == targets
        brier = errors.square().sum(1)
        columns.append((scores.confidences, correct, scores.losses, brier))
    confidences, correct, losses, briers = (
        torch.cat(column).cpu() for column in zip(*columns, strict=True)
    )
    metrics = CalibrationMetrics(
        accuracy=float(correct.double().mean()),
        nll=float(losses.mean()),
        brier=float(briers.mean()),
        ece=expected_calibration_error(confidences, correct, num_bins=num_bins),
        adaptive_ece=adaptive_calibration_error(confidences, correct, num_bins=num_bins),
    )
    return Calibration(metrics, reliability_table(confidences, correct, num_bins=num_bins))


def _check(confidences: Tensor, correct: Tensor, num_bins: int) -> None:
    if num_bins < 1:
        raise ValueError(f"num_bins must be at least 1, got {num_bins}")
    if confidences.ndim != 1 or not len(confidences) or correct.shape != confidences.shape:
        raise ValueError(
            "confidences and correct must have one value per sample and at least one sample, got "
            f"shapes {tuple(confidences.shape)} and {tuple(correct.shape)}"
        )


def _gaps(confidences: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Return confidences and their differences from 0 or 1, in float64 on the CPU."""
    # To the CPU first: not every device has float64.
    confidences = confidences.detach().cpu().double()
    return confidences, correct.cpu().double() - confidences


def _equal_width_bins(confidences: Tensor, num_bins: int) -> Tensor:
    """Return the index of the bin ((b−1)/B, b/B] of each confidence."""
    return (confidences * num_bins).ceil().long().clamp(1, num_bins) - 1


def _weighted_error(gaps: Tensor, bins: Tensor, num_bins: int) -> float:
    sums = torch.zeros(num_bins, dtype=gaps.dtype).index_add_(0, bins, gaps)
    return float(sums.abs().sum() / len(gaps))
