"""Predictions for new images: the evaluation transform, batches of any size, modes restored."""

import pytest
import torch
from torch import Tensor

from protosphere.classifiers import CosineClassifier
from protosphere.data.augmentation import EvaluationTransform
from protosphere.encoders import Encoder, create_backbone
from protosphere.evaluation import predict_images
from protosphere.training import Objective

TRANSFORM = EvaluationTransform(8, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))


@pytest.fixture
def objective() -> Objective:
    encoder = Encoder(create_backbone("small", in_channels=3))
    return Objective(encoder, CosineClassifier(encoder.out_dim, 5), lambda features, *_: features)


def random_images(*sizes: int) -> list[Tensor]:
    return [torch.randint(0, 256, (3, size, size), dtype=torch.uint8) for size in sizes]


@pytest.mark.parametrize("sizes", [(8, 8, 8, 8, 8), (8, 12, 9, 8, 20)])
def test_predictions_are_those_of_single_images(objective: Objective, sizes: list[int]) -> None:
    images = random_images(*sizes)
    predictions = predict_images(objective, TRANSFORM, images, batch_size=2)
    assert objective.training, "the mode is restored"
    objective.eval()
    for index, image in enumerate(images):
        with torch.no_grad():
            features = objective.encoder(TRANSFORM(image[None]))
            probabilities = objective.head(features).softmax(1)[0]
        assert predictions.classes[index] == probabilities.argmax()
        torch.testing.assert_close(predictions.confidences[index], probabilities.max())
        cosines = torch.cosine_similarity(features, objective.head.prototypes)
        torch.testing.assert_close(predictions.rejection_scores[index], -cosines.max().detach())


def test_a_batch_equals_a_list(objective: Objective) -> None:
    images = random_images(8, 8, 8)
    from_list = predict_images(objective, TRANSFORM, images)
    from_batch = predict_images(objective, TRANSFORM, torch.stack(images))
    for one, other in zip(from_list, from_batch, strict=True):
        assert torch.equal(one, other)
        assert not one.requires_grad


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "images must contain at least one image, got none"),
        ([torch.zeros(3, 8, 8)], r"uint8 tensors .*, got torch.float32"),
        (
            [torch.zeros(8, 8, dtype=torch.uint8)],
            r"got shape \(8, 8\)",
        ),
    ],
)
def test_invalid_images_are_refused(
    objective: Objective, images: list[Tensor], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        predict_images(objective, TRANSFORM, images)
