"""The loader of images on disk: worker processes decode and crop, the device augments."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.utils.data import Dataset

from protosphere.data.augmentation import Augmentation, PaddedCrop, RandomResizedCrop
from protosphere.data.decoding import center_crop, decode_image, import_torchvision
from protosphere.data.folders import ImageFiles
from protosphere.data.image_workers import ImageWorkers
from protosphere.data.sampling import (
    SamplerName,
    batch_slices,
    check_sampler,
    epoch_order,
    evaluation_slices,
    repetitions,
    sample_seed,
)
from protosphere.data.splits import DataError

# Path of an image, and for training the seed, epoch and sample index that determine its crop.
_Key = tuple[str, tuple[int, int, int] | None]


class FolderLoader:
    """A loader of images that stay on disk.

    Worker processes decode and crop, and the device does the rest of the augmentation. The crop of
    a sample depends on the seed, the epoch and its index, not on the number of workers. The
    workers live as long as the loader. Only one epoch can be iterated at a time: once another one
    has started, the earlier one cannot be continued.

    Args:
        split: Image files and labels.
        augmentation: Augmentation and normalization; its policy also sets the number of views.
        device: Device of the batches.
        workers: Number of worker processes, at most one per core. 0 decodes in this process.
        sampler: How training samples are drawn, as
            :func:`~protosphere.data.sampling.epoch_order` has it.

    Raises:
        DataError: torchvision is not installed, or ``workers`` is negative. While iterating: an
            image cannot be read.
        ValueError: There is no such sampler.
    """

    def __init__(
        self,
        split: ImageFiles,
        augmentation: Augmentation,
        *,
        device: torch.device | str,
        workers: int = 8,
        sampler: SamplerName = "uniform",
    ) -> None:
        if workers < 0:
            raise DataError(f"workers must be at least 0, got {workers}")
        check_sampler(sampler)
        self.sampler = sampler
        self.workers = workers
        self.split = split
        self.augmentation = augmentation
        self._device = torch.device(device)
        self._transform = augmentation.evaluation_transform(split.evaluation_crop)
        policy = augmentation.policy
        # The workers make every crop except the padded one, which needs the device's generator.
        self._device_augmentation = (
            augmentation
            if isinstance(policy.crop, PaddedCrop)
            else replace(augmentation, policy=replace(policy, crop=None))
        )
        crops = _CroppedImages(augmentation, self._transform.crop_pixels)
        self._training, self._evaluation = (
            ImageWorkers(crops, self._device, workers) for _ in range(2)
        )

    @property
    def device(self) -> torch.device:
        """Device of the batches."""
        return self._device

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
        """Yield cropped uint8 images (samples, views, channels, size, size) and labels."""
        parts = batch_slices(len(self), batch_size, first=first, shard=shard)
        return self._crops(self._training, parts, seed=seed, epoch=epoch)

    def sample_batches(
        self, batch_size: int, *, num_batches: int, seed: int, shard: tuple[int, int] = (0, 1)
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the first batches of an epoch, read by the workers for evaluation."""
        parts = batch_slices(len(self), batch_size, shard=shard)[:num_batches]
        # The workers for training may be in the middle of an epoch.
        return self._crops(self._evaluation, parts, seed=seed, epoch=0)

    def _crops(
        self, workers: ImageWorkers, parts: list[slice], *, seed: int, epoch: int
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield images and labels of parts of the order of an epoch."""
        paths, count = self.split.paths, len(self)
        order = epoch_order(
            count, seed=seed, epoch=epoch, sampler=self.sampler, labels=self.split.labels
        )
        labels = self.split.labels[order].to(self.device)
        # A sample that is drawn again gets another crop.
        crop_index = order + count * repetitions(order)
        # The keys must not hold this loader, which holds them: it would never be collected.
        keys: Iterator[list[_Key]] = (
            [(paths[index % count], (seed, epoch, index)) for index in crop_index[part].tolist()]
            for part in parts
        )
        for part, images in zip(parts, workers.batches(keys), strict=True):
            yield images, labels[part]

    def prepare(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the augmentation except for the crops that the workers have made."""
        images, labels = tensors
        num_views = images.shape[1]
        views = images.transpose(0, 1).flatten(0, 1)
        return self._device_augmentation(views), labels.repeat(num_views)

    def evaluation_batches(
        self, batch_size: int, *, shard: tuple[int, int] = (0, 1)
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the center of all images in their original order, normalized, with labels."""
        labels = self.split.labels.to(self.device)
        parts = evaluation_slices(len(self), batch_size, shard=shard)
        paths = self.split.paths
        keys: Iterator[list[_Key]] = ([(path, None) for path in paths[part]] for part in parts)
        for part, images in zip(parts, self._evaluation.batches(keys), strict=True):
            yield self._transform.normalize(images.squeeze(1)), labels[part]


class _CroppedImages(Dataset[Tensor | str]):
    """Images of the output size, one per view; an error message for an unreadable file."""

    def __init__(
        self, augmentation: Augmentation, evaluation_crop: Callable[[Tensor], Tensor]
    ) -> None:
        policy = augmentation.policy
        self.num_views = policy.num_views
        self.evaluation_crop = evaluation_crop
        self.training_crop: Callable[[Tensor], Tensor]
        if isinstance(policy.crop, RandomResizedCrop):
            self.training_crop = import_torchvision("transforms.v2").RandomResizedCrop(
                policy.size, scale=policy.crop.scale, ratio=policy.crop.ratio, antialias=True
            )
        elif isinstance(policy.crop, PaddedCrop):
            self.training_crop = partial(center_crop, size=policy.size, crop_fraction=1.0)
        else:
            self.training_crop = evaluation_crop

    def __getitem__(self, key: _Key) -> Tensor | str:
        path, crop_key = key
        image = decode_image(path)
        if isinstance(image, str):
            return image
        if crop_key is None:
            return self.evaluation_crop(image)[None]
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would seed the GPU as well.
            torch.default_generator.manual_seed(sample_seed(*crop_key))
            return torch.stack([self.training_crop(image) for _ in range(self.num_views)])
