"""Images to classify: files, folders and arrays. Unreadable ones are reported and skipped."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from protosphere.data.decoding import decode_image
from protosphere.data.image_batches import convert_channels
from protosphere.data.splits import DataError, to_uint8

_LOG = logging.getLogger(__name__)
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class LoadedImage(NamedTuple):
    """An image, or the reason why it cannot be read.

    Attributes:
        name: Path of the file, or file and position of an array.
        image: Pixels from 0 to 255, or None if the image cannot be read.
        problem: Error message if the image cannot be read.
    """

    name: str
    image: UInt8[Tensor, "channels height width"] | None
    problem: str | None = None


def find_images(paths: Sequence[Path]) -> list[Path]:
    """Collect image files.

    Args:
        paths: Files, which are kept as they are, and folders, whose images and ``.npz`` files are
            found recursively and sorted.

    Raises:
        DataError: A path does not exist, or there are no images.
    """
    files: list[Path] = []
    empty: list[Path] = []
    for path in paths:
        if path.is_dir():
            found = sorted(
                file
                for file in path.rglob("*")
                if file.suffix.lower() in (*SUFFIXES, ".npz")
                and not file.name.startswith(".")
                and file.is_file()
            )
            files += found
            empty += [] if found else [path]
        elif path.exists():
            files.append(path)
        else:
            raise DataError(f"{path} must be a file or a folder; it does not exist")
    if not files:
        place = empty[0] if empty else "the list of paths"
        raise DataError(f"{place} must have images in it; it has none")
    for path in empty:
        _LOG.warning("%s has no images and is skipped", path)
    return files


def load_images(files: Iterable[Path], *, channels: int, threads: int = 8) -> Iterator[LoadedImage]:
    """Read images in order, some of them in advance.

    Args:
        files: Image files, and ``.npz`` files all of whose image arrays are read.
        channels: 3 for color and 1 for grayscale; other images are converted.
        threads: Number of threads that decode.
    """
    with ThreadPoolExecutor(threads) as pool:
        stream = iter(files)
        while ahead := list(islice(stream, 64 * threads)):
            for images in pool.map(lambda path: _load_file(path, channels), ahead):
                yield from images


def _load_file(path: Path, channels: int) -> list[LoadedImage]:
    if path.suffix.lower() == ".npz":
        return _load_arrays(path, channels)
    image = decode_image(str(path), channels)
    if isinstance(image, str):
        return [LoadedImage(str(path), None, image)]
    return [LoadedImage(str(path), image)]


def _load_arrays(path: Path, channels: int) -> list[LoadedImage]:
    """Read all images of an ``.npz`` file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception:  # Whatever a damaged archive makes NumPy raise.
        problem = f"{path} must be an .npz file of plain arrays; it is damaged or in another format"
        return [LoadedImage(str(path), None, problem)]
    loaded: list[LoadedImage] = []
    for key, array in arrays.items():
        if array.ndim not in (3, 4):
            continue
        # (height, width, 3) is one color image, not grayscale images of width 3.
        images = array[None] if array.ndim == 3 and array.shape[2] == 3 else array
        try:
            pixels = torch.from_numpy(to_uint8(images, source=f"{key} in {path.name}"))
        except DataError as error:
            loaded.append(LoadedImage(f"{path}:{key}", None, str(error)))
            continue
        loaded += [
            LoadedImage(f"{path}:{key}[{index}]", image)
            for index, image in enumerate(convert_channels(pixels, channels))
        ]
    problem = f"{path} must have arrays of images; it has none"
    return loaded or [LoadedImage(str(path), None, problem)]
