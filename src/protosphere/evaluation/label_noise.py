"""Label noise in evaluation: what a classifier says about images with wrong training labels."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Integer
from torch import Tensor


class NoiseResult(NamedTuple):
    """Training accuracies under label noise, as fractions.

    Attributes:
        given_accuracy: Predictions that equal the label that was trained on, of all images.
        true_accuracy: Predictions that equal the true label, of all images.
        memorized: Predictions that equal the wrong label, of the images with a wrong label.
        corrected: Predictions that equal the true label, of the images with a wrong label.
        num_wrong: Number of images with a wrong label.
    """

    given_accuracy: float
    true_accuracy: float
    memorized: float
    corrected: float
    num_wrong: int


def measure_noise(
    predictions: Integer[Tensor, "samples"],
    given_labels: Integer[Tensor, "samples"],
    true_labels: Integer[Tensor, "samples"],
) -> NoiseResult:
    """Compare predictions for training images with the labels trained on and the true ones.

    Args:
        predictions: Predicted class index of each training image.
        given_labels: Label that each image was trained with.
        true_labels: True label of each image.

    Raises:
        ValueError: The shapes differ, or all labels are correct.

    >>> predictions = torch.tensor([0, 0, 1, 2])
    >>> result = measure_noise(predictions, torch.tensor([0, 1, 1, 2]), torch.tensor([0, 0, 0, 0]))
    >>> result.given_accuracy, result.true_accuracy, round(result.memorized, 3), result.num_wrong
    (0.75, 0.5, 0.667, 3)
    """
    if not predictions.shape == given_labels.shape == true_labels.shape:
        raise ValueError(
            "predictions, given_labels and true_labels must have one class index per image, got "
            f"shapes {tuple(predictions.shape)}, {tuple(given_labels.shape)} and "
            f"{tuple(true_labels.shape)}"
        )
    predictions, given, true = (x.cpu() for x in (predictions, given_labels, true_labels))
    wrong = given != true
    if not bool(wrong.any()):
        raise ValueError("given_labels must have wrong labels; all of them are correct")
    return NoiseResult(
        _fraction(predictions == given),
        _fraction(predictions == true),
        _fraction((predictions == given)[wrong]),
        _fraction((predictions == true)[wrong]),
        int(wrong.sum()),
    )


def _fraction(values: Bool[Tensor, "samples"]) -> float:
    return float(values.to(torch.float64).mean())
