"""Few-shot classification: class means of a few images per class, over random draws."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal

import torch
from jaxtyping import Integer
from torch import Tensor

from protosphere.data.progress import Progress, no_progress
from protosphere.data.sampling import derive_seed
from protosphere.data.splits import DataError
from protosphere.evaluation.transfer import (
    TransferFeatures,
    TransferScore,
    fit_class_scores,
    score_transfer,
)

FewShotClassifier = Literal["class_means", "whitened_class_means"]


@dataclass(frozen=True)
class FewShotResult:
    """Accuracy with a few images per class.

    Attributes:
        classifier: Name of the classifier.
        shots: Number of images per class.
        num_draws: Number of random draws of them.
        score: Mean of the scores over the draws.
        std: Standard deviation of the metric over the draws; None for a single draw.
        seconds: Time of all draws, their evaluation included.
    """

    classifier: FewShotClassifier
    shots: int
    num_draws: int
    score: TransferScore
    std: float | None
    seconds: float


def few_shot_classifiers(shots: int) -> tuple[FewShotClassifier, ...]:
    """Return the classifiers for a number of images per class.

    One image per class says nothing about the covariance within classes, so that whitening needs
    at least two.

    Args:
        shots: Number of images per class.

    >>> few_shot_classifiers(1), few_shot_classifiers(5)
    (('class_means',), ('class_means', 'whitened_class_means'))
    """
    return ("class_means",) if shots == 1 else ("class_means", "whitened_class_means")


def evaluate_few_shot(
    features: TransferFeatures,
    classifier: FewShotClassifier,
    *,
    shots: int,
    num_draws: int = 10,
    seed: int = 0,
    progress: Progress = no_progress,
) -> FewShotResult:
    """Classify all test images by class means of a few training images per class.

    Args:
        features: Features and targets with one label per image, all on one device.
        classifier: ``"class_means"``, or ``"whitened_class_means"`` with the covariance of the
            same few images.
        shots: Number of images per class.
        num_draws: Number of random draws.
        seed: Seed of the draws.
        progress: Called with the fraction of draws that is done.

    Raises:
        DataError: A class has fewer images.
        ValueError: An image has several labels, or a number is not positive.
    """
    if features.metric == "map":
        raise ValueError("few-shot classification needs one label per image; these have several")
    if num_draws < 1:
        raise ValueError(f"num_draws must be at least 1, got {num_draws}")
    labels = features.train_targets.cpu()
    check_shots(labels, [shots])
    start = time.perf_counter()
    scores: list[TransferScore] = []
    for draw in range(num_draws):
        index = draw_shots(labels, shots=shots, seed=seed, draw=draw).to(features.train.device)
        drawn = replace(
            features,
            train=features.train[index],
            train_targets=features.train_targets[index],
            is_validation=features.is_validation[index],
        )
        classify = fit_class_scores(
            classifier, drawn.train, drawn.train_targets, num_classes=features.num_classes
        )
        scores.append(score_transfer(classify, drawn))
        progress((draw + 1) / num_draws)
    values, top1, mean_per_class = zip(*scores, strict=True)
    return FewShotResult(
        classifier,
        shots,
        num_draws,
        TransferScore(fmean(values), fmean(top1), fmean(mean_per_class)),
        stdev(values) if num_draws > 1 else None,
        time.perf_counter() - start,
    )


def draw_shots(
    labels: Integer[Tensor, "samples"], *, shots: int, seed: int, draw: int
) -> Integer[Tensor, "drawn"]:
    """Draw the same number of samples of each class.

    A draw with fewer samples per class is a part of the one with more.

    Args:
        labels: Class index of each sample, on the CPU.
        shots: Number of samples per class.
        seed: Seed of all draws.
        draw: Index of the draw.

    Returns:
        Indices of the samples, class by class.

    >>> labels = torch.tensor([0, 1, 0, 1, 0])
    >>> labels[draw_shots(labels, shots=2, seed=0, draw=0)]
    tensor([0, 0, 1, 1])
    """
    generator = torch.Generator().manual_seed(derive_seed("few-shot", seed, draw))
    chosen = []
    for label in labels.unique().tolist():
        members = torch.nonzero(labels == label).flatten()
        order = torch.randperm(len(members), generator=generator)
        chosen.append(members[order[:shots]])
    return torch.cat(chosen)


def check_shots(labels: Integer[Tensor, "samples"], shots: Sequence[int]) -> None:
    """Check that every class has enough samples.

    Args:
        labels: Class index of each sample.
        shots: Numbers of samples per class.

    Raises:
        ValueError: A number is less than 1.
        DataError: A class has fewer samples.
    """
    counts = torch.bincount(labels.cpu())
    smallest = int(counts[counts > 0].min())
    for number in shots:
        if number < 1:
            raise ValueError(f"shots must be at least 1, got {number}")
        if number > smallest:
            raise DataError(
                f"shots must be at most {smallest}, the number of training images of the smallest "
                f"class; got {number}"
            )
