"""Average precision of multi-label scores and mean per-class accuracy."""

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

_RECALL_LEVELS = 11


def eleven_point_average_precision(
    scores: Float[Tensor, "samples labels"],
    targets: Bool[Tensor, "samples labels"] | Integer[Tensor, "samples labels"],
    *,
    ignore: Bool[Tensor, "samples labels"] | None = None,
) -> Float[Tensor, "labels"]:
    """Compute the 11-point interpolated average precision of each label (VOC2007).

    AP = 1/11 Σ_r max {precision at recall ≥ r}, r = 0, 0.1, …, 1, over the samples in descending
    order of score. Samples of equal score enter together, so their order does not matter; VOC's own
    program takes them in the order of the file.

    Args:
        scores: Score of each sample for each label; only their order matters.
        targets: Whether each sample has each label.
        ignore: Samples that count neither as positive nor as negative for a label, such as VOC's
            difficult ones; none by default.

    Returns:
        The average precision of each label, in float64; NaN for a label without positive samples.

    Raises:
        ValueError: The shapes differ, there are no samples, or a score is NaN.

    >>> scores = torch.tensor([[0.9], [0.8], [0.7], [0.6]])
    >>> ap = eleven_point_average_precision(scores, torch.tensor([[1], [0], [1], [0]]))
    >>> round(float(ap), 4)  # precision 1 up to recall 0.5, then 2/3: (6 + 5 · 2/3) / 11
    0.8485

    Reference:
        Everingham et al., The PASCAL Visual Object Classes (VOC) Challenge, IJCV 2010.
    """
    _check(scores, targets, ignore)
    counted = torch.ones_like(targets, dtype=torch.bool) if ignore is None else ~ignore
    positive = (targets.bool() & counted).to(scores.device)
    counted = counted.to(scores.device)
    ordered, order = scores.detach().sort(0, descending=True)
    hits = positive.gather(0, order).cumsum(0)
    retrieved = counted.gather(0, order).cumsum(0)
    # A threshold is between different scores: within equal ones the last position counts.
    boundary = torch.ones_like(ordered, dtype=torch.bool)
    boundary[:-1] = ordered[:-1] != ordered[1:]
    precision = torch.where(boundary, hits.double() / retrieved.clamp_min(1), 0)
    # Precision at this recall or a higher one, found by integers: recall ≥ l/10 is 10 hits ≥ l n.
    best = precision.flip(0).cummax(0).values.flip(0)
    num_positives = hits[-1]
    levels = torch.arange(_RECALL_LEVELS, device=scores.device)
    needed = (levels[:, None] * num_positives + _RECALL_LEVELS - 2) // (_RECALL_LEVELS - 1)
    first = torch.searchsorted(hits.T.contiguous(), needed.T.contiguous())
    average = best.T.gather(1, first.clamp_max(len(scores) - 1)).mean(1)
    return torch.where(num_positives > 0, average, torch.nan)


def mean_average_precision(
    scores: Float[Tensor, "samples labels"],
    targets: Bool[Tensor, "samples labels"] | Integer[Tensor, "samples labels"],
    *,
    ignore: Bool[Tensor, "samples labels"] | None = None,
) -> float:
    """Compute the mean 11-point average precision over the labels that have positive samples.

    Args:
        scores: Score of each sample for each label.
        targets: Whether each sample has each label.
        ignore: Samples that count neither as positive nor as negative for a label.

    Raises:
        ValueError: The shapes differ, a score is NaN, or no label has positive samples.

    >>> scores, targets = torch.tensor([[0.9, 0.1], [0.2, 0.3]]), torch.tensor([[1, 0], [0, 1]])
    >>> mean_average_precision(scores, targets)
    1.0
    """
    average = eleven_point_average_precision(scores, targets, ignore=ignore)
    if average.isnan().all():
        raise ValueError("targets must have a positive sample of at least one label, got none")
    return float(average.nanmean())


def mean_per_class_accuracy(
    predictions: Integer[Tensor, "samples"], labels: Integer[Tensor, "samples"]
) -> float:
    """Compute the accuracy of each class, averaged over the classes that have samples.

    Args:
        predictions: Predicted class index of each sample.
        labels: True class index of each sample.

    Raises:
        ValueError: There are no samples or the shapes differ.

    >>> mean_per_class_accuracy(torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 0, 1]))
    0.5
    """
    if labels.ndim != 1 or not len(labels) or predictions.shape != labels.shape:
        raise ValueError(
            "predictions and labels must hold one class index per sample and at least one sample, "
            f"got shapes {tuple(predictions.shape)} and {tuple(labels.shape)}"
        )
    labels = labels.to(predictions.device).long()
    counts = torch.bincount(labels)
    correct = torch.bincount(labels, (predictions == labels).double(), minlength=len(counts))
    present = counts > 0
    return float((correct[present] / counts[present]).mean())


def _check(scores: Tensor, targets: Tensor, ignore: Tensor | None) -> None:
    shapes = {tuple(array.shape) for array in (scores, targets, ignore) if array is not None}
    if scores.ndim != 2 or not len(scores) or len(shapes) > 1:
        raise ValueError(
            "scores and targets must hold one row per sample and one column per label, got shapes "
            f"{tuple(scores.shape)} and {tuple(targets.shape)}"
            + ("" if ignore is None else f", and {tuple(ignore.shape)} of ignore")
        )
    if scores.isnan().any():
        raise ValueError("scores must be numbers, got NaN")
