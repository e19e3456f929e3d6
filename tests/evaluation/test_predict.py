"""Predictions for new images: the evaluation transform, batches of any size, modes restored."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from protosphere.classifiers import CosineClassifier
from protosphere.data.augmentation import EvaluationTransform
from protosphere.data.image_inputs import read_image
from protosphere.encoders import Encoder, create_backbone
from protosphere.evaluation import predict, predict_images
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
    predictions = predict_images(objective, TRANSFORM, images, top_k=3, batch_size=2)
    assert objective.training, "the mode is restored"
    objective.eval()
    for index, image in enumerate(images):
        with torch.no_grad():
            features = objective.encoder(TRANSFORM(image[None]))
            probabilities = objective.head(features).softmax(1)[0]
        assert predictions.classes[index] == probabilities.argmax()
        torch.testing.assert_close(predictions.confidences[index], probabilities.max())
        top = probabilities.sort(descending=True)
        assert torch.equal(predictions.top_classes[index], top.indices[:3])
        torch.testing.assert_close(predictions.top_probabilities[index], top.values[:3])
        cosines = torch.cosine_similarity(features, objective.head.prototypes)
        torch.testing.assert_close(predictions.rejection_scores[index], -cosines.max().detach())


def test_a_batch_equals_a_list(objective: Objective) -> None:
    images = random_images(8, 8, 8)
    from_list = predict_images(objective, TRANSFORM, images)
    from_batch = predict_images(objective, TRANSFORM, torch.stack(images))
    for one, other in zip(from_list, from_batch, strict=True):
        assert torch.equal(one, other)
        assert not one.requires_grad


def test_a_single_image_and_a_generator_are_accepted(objective: Objective) -> None:
    images = random_images(8, 12, 9)
    expected = predict_images(objective, TRANSFORM, images, batch_size=2)
    found = predict_images(objective, TRANSFORM, (image for image in images), batch_size=2)
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)
    single = predict_images(objective, TRANSFORM, images[0])
    assert single.classes.tolist() == expected.classes[:1].tolist()


def test_images_are_read_batch_by_batch(
    objective: Objective, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not all at once, which could fill the memory."""
    paths = [tmp_path / f"{index}.png" for index in range(4)]
    for path, image in zip(paths, random_images(8, 8, 8, 8), strict=True):
        Image.fromarray(image.movedim(0, 2).numpy()).save(path)
    events: list[str] = []

    def read(image: Any, channels: int) -> Tensor:
        events.append("read")
        return read_image(image, channels)

    monkeypatch.setattr(predict, "read_image", read)
    objective.encoder.register_forward_hook(lambda *_: events.append("computed"))
    predict_images(objective, TRANSFORM, paths, batch_size=2)
    assert events == ["read", "read", "computed"] * 2


def test_the_first_of_the_most_probable_classes_is_the_prediction(objective: Objective) -> None:
    for top_k in (1, 5):
        predictions = predict_images(objective, TRANSFORM, random_images(8, 8), top_k=top_k)
        assert torch.equal(predictions.top_classes[:, 0], predictions.classes)
        assert torch.equal(predictions.top_probabilities[:, 0], predictions.confidences)
        assert predictions.top_classes.shape == predictions.top_probabilities.shape == (2, top_k)
    torch.testing.assert_close(predictions.top_probabilities.sum(1), torch.ones(2))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, "top_k must be an integer of at least 1, got 0"),
        ({"top_k": 1.5}, "top_k must be an integer of at least 1, got 1.5"),
        ({"top_k": 6}, "top_k must be at most 5, the number of classes, got 6"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"batch_size": -1}, "batch_size must be an integer of at least 1, got -1"),
    ],
)
def test_numbers_out_of_range_are_refused(
    objective: Objective, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        predict_images(objective, TRANSFORM, random_images(8), **options)


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
        (
            torch.zeros(3, 0, 8, dtype=torch.uint8),
            r"images must have at least one pixel, got shape \(3, 0, 8\)",
        ),
        (torch.zeros(0, 3, 8, 8, dtype=torch.uint8), "at least one image, got none"),
        (iter(()), "at least one image, got none"),
    ],
)
def test_invalid_images_are_refused(objective: Objective, images: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        predict_images(objective, TRANSFORM, images)
