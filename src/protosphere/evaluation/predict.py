"""Prediction for new images: classes, probabilities and rejection scores."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.classifiers import rejection_score
from protosphere.data.augmentation import EvaluationTransform
from protosphere.data.image_inputs import ImageInput, check_image, list_images, read_image
from protosphere.evaluation.inference import evaluation_mode
from protosphere.geometry.checks import check_at_least
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
    images: ImageInput | Iterable[ImageInput],
    *,
    top_k: int = 1,
    batch_size: int = 256,
) -> Predictions:
    """Classify images.

    Args:
        objective: A trained objective. Its modes are restored at the end.
        transform: The transform of the model's evaluation images.
        images: One image or several, of equal or different sizes: paths, Pillow images, uint8 NumPy
            arrays of shape (height, width) or (height, width, channels), or uint8 tensors of shape
            (channels, height, width). Arrays and tensors with four axes are batches. Images are
            read as :func:`~protosphere.data.image_inputs.read_image` does, files when their batch
            is computed.
        top_k: Number k of the most probable classes to return for each image.
        batch_size: Number of images in a batch.

    Raises:
        ValueError: There are no images, they have another type or shape, there are fewer than k
            classes, or an argument is not a positive integer.
        DataError: An image file cannot be read.
    """
    num_classes = len(objective.head.prototypes)
    check_at_least("top_k", top_k, 1)
    check_at_least("batch_size", batch_size, 1)
    if top_k > num_classes:
        raise ValueError(f"top_k must be at most {num_classes}, the number of classes, got {top_k}")
    listed, channels = list_images(images), len(transform.mean)
    if not listed:
        raise ValueError("images must contain at least one image, got none")
    for image in listed:
        check_image(image, channels)
    batches = []
    with evaluation_mode(objective), torch.no_grad():
        for start in range(0, len(listed), batch_size):
            pixels = [read_image(image, channels) for image in listed[start : start + batch_size]]
            batches.append(_predict_batch(objective, transform, pixels, top_k))
    return Predictions(*(torch.cat(column).cpu() for column in zip(*batches, strict=True)))


def _predict_batch(
    objective: Objective,
    transform: EvaluationTransform,
    images: Sequence[Tensor],
    top_k: int,
) -> Predictions:
    head = objective.head
    batch = transform.prepare(images, head.prototypes.device)
    features = objective.encoder(batch).float()
    logits = head(features)
    # By logits: probabilities that differ may be rounded to the same number.
    classes = logits.topk(top_k, dim=1).indices
    probabilities = logits.softmax(1).gather(1, classes)
    scores = rejection_score(features, head.prototypes)
    return Predictions(classes[:, 0], probabilities[:, 0], scores, classes, probabilities)
