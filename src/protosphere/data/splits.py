"""Splits: labeled images in memory, and the protocol shared with images on disk."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Integer, UInt8
from torch import Tensor

EvaluationCrop = Literal["center", "resize"]


class DataError(ValueError):
    """Data are missing or invalid."""


class ChannelStatistics(NamedTuple):
    """Statistics for normalizing images with pixels in [0, 1].

    Attributes:
        mean: Mean of each channel.
        std: Standard deviation of each channel.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


AnySplit = TypeVar("AnySplit", bound="Split")


@runtime_checkable
class Split(Protocol):
    """One split of a dataset, in memory or on disk."""

    @property
    def labels(self) -> Tensor:
        """Class index of each image."""
        ...

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each class."""
        ...

    @property
    def num_classes(self) -> int:
        """Number of classes of the dataset, including classes without images in this split."""
        ...

    @property
    def channels(self) -> int:
        """Number of image channels."""
        ...

    @property
    def evaluation_crop(self) -> EvaluationCrop:
        """Crop of evaluation images: the center, or the whole image resized."""
        ...

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def fingerprint(self) -> str:
        """Return a digest that changes when the images, labels or class names change."""
        ...

    def subset(self: AnySplit, index: Tensor) -> AnySplit:
        """Return the images at these indices, in this order."""
        ...

    def channel_statistics(self) -> ChannelStatistics:
        """Return the statistics that the images are normalized with."""
        ...


@dataclass(frozen=True)
class ImageSet:
    """Labeled images in memory.

    Attributes:
        images: Pixels from 0 to 255.
        labels: Class index of each image.
        class_names: Name of each class.
    """

    images: UInt8[Tensor, "samples channels height width"]
    labels: Integer[Tensor, "samples"]
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """Number of classes of the dataset, including classes without images in this split."""
        return len(self.class_names)

    @property
    def channels(self) -> int:
        """Number of image channels."""
        return self.images.shape[1]

    @property
    def evaluation_crop(self) -> EvaluationCrop:
        """``"resize"``: images in memory are evaluated whole."""
        return "resize"

    def fingerprint(self) -> str:
        """Return a digest of images, labels and class names."""
        digest = hashlib.sha256(json.dumps(self.class_names).encode())
        for tensor in (self.labels, self.images):
            digest.update(tensor.cpu().contiguous().numpy())  # type: ignore[arg-type]
        return digest.hexdigest()

    def subset(self, index: Integer[Tensor, "subset"]) -> "ImageSet":
        """Return the images at these indices, in this order."""
        return replace(self, images=self.images[index], labels=self.labels[index])

    def to(self, device: torch.device | str) -> "ImageSet":
        """Return the same images and labels on a device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def channel_statistics(self) -> ChannelStatistics:
        """Compute mean and standard deviation of each channel over all images."""
        # Sums of bytes and of their squares are whole numbers, exact in float64.
        pixels = self.images.movedim(1, 0).flatten(1)
        sums = torch.stack([channel.sum(dtype=torch.float64) for channel in pixels])
        squares = torch.stack([_sum_of_squares(channel) for channel in pixels])
        mean = sums / pixels.shape[1]
        std = (squares / pixels.shape[1] - mean.square()).clamp(min=1e-12).sqrt()
        return ChannelStatistics(tuple((mean / 255).tolist()), tuple((std / 255).tolist()))


def _sum_of_squares(pixels: Tensor) -> Tensor:
    # In chunks: as float64 the whole set would take eight times its memory.
    return torch.stack([chunk.double().square().sum() for chunk in pixels.split(1 << 24)]).sum()


def image_set(images: Any, labels: Any, class_names: Sequence[str], *, source: str) -> ImageSet:
    """Create an :class:`ImageSet` from arrays and check images and labels.

    Args:
        images: Array as :func:`to_uint8` accepts it.
        labels: Class index of each image.
        class_names: Name of each class.
        source: Name of the dataset or file, for error messages.

    Raises:
        DataError: The images or labels are invalid.
    """
    pixels, targets = to_uint8(images, source=source), np.asarray(labels)
    if targets.shape != (len(pixels),) or targets.dtype.kind not in "iu":
        raise DataError(
            f"labels of {source} must be integers, one per image, of shape ({len(pixels)},); "
            f"got {targets.dtype} of shape {targets.shape}"
        )
    if targets.min() < 0 or targets.max() >= len(class_names):
        raise DataError(
            f"labels of {source} must be between 0 and {len(class_names) - 1}, "
            f"got {targets.min()} to {targets.max()}"
        )
    tensors = torch.from_numpy(pixels), torch.from_numpy(targets.astype(np.int64))
    return ImageSet(*tensors, tuple(map(str, class_names)))


def to_uint8(images: Any, *, source: str) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Convert an array of images to uint8 with the channels first.

    Args:
        images: Array of shape (samples, height, width), (samples, channels, height, width) or
            (samples, height, width, channels) with 1 or 3 channels, of type uint8 or of floats
            between 0 and 1.
        source: Name of the dataset or file, for error messages.

    Returns:
        Contiguous array of shape (samples, channels, height, width).

    Raises:
        DataError: The array is not an array of images.
    """
    pixels = np.asarray(images)
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    elif pixels.ndim == 4 and pixels.shape[3] in (1, 3) and pixels.shape[1] not in (1, 3):
        pixels = np.moveaxis(pixels, 3, 1)
    if pixels.ndim != 4 or pixels.shape[1] not in (1, 3) or not pixels.size:
        raise DataError(
            f"images of {source} must have shape (samples, height, width) or (samples, height, "
            f"width, channels) with 1 or 3 channels, got {pixels.shape}"
        )
    if pixels.dtype.kind == "f":
        if not np.isfinite(pixels).all() or pixels.min() < 0 or pixels.max() > 1:
            raise DataError(
                f"floating-point images of {source} must be between 0 and 1, "
                f"got {pixels.min():g} to {pixels.max():g}"
            )
        pixels = np.round(pixels * 255).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise DataError(
            f"images of {source} must be uint8 or floats between 0 and 1, got {pixels.dtype}"
        )
    return np.ascontiguousarray(pixels)


def split_validation(
    split: AnySplit, fraction: float, *, seed: int = 0
) -> tuple[AnySplit, AnySplit]:
    """Split off a validation set with the same fraction of each class.

    Args:
        split: Split to divide.
        fraction: Fraction of each class in the validation set, between 0 and 1.
        seed: Seed of the random choice.

    Returns:
        The remaining training split and the validation split, both in the original order.

    Raises:
        DataError: The fraction is not between 0 and 1, or a class would have no images on one
            side.
    """
    if not 0 < fraction < 1:
        raise DataError(f"fraction must be greater than 0 and less than 1, got {fraction}")
    generator = torch.Generator().manual_seed(seed)
    selected = torch.zeros(len(split), dtype=torch.bool)
    labels = split.labels.cpu()
    for index in range(split.num_classes):
        members = torch.nonzero(labels == index).flatten()
        count = round(fraction * len(members))
        if not 0 < count < len(members):
            raise DataError(
                f"a validation fraction of {fraction:g} must leave each class images for training "
                f"and for validation, got {len(members) - count} and {count} for "
                f"{split.class_names[index]!r}"
            )
        selected[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    train, validation = (torch.nonzero(mask).flatten() for mask in (~selected, selected))
    return split.subset(train), split.subset(validation)
