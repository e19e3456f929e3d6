"""Prediction for new images: classes, probabilities and rejection scores."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Integer, UInt8
from torch import Tensor

from protosphere.classifiers import rejection_score
from protosphere.data.augmentation import EvaluationTransform
from protosphere.evaluation.inference import evaluation_mode
from protosphere.training import Objective


class Predictions(NamedTuple):
    """Predictions for images, on the CPU, in the order of the images.

    Attributes:
        classes: Index of the predicted class of each image.
        confidences: Softmax probability of the predicted class.
        rejection_scores: Minus the largest cosine with a prototype; larger for images that are far
            from every class.
        top_classes: Indices of the k most probable classes, the most probable one first.
        top_probabilities: Their softmax probabilities.
    """

    classes: Integer[Tensor, "images"]
    confidences: Float[Tensor, "images"]
    rejection_scores: Float[Tensor, "images"]
    top_classes: Integer[Tensor, "images k"]
    top_probabilities: Float[Tensor, "images k"]


def predict_images(
    objective: Objective,
    transform: EvaluationTransform,
    images: Sequence[UInt8[Tensor, "_ _ _"]] | UInt8[Tensor, "images channels height width"],
    *,
    top_k: int = 1,
    batch_size: int = 256,
) -> Predictions:
    """Classify images.

    Args:
        objective: A trained objective. Its modes are restored at the end.
        transform: The transform of the model's evaluation images.
        images: Images of shape (channels, height, width) with pixels from 0 to 255, of equal or
            different sizes; at least one.
        top_k: Number k of the most probable classes to return for each image.
        batch_size: Number of images in a batch.

    Raises:
        ValueError: There are no images, they have another type or number of axes, or there are
            fewer than k classes.
    """
    num_classes = len(objective.head.prototypes)
    if not 1 <= top_k <= num_classes:
        raise ValueError(
            f"top_k must be between 1 and {num_classes}, the number of classes, got {top_k}"
        )
    if not len(images):
        raise ValueError("images must contain at least one image, got none")
    for image in images:
        _check_image(image, channels=len(transform.mean))
    with evaluation_mode(objective), torch.no_grad():
        batches = [
            _predict_batch(objective, transform, images[start : start + batch_size], top_k)
            for start in range(0, len(images), batch_size)
        ]
    return Predictions(*(torch.cat(column).cpu() for column in zip(*batches, strict=True)))


def _check_image(image: object, *, channels: int) -> None:
    expected = "images must be uint8 tensors of shape (channels, height, width)"
    if not isinstance(image, Tensor):
        raise ValueError(
            f"{expected}, got {type(image).__name__}; torchvision.io.read_image reads a file"
        )
    if image.dtype != torch.uint8:
        raise ValueError(f"{expected}, got {image.dtype}")
    if image.ndim != 3 or image.shape[0] != channels:
        noun = "channel" if channels == 1 else "channels"
        raise ValueError(f"{expected} with {channels} {noun}, got shape {tuple(image.shape)}")


def _predict_batch(
    objective: Objective,
    transform: EvaluationTransform,
    images: Sequence[Tensor] | Tensor,
    top_k: int,
) -> Predictions:
    head = objective.head
    batch = transform.prepare(list(images), head.prototypes.device)
    features = objective.encoder(batch).float()
    logits = head(features)
    # By logits: probabilities that differ may be rounded to the same number.
    classes = logits.topk(top_k, dim=1).indices
    probabilities = logits.softmax(1).gather(1, classes)
    scores = rejection_score(features, head.prototypes)
    return Predictions(classes[:, 0], probabilities[:, 0], scores, classes, probabilities)
