"""The inference loop: clean images one by one, modes restored, progress reported."""

import pytest
import torch
from torch import nn

from protosphere.classifiers import CosineClassifier
from protosphere.data.augmentation import Augmentation, AugmentationPolicy
from protosphere.data.datasets import load_synthetic
from protosphere.data.loaders import MemoryLoader
from protosphere.data.splits import ImageSet
from protosphere.encoders import Encoder, create_backbone
from protosphere.evaluation import collect_outputs, encode, evaluation_mode, iterate_outputs
from protosphere.training import Objective


@pytest.fixture
def objective() -> Objective:
    encoder = Encoder(create_backbone("small", in_channels=3))
    return Objective(encoder, CosineClassifier(encoder.out_dim, 5), lambda features, *_: features)


@pytest.fixture
def loader() -> MemoryLoader:
    split = load_synthetic(num_classes=5, num_samples=43, image_size=8).train
    assert isinstance(split, ImageSet)
    policy = AugmentationPolicy(size=8)
    return MemoryLoader(split, Augmentation(policy, *split.channel_statistics()))


def test_outputs_are_those_of_the_images_without_augmentation(
    objective: Objective, loader: MemoryLoader
) -> None:
    outputs = collect_outputs(objective, loader, batch_size=10)
    objective.eval()
    transform = loader.augmentation.evaluation_transform()
    for index, image in enumerate(loader.split.images):
        with torch.no_grad():
            features = objective.encoder(transform(image[None]))
        torch.testing.assert_close(outputs.features[index], features[0])
        logits = objective.head(features)
        assert outputs.predictions[index] == logits.argmax()
        torch.testing.assert_close(outputs.confidences[index], logits.softmax(1).max())
        loss = nn.functional.cross_entropy(logits, outputs.labels[index : index + 1])
        torch.testing.assert_close(outputs.losses[index], loss)
    assert torch.equal(outputs.labels, loader.split.labels)
    assert not any(part.requires_grad for part in outputs)


def test_encode_gives_the_features_of_the_outputs(
    objective: Objective, loader: MemoryLoader
) -> None:
    outputs, encoded = collect_outputs(objective, loader), encode(objective.encoder, loader)
    assert torch.equal(encoded.features, outputs.features)
    assert torch.equal(encoded.labels, outputs.labels)


def test_progress_is_reported_after_each_batch(objective: Objective, loader: MemoryLoader) -> None:
    fractions: list[float] = []
    collect_outputs(objective, loader, batch_size=10, progress=fractions.append)
    assert fractions == [10 / 43, 20 / 43, 30 / 43, 40 / 43, 1]


def test_features_are_float32_and_gradients_stay_enabled(
    objective: Objective, loader: MemoryLoader
) -> None:
    objective.encoder = nn.Sequential(objective.encoder, _ToBfloat16())
    for outputs in iterate_outputs(objective, loader):
        assert outputs.features.dtype == torch.float32
        assert torch.is_grad_enabled(), "what the caller does between batches is not affected"


class _ToBfloat16(nn.Module):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features.bfloat16()


def test_every_submodule_returns_to_its_own_mode(
    objective: Objective, loader: MemoryLoader
) -> None:
    """A frozen backbone in evaluation mode must not be put into training mode afterwards."""
    objective.train()
    objective.encoder.backbone.eval()
    modes = [module.training for module in objective.modules()]
    collect_outputs(objective, loader)
    assert [module.training for module in objective.modules()] == modes
    with evaluation_mode(objective):
        assert not any(module.training for module in objective.modules())
    assert [module.training for module in objective.modules()] == modes
