"""Batches of images for a frozen encoder, from arrays or files, in its size and channels."""

from collections.abc import Iterator
from functools import partial

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from protosphere.data.decoding import CROP_FRACTION, center_crop, decode_image
from protosphere.data.evaluation_transform import EvaluationTransform
from protosphere.data.folder_memory import MemoryImages
from protosphere.data.folders import ImageFiles
from protosphere.data.image_workers import ImageWorkers
from protosphere.data.splits import ImageSet

# Starting a process takes as long as decoding some tens of images.
_FILES_PER_WORKER = 64


def image_batches(
    images: ImageSet | ImageFiles,
    transform: EvaluationTransform,
    *,
    device: torch.device | str,
    batch_size: int = 256,
    workers: int = 8,
) -> Iterator[Float[Tensor, "images channels size size"]]:
    """Yield all images in their order, as an encoder takes them.

    Images get the number of channels of the transform: gray ones are repeated, color ones are
    reduced to their luminance. Arrays are cropped and resized by the transform. Files have
    different sizes and shapes, so their central square is taken, as everywhere in this package.

    Args:
        images: Images in memory or on disk, of any size.
        transform: The transform of the encoder's evaluation images.
        device: Device of the batches.
        batch_size: Number of images in a batch.
        workers: Largest number of processes that decode files. 0 decodes in this process.

    Raises:
        DataError: A file cannot be read.
    """
    for batch in pixel_batches(
        images, transform, device=device, batch_size=batch_size, workers=workers
    ):
        yield transform.normalize(batch)


def pixel_batches(
    images: ImageSet | ImageFiles | MemoryImages,
    transform: EvaluationTransform,
    *,
    device: torch.device | str,
    batch_size: int = 256,
    workers: int = 8,
    crop_fraction: float = CROP_FRACTION,
) -> Iterator[UInt8[Tensor, "images channels height width"]]:
    """Yield all images in their order, in the channels of an encoder, cropped and not normalized.

    Args:
        images: Images in memory or on disk.
        transform: The transform of evaluation images; only its crop is applied.
        device: Device of the batches.
        batch_size: Number of images in a batch.
        workers: Largest number of processes that decode files. 0 decodes in this process.
        crop_fraction: Side of the center crop as a fraction of the shorter side of an image file; 1
            for files that have been cropped before, as those of ImageNet-C.

    Raises:
        DataError: A file cannot be read.
    """
    channels = len(transform.mean)
    if not isinstance(images, ImageFiles):
        for batch in images.images.split(batch_size):
            yield transform.crop_pixels(convert_channels(batch.to(device), channels))
        return
    crop = partial(center_crop, size=transform.size, crop_fraction=crop_fraction)
    num_workers = min(workers, len(images) // _FILES_PER_WORKER)
    pool = ImageWorkers(_CroppedFiles(crop, channels), torch.device(device), num_workers)
    paths = images.paths
    starts = range(0, len(paths), batch_size)
    yield from pool.batches(list(paths[start : start + batch_size]) for start in starts)


def convert_channels(
    images: UInt8[Tensor, "images channels height width"], channels: int
) -> UInt8[Tensor, "images new_channels height width"]:
    """Return images with 1 or 3 channels: repeated gray values, or the luminance.

    Args:
        images: Pixels from 0 to 255, with 1 or 3 channels.
        channels: Number of channels to return, 1 or 3.
    """
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, -1, -1)
    weights = torch.tensor([0.299, 0.587, 0.114], device=images.device)[:, None, None]
    return (images * weights).sum(1, keepdim=True).round().to(torch.uint8)


class _CroppedFiles(Dataset[Tensor | str]):
    """The center of an image file; an error message for one that cannot be read."""

    def __init__(self, crop: "partial[Tensor]", channels: int) -> None:
        self.crop = crop
        self.channels = channels

    def __getitem__(self, path: str) -> Tensor | str:
        image = decode_image(path, self.channels)
        return image if isinstance(image, str) else self.crop(image)
