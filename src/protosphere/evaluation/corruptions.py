"""Errors on corrupted images: averages over severities, and mCE relative to a reference."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.classifiers.scores import cosine_logits
from protosphere.data.corruptions import CORRUPTIONS, SEVERITIES
from protosphere.evaluation.inference import evaluation_mode
from protosphere.training import Objective

# Error by corruption and severity.
ErrorTable = Mapping[tuple[str, int], float]


@dataclass(frozen=True)
class Reference:
    """A classifier whose errors those of others are divided by.

    Attributes:
        name: Its name.
        errors: Error under each corruption as a fraction, averaged over the five severities.
        clean_error: Error on clean images, if it is known.
    """

    name: str
    errors: Mapping[str, float]
    clean_error: float | None = None


# Published with ImageNet-C.
ALEXNET = Reference(
    "AlexNet",
    dict(
        zip(
            CORRUPTIONS,
            (
                *(0.886428, 0.894468, 0.922640),  # noise
                *(0.819880, 0.826268, 0.785948, 0.798360),  # blur
                *(0.866816, 0.826572, 0.819324, 0.564592),  # weather
                *(0.853204, 0.646056, 0.717840, 0.606500),  # digital
            ),
            strict=True,
        )
    ),
    clean_error=0.435,
)


class Errors(NamedTuple):
    """The result of :func:`measure_errors`.

    Attributes:
        head: Fraction of images that the head classifies wrongly.
        class_means: The same for class means on the sphere; None if there are none.
        num_images: Number of images.
    """

    head: float
    class_means: float | None
    num_images: int


@torch.no_grad()
def measure_errors(
    objective: Objective,
    batches: Iterable[
        tuple[Float[Tensor, "images channels height width"], Integer[Tensor, "images"]]
    ],
    *,
    means: Float[Tensor, "classes dim"] | None = None,
) -> Errors:
    """Classify images by the head, and by the cosine with class means in the same pass.

    Args:
        objective: The objective, on the device of the batches. Its modes are restored at the end.
        batches: Normalized images and class indices.
        means: Class means of training features.

    Raises:
        ValueError: There are no images.
    """
    num_images, wrong = 0, [0, 0]
    with evaluation_mode(objective):
        for images, labels in batches:
            features = objective.encoder(images).float()
            logits = [objective.head(features)]
            if means is not None:
                logits.append(cosine_logits(features, means.to(features), temperature=1.0))
            for index, values in enumerate(logits):
                wrong[index] += int((values.argmax(1) != labels).sum())
            num_images += len(labels)
    if not num_images:
        raise ValueError("batches must hold at least one image, got none")
    head, nearest = (number / num_images for number in wrong)
    return Errors(head, None if means is None else nearest, num_images)


def average_errors(
    errors: ErrorTable, *, severities: Sequence[int] = SEVERITIES
) -> dict[str, float]:
    """Average errors over severities.

    Args:
        errors: Error by corruption and severity.
        severities: Severities to average over.

    Returns:
        One number per corruption that has all of these severities.

    >>> average_errors({("fog", 1): 0.2, ("fog", 2): 0.4, ("snow", 1): 0.3}, severities=(1, 2))
    {'fog': 0.30000000000000004}
    """
    names = dict.fromkeys(name for name, _ in errors)
    return {
        name: fmean(errors[name, severity] for severity in severities)
        for name in names
        if all((name, severity) in errors for severity in severities)
    }


def corruption_errors(averages: Mapping[str, float], reference: Reference) -> dict[str, float]:
    """Divide errors by those of a reference: CE_c = Σ_s E_sc / Σ_s E_sc(reference).

    Args:
        averages: Error of each corruption, averaged over all severities.
        reference: The reference.

    Returns:
        One number for each of the 15 corruptions that both have and the reference has errors
        under. The four extra corruptions do not count.
    """
    return {
        name: averages[name] / reference.errors[name]
        for name in CORRUPTIONS
        if name in averages and reference.errors.get(name)
    }


def mean_corruption_error(averages: Mapping[str, float], reference: Reference) -> float | None:
    """Return the mean corruption error: mCE, the mean of CE_c over the 15 corruptions.

    Args:
        averages: Error of each corruption, averaged over all severities.
        reference: The reference.

    Returns:
        A fraction, 1 for the reference itself; None if a corruption is missing.

    >>> mean_corruption_error(ALEXNET.errors, ALEXNET)
    1.0

    Reference: Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common
    Corruptions and Perturbations, ICLR 2019.
    """
    ratios = corruption_errors(averages, reference)
    return fmean(ratios.values()) if len(ratios) == len(CORRUPTIONS) else None


def relative_corruption_error(
    averages: Mapping[str, float], clean_error: float | None, reference: Reference
) -> float | None:
    """Return the relative mCE, of the errors that corruptions add to the clean error.

    The mean over the 15 corruptions of Σ_s (E_sc - E_clean) / Σ_s (E_sc - E_clean)(reference).

    Args:
        averages: Error of each corruption, averaged over all severities.
        clean_error: Error on clean images.
        reference: The reference.

    Returns:
        A fraction, 1 for the reference itself; None if a number is missing, or if a corruption
        adds nothing to the clean error of the reference.
    """
    base = reference.clean_error
    if clean_error is None or base is None or not set(CORRUPTIONS) <= set(averages):
        return None
    added = {name: reference.errors.get(name, base) - base for name in CORRUPTIONS}
    if min(added.values()) <= 0:
        return None
    return fmean((averages[name] - clean_error) / added[name] for name in CORRUPTIONS)


def errors_by_severity(errors: ErrorTable) -> dict[int, float]:
    """Average errors over corruptions, the four extra ones left out.

    Args:
        errors: Error by corruption and severity.

    Returns:
        One number per severity that all these corruptions have.
    """
    names = {name for name, _ in errors if name in CORRUPTIONS}
    return {
        severity: fmean(errors[name, severity] for name in names)
        for severity in sorted({severity for _, severity in errors})
        if names and all((name, severity) in errors for name in names)
    }


def find_unordered(errors: ErrorTable) -> dict[str, list[tuple[int, int]]]:
    """Find corruptions whose error is smaller at a higher severity.

    Args:
        errors: Error by corruption and severity.

    Returns:
        Pairs of neighboring severities whose errors decrease, by corruption.

    >>> find_unordered({("fog", 1): 0.2, ("fog", 2): 0.1, ("fog", 3): 0.3})
    {'fog': [(1, 2)]}
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for name in dict.fromkeys(name for name, _ in errors):
        levels = sorted(severity for other, severity in errors if other == name)
        for lower, higher in pairwise(levels):
            if errors[name, higher] < errors[name, lower]:
                found.setdefault(name, []).append((lower, higher))
    return found
