"""Small objectives and loaders that train in milliseconds."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier
from protosphere.classifiers.protocol import Head
from protosphere.data.augmentation import Augmentation, AugmentationPolicy, PaddedCrop
from protosphere.data.datasets import ImageSet, load_synthetic
from protosphere.data.loaders import FeatureLoader, MemoryLoader
from protosphere.encoders import Encoder, create_backbone, freeze_backbone
from protosphere.encoders.freezing import Freeze
from protosphere.losses import nonl_loss
from protosphere.training import Objective

RANDOM_POLICY = AugmentationPolicy(8, PaddedCrop(padding=1), hflip=0.5)
PLAIN_POLICY = AugmentationPolicy(8, None, hflip=0.0)


def small_loss(features: Tensor, head: Head, labels: Tensor) -> Tensor:
    """NONL with a fixed temperature."""
    return nonl_loss(features, head.prototypes, labels, temperature=0.2)


def small_objective(
    seed: int = 0, *, channels: int = 3, num_classes: int = 5, freeze: Freeze = "none"
) -> Objective:
    """A convolutional network with batch norm, a cosine head and NONL."""
    torch.manual_seed(seed)
    encoder = Encoder(create_backbone("small", in_channels=channels))
    freeze_backbone(encoder, freeze)
    return Objective(encoder, CosineClassifier(encoder.out_dim, num_classes), small_loss)


def small_split() -> ImageSet:
    """Seventy images of 8 by 8 pixels in 5 classes."""
    split = load_synthetic(num_classes=5, num_samples=70, image_size=8, seed=0).train
    assert isinstance(split, ImageSet)
    return split


def memory_loader(split: ImageSet, policy: AugmentationPolicy = RANDOM_POLICY) -> MemoryLoader:
    """A loader without normalization."""
    channels = split.channels
    return MemoryLoader(split, Augmentation(policy, (0.0,) * channels, (1.0,) * channels))


class RecordingLoader(FeatureLoader):
    """A loader of features that records the indices of each epoch it was asked for."""

    def __init__(self, num_samples: int, dim: int = 2) -> None:
        super().__init__(torch.ones(num_samples, dim), torch.zeros(num_samples, dtype=torch.long))
        self.epochs: list[tuple[int, list[int]]] = []

    def batches(
        self,
        batch_size: int,
        *,
        seed: int,
        epoch: int,
        first: int = 0,
        shard: tuple[int, int] = (0, 1),
    ) -> Iterator[tuple[Tensor, ...]]:
        indices: list[int] = []
        self.epochs.append((epoch, indices))
        for (index,) in super().batches(
            batch_size, seed=seed, epoch=epoch, first=first, shard=shard
        ):
            indices.extend(index.tolist())
            yield (index,)


def linear_objective(weights: Tensor) -> Objective:
    """An objective whose loss is the mean feature.

    Of a loader of ones with a batch size of all samples, the gradient is 1/num_outputs for each
    weight, whatever the weights are.

    Args:
        weights: Initial weights, of shape (outputs, inputs).
    """
    encoder = nn.Linear(weights.shape[1], weights.shape[0], bias=False)
    with torch.no_grad():
        encoder.weight.copy_(weights)
    head = CosineClassifier(len(weights), 2)
    return Objective(encoder, head, lambda features, head, labels: features.mean())
