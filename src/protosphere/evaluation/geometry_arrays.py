"""Arrays that describe the geometry of a trained model, for plots."""

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Integer
from numpy.typing import NDArray
from torch import Tensor

from protosphere.evaluation.inference import Outputs
from protosphere.geometry import normalize

# Points in a 3-D plot; more would only cover each other.
_MAX_POINTS = 2000


def geometry_arrays(
    means: Float[Tensor, "classes dim"], prototypes: Float[Tensor, "classes dim"], outputs: Outputs
) -> dict[str, NDArray[Any]]:
    """Return arrays for plots, in float32 and int32.

    Args:
        means: Class means of unit training features.
        prototypes: Prototypes of the head, of any norm.
        outputs: Outputs for the evaluation images.

    Returns:
        For K classes: ``class_means`` and unit ``prototypes`` (K, d); ``class_cosines`` of centered
        class means and ``prototype_cosines`` (K, K); ``confusion`` (K, K) with true classes in rows
        and ``class_accuracy`` and ``class_confidence`` (K), its accuracy and the mean confidence of
        its predictions, NaN for a class without images; and, projected to the three directions in
        which class means differ most, ``means_3d``, ``prototypes_3d`` and ``samples_3d`` with
        ``sample_labels`` for at most 2,000 images.
    """
    chosen = choose_points(outputs.labels)
    points = Points(chosen, outputs.features[chosen.to(outputs.features.device)])
    return arrays_with_points(
        means, prototypes, outputs.labels, outputs.predictions, outputs.confidences, points
    )


class Points(NamedTuple):
    """The images that are points of a 3-D plot.

    Attributes:
        chosen: Which images, in ascending order, on the CPU.
        features: Their features.
    """

    chosen: Integer[Tensor, "points"]
    features: Float[Tensor, "points dim"]


def choose_points(labels: Integer[Tensor, "samples"]) -> Integer[Tensor, "points"]:
    """Return which images are points of a 3-D plot, at most 2,000 and as many of each class.

    Args:
        labels: True class index of each image.

    Returns:
        Sorted indices on the CPU.
    """
    return _balanced_subset(labels.cpu(), _MAX_POINTS)


def arrays_with_points(
    means: Float[Tensor, "classes dim"],
    prototypes: Float[Tensor, "classes dim"],
    labels: Integer[Tensor, "samples"],
    predictions: Integer[Tensor, "samples"],
    confidences: Float[Tensor, "samples"],
    points: Points,
) -> dict[str, NDArray[Any]]:
    """Return the arrays of :func:`geometry_arrays` without the features of all images.

    Args:
        means: Class means of unit training features.
        prototypes: Prototypes of the head, of any norm.
        labels: True class index of each evaluation image.
        predictions: Predicted class index of each.
        confidences: Softmax probability of each predicted class.
        points: The images that are points of a 3-D plot.
    """
    means, prototypes = means.cpu().double(), normalize(prototypes.cpu().double())
    labels, predictions = labels.cpu(), predictions.cpu()
    num_classes = len(means)
    center = means.mean(0)
    directions = normalize(means - center)
    confusion = torch.bincount(labels * num_classes + predictions, minlength=num_classes**2)
    confusion = confusion.reshape(num_classes, num_classes)
    confidence_sums = torch.zeros(num_classes, dtype=torch.float64)
    confidence_sums.index_add_(0, labels, confidences.cpu().double())
    axes = _principal_axes(means - center)
    samples = normalize(points.features).cpu().double()
    floats = {
        "class_means": means,
        "prototypes": prototypes,
        "class_cosines": directions @ directions.T,
        "prototype_cosines": prototypes @ prototypes.T,
        "class_accuracy": confusion.diagonal() / confusion.sum(1),
        "class_confidence": confidence_sums / confusion.sum(1),
        "means_3d": (means - center) @ axes,
        "prototypes_3d": (prototypes - prototypes.mean(0)) @ axes,
        "samples_3d": (samples - center) @ axes,
    }
    integers = {"confusion": confusion, "sample_labels": labels[points.chosen]}
    return {name: value.numpy().astype(np.float32) for name, value in floats.items()} | {
        name: value.numpy().astype(np.int32) for name, value in integers.items()
    }


def _principal_axes(centered: Float[Tensor, "classes dim"]) -> Float[Tensor, "dim 3"]:
    """Return the three leading right singular vectors, the largest entry of each positive."""
    rows = torch.linalg.svd(centered, full_matrices=False)[2][:3]
    signs = rows.gather(1, rows.abs().argmax(1, keepdim=True)).sign()
    axes: Tensor = (rows * signs).T
    return torch.nn.functional.pad(axes, (0, 3 - axes.shape[1]))


def _balanced_subset(
    labels: Integer[Tensor, "samples"], max_size: int
) -> Integer[Tensor, "chosen"]:
    """Return sorted indices of the first samples of each class, as many of each as possible."""
    order = labels.argsort(stable=True)
    counts = torch.bincount(labels)
    class_starts = counts.cumsum(0) - counts
    position_in_class = torch.empty_like(order)
    position_in_class[order] = torch.arange(len(labels)) - class_starts[labels[order]]
    return torch.sort(position_in_class.argsort(stable=True)[:max_size]).values
