"""Image files decoded into memory once, so that no epoch decodes them again."""

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Integer, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from protosphere.data.decoding import CROP_FRACTION, central_square, decode_image
from protosphere.data.folders import ImageFiles
from protosphere.data.image_workers import ImageWorkers
from protosphere.data.progress import Progress, no_progress
from protosphere.data.splits import ChannelStatistics, DataError, EvaluationCrop

# Automatic choices use at most this fraction of the memory, and this many bytes.
_MAX_FRACTION = 0.25
_MAX_BYTES = 16 << 30
_IMAGES_PER_TASK = 16


@dataclass(frozen=True)
class MemoryImages:
    """The central squares of image files, in memory.

    Everything but the pixels is that of the files: class names, evaluation crop, statistics and
    fingerprint.

    Attributes:
        files: The files that the images were read from.
        images: Pixels from 0 to 255.
        labels: Class index of each image, on the device of the images.
    """

    files: ImageFiles
    images: UInt8[Tensor, "samples channels side side"]
    labels: Integer[Tensor, "samples"]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each class."""
        return self.files.class_names

    @property
    def num_classes(self) -> int:
        """Number of classes of the dataset, including classes without images in this split."""
        return self.files.num_classes

    @property
    def channels(self) -> int:
        """Number of image channels."""
        return self.files.channels

    @property
    def evaluation_crop(self) -> EvaluationCrop:
        """``"center"``, as for the files."""
        return self.files.evaluation_crop

    def fingerprint(self) -> str:
        """Return the fingerprint of the files."""
        return self.files.fingerprint()

    def channel_statistics(self) -> ChannelStatistics:
        """Return the statistics that the files are normalized with."""
        return self.files.channel_statistics()

    def subset(self, index: Integer[Tensor, "subset"]) -> "MemoryImages":
        """Return the images at these indices, in this order."""
        return MemoryImages(self.files.subset(index.cpu()), self.images[index], self.labels[index])

    def to(self, device: torch.device | str) -> "MemoryImages":
        """Return the same images and labels on a device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))


def stored_side(size: int) -> int:
    """Return the side of the squares that are kept in memory for images of a size.

    >>> stored_side(224)
    256
    """
    return round(size / CROP_FRACTION)


def fits_in_memory(num_images: int, size: int, *, limit_bytes: int | None = None) -> bool:
    """Return whether images can be kept in memory.

    Args:
        num_images: Number of images, of all splits together.
        size: Side of the augmented images in pixels; ``augmentation.size`` of a recipe.
        limit_bytes: Number of bytes that the images may take; None is :func:`memory_limit`.

    >>> fits_in_memory(10_000, 224, limit_bytes=2 << 30)
    True
    >>> fits_in_memory(1_281_167, 224, limit_bytes=16 << 30)
    False
    """
    limit = memory_limit() if limit_bytes is None else limit_bytes
    return 3 * num_images * stored_side(size) ** 2 <= limit


def memory_limit(device: torch.device | str = "cpu") -> int:
    """Return how many bytes of images are kept in memory without being asked for.

    That is a quarter of the memory of the machine, and at most 16 GiB. On a GPU, the images are
    decoded in main memory and then moved, so that both must have room. What other programs use at
    the moment does not count: a run that is resumed must find the same limit.

    Args:
        device: Where the images will be.
    """
    memory = _main_memory()
    if torch.device(device).type == "cuda":
        memory = min(memory, torch.cuda.mem_get_info(device)[1])
    return min(_MAX_BYTES, int(_MAX_FRACTION * memory))


def _main_memory() -> int:
    """Return the size of the main memory in bytes, or the limit of a container."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [int(line) for line in _lines("/sys/fs/cgroup/memory.max") if line.isdigit()]
    return min([memory, *limits])


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def load_into_memory(
    files: ImageFiles,
    *,
    size: int,
    workers: int = 8,
    progress: Progress = no_progress,
) -> MemoryImages:
    """Decode all images of a split.

    Images are resized so that the shorter side has ``round(size / 0.875)`` pixels, and the central
    square is kept. Evaluation is the same as with images on disk, which is the central ``size`` by
    ``size`` pixels; training crops come from the square. If all images are squares of one size
    that is not larger, they are kept unchanged.

    Args:
        files: The image files.
        size: Side of the augmented images in pixels; ``augmentation.size`` of a recipe.
        workers: Number of worker processes, at most one per core. 0 decodes in this process.
        progress: Called with the fraction that is done.

    Returns:
        The images on the CPU, a split that :class:`~protosphere.data.loaders.MemoryLoader` takes.

    Raises:
        DataError: An image cannot be read, ``size`` is less than 1, or torchvision is not
            installed.
    """
    if size < 1:
        raise DataError(f"size must be at least 1, got {size}")
    side = _common_side(files, stored_side(size))
    squares = _Squares(files.channels, None if side else size)
    side = side or stored_side(size)
    images = torch.empty(len(files), files.channels, side, side, dtype=torch.uint8)
    starts = range(0, len(files), _IMAGES_PER_TASK)
    paths = files.paths
    keys = (list(paths[start : start + _IMAGES_PER_TASK]) for start in starts)
    pool = ImageWorkers(squares, torch.device("cpu"), min(workers, len(starts)))
    for start, batch in zip(starts, pool.batches(keys), strict=True):
        images[start : start + len(batch)] = batch
        progress((start + len(batch)) / len(files))
    return MemoryImages(files, images, files.labels)


class _Squares(Dataset[Tensor | str]):
    """Central squares by path, or whole images; an error message for an unreadable file."""

    def __init__(self, channels: int, size: int | None) -> None:
        self.channels = channels
        self.size = size

    def __getitem__(self, path: str) -> Tensor | str:
        image = decode_image(path, self.channels)
        if self.size is None or isinstance(image, str):
            return image
        return central_square(image, self.size)


def _common_side(files: ImageFiles, largest: int) -> int | None:
    """Return the side of the images if all are squares of one size that is not too large."""
    from PIL import Image  # noqa: PLC0415

    common: int | None = None
    for path in files.paths:
        try:
            with warnings.catch_warnings(action="ignore"), Image.open(path) as image:
                width, height = image.size
        except Exception:  # Whatever a damaged file makes Pillow raise; decoding will name it.
            return None
        if width != height or width > largest or common not in (None, width):
            return None
        common = width
    return common
