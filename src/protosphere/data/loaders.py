"""Loaders: batches for training and evaluation, wherever the images are."""

from collections.abc import Iterator
from itertools import islice
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from protosphere.data.augmentation import Augmentation
from protosphere.data.decoding import CROP_FRACTION
from protosphere.data.folder_loader import FolderLoader
from protosphere.data.folder_memory import MemoryImages
from protosphere.data.sampling import (
    SamplerName,
    check_sampler,
    derive_seed,
    epoch_order,
    evaluation_slices,
    index_batches,
    num_batches,
)
from protosphere.data.splits import ImageSet
from protosphere.geometry.checks import check_features, check_labels

__all__ = [
    "Batch",
    "FeatureLoader",
    "FolderLoader",
    "Loader",
    "MemoryLoader",
    "derive_seed",
    "epoch_order",
    "index_batches",
    "num_batches",
]

# Images or features, and labels.
Batch = tuple[Tensor, Tensor]


@runtime_checkable
class Loader(Protocol):
    """Batches of images for training and evaluation.

    A training batch is made in two steps, so that the second can be compiled together with the
    model: :meth:`batches` loads it, and :meth:`prepare` augments it on the device with random
    numbers of the device's default generator. With several views, a prepared batch holds the
    first view of all samples, then the second view of all samples, and so on.
    """

    @property
    def device(self) -> torch.device:
        """Device of the batches."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def batches(
        self,
        batch_size: int,
        *,
        seed: int,
        epoch: int,
        first: int = 0,
        shard: tuple[int, int] = (0, 1),
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the full batches of an epoch for :meth:`prepare`.

        Args:
            batch_size: Number of samples in a batch.
            seed: Seed of the run. Together with the epoch it determines the order of the samples.
            epoch: Index of the epoch.
            first: Index of the first batch to yield.
            shard: Which part of each batch to yield, and of how many; the parts of all processes
                are the batch, in its order.
        """
        ...

    def sample_batches(
        self, batch_size: int, *, num_batches: int, seed: int, shard: tuple[int, int] = (0, 1)
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield some full batches for :meth:`prepare`; an epoch of :meth:`batches` may go on.

        Args:
            batch_size: Number of samples in a batch.
            num_batches: Number of batches; fewer if an epoch has fewer.
            seed: Seed of the run, which determines the samples.
            shard: Which part of each batch to yield, and of how many.
        """
        ...

    def prepare(self, *tensors: Tensor) -> Batch:
        """Return augmented and normalized images with labels for one item of :meth:`batches`."""
        ...

    def evaluation_batches(
        self, batch_size: int, *, shard: tuple[int, int] = (0, 1)
    ) -> Iterator[Batch]:
        """Yield all images in their original order, normalized and not augmented, with labels.

        Args:
            batch_size: Number of images in a batch; the last one may have fewer.
            shard: Which process, and of how many: they take whole batches in turn, as
                :func:`~protosphere.data.sampling.evaluation_slices` has it.
        """
        ...


class MemoryLoader:
    """A loader of images that are in the memory of the device.

    Args:
        split: Images and labels, on the device. Of image files in memory, a policy without a crop
            trains on the central square, as it does with images on disk.
        augmentation: Augmentation and normalization; its policy also sets the number of views.
        sampler: How training samples are drawn: ``"uniform"`` takes each of them once an epoch;
            ``"balanced"`` and ``"sqrt"`` draw classes with equal probability or in proportion to
            the square root of their size, as :func:`~protosphere.data.sampling.epoch_order` says.

    Raises:
        ValueError: There is no such sampler.
    """

    def __init__(
        self,
        split: ImageSet | MemoryImages,
        augmentation: Augmentation,
        *,
        sampler: SamplerName = "uniform",
    ) -> None:
        check_sampler(sampler)
        self.split = split
        self.augmentation = augmentation
        self.sampler = sampler
        # Orders are drawn on the CPU.
        self._class_labels = None if sampler == "uniform" else split.labels.cpu()

    @property
    def device(self) -> torch.device:
        """Device of the images."""
        return self.split.images.device

    def __len__(self) -> int:
        return len(self.split)

    def batches(
        self,
        batch_size: int,
        *,
        seed: int,
        epoch: int,
        first: int = 0,
        shard: tuple[int, int] = (0, 1),
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the full batches of an epoch as sample indices."""
        return index_batches(
            len(self),
            batch_size,
            seed=seed,
            epoch=epoch,
            first=first,
            device=self.device,
            sampler=self.sampler,
            labels=self._class_labels,
            shard=shard,
        )

    def sample_batches(
        self, batch_size: int, *, num_batches: int, seed: int, shard: tuple[int, int] = (0, 1)
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the first batches of an epoch as sample indices."""
        return islice(self.batches(batch_size, seed=seed, epoch=0, shard=shard), num_batches)

    def prepare(self, *tensors: Tensor) -> Batch:
        """Return augmented images and labels of the samples at these indices."""
        index = tensors[0].repeat(self.augmentation.policy.num_views)
        images = self.split.images[index]
        if self.split.evaluation_crop == "center" and self.augmentation.policy.crop is None:
            side = round(CROP_FRACTION * images.shape[-1])
            start = round((images.shape[-1] - side) / 2)
            images = images[..., start : start + side, start : start + side]
        return self.augmentation(images), self.split.labels[index]

    def evaluation_batches(
        self, batch_size: int, *, shard: tuple[int, int] = (0, 1)
    ) -> Iterator[Batch]:
        """Yield all images in their original order, normalized and not augmented, with labels."""
        transform = self.augmentation.evaluation_transform(self.split.evaluation_crop)
        for part in evaluation_slices(len(self), batch_size, shard=shard):
            yield transform(self.split.images[part]), self.split.labels[part]


class FeatureLoader:
    """A loader of precomputed features instead of images.

    Args:
        features: Features of all samples. A NumPy array becomes a float32 tensor.
        labels: Class index of each sample; they are put on the device of the features.

    Raises:
        TypeError: Features or labels are neither tensors nor NumPy arrays.
        ValueError: Features or labels have a wrong shape or dtype.
    """

    def __init__(
        self,
        features: Float[Tensor, "samples dim"] | Float[np.ndarray, "samples dim"],
        labels: Integer[Tensor, "samples"] | Integer[np.ndarray, "samples"],
    ) -> None:
        check_features(features)
        check_labels(labels, len(features))
        if isinstance(features, np.ndarray):
            features = torch.from_numpy(features.astype(np.float32))
        if isinstance(labels, np.ndarray):
            labels = torch.from_numpy(labels.astype(np.int64))
        self.features = features
        self.labels = labels.to(features.device)

    @property
    def device(self) -> torch.device:
        """Device of the features."""
        return self.features.device

    def __len__(self) -> int:
        return len(self.labels)

    def batches(
        self,
        batch_size: int,
        *,
        seed: int,
        epoch: int,
        first: int = 0,
        shard: tuple[int, int] = (0, 1),
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the full batches of an epoch as sample indices."""
        return index_batches(
            len(self),
            batch_size,
            seed=seed,
            epoch=epoch,
            first=first,
            device=self.device,
            shard=shard,
        )

    def sample_batches(
        self, batch_size: int, *, num_batches: int, seed: int, shard: tuple[int, int] = (0, 1)
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the first batches of an epoch as sample indices."""
        return islice(self.batches(batch_size, seed=seed, epoch=0, shard=shard), num_batches)

    def prepare(self, *tensors: Tensor) -> Batch:
        """Return features and labels of the samples at these indices."""
        (index,) = tensors
        return self.features[index], self.labels[index]

    def evaluation_batches(
        self, batch_size: int, *, shard: tuple[int, int] = (0, 1)
    ) -> Iterator[Batch]:
        """Yield all features in their original order with labels."""
        for part in evaluation_slices(len(self), batch_size, shard=shard):
            yield self.features[part], self.labels[part]
