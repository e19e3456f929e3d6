"""Images to classify: files, folders and arrays, one after another; what cannot be read is told and passed over."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from protosphere.data.datasets import DataError, as_bytes
from protosphere.data.folders import decoded

_LOG = logging.getLogger(__name__)
ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class Loaded(NamedTuple):
    """One image, or why there is none.

    Attributes:
        name: its file, or its place in an array.
        image: bytes, channels first; None where it cannot be read.
        problem: then, a sentence.
    """

    name: str
    image: UInt8[Tensor, "channels height width"] | None
    problem: str | None = None


def found_images(places: Sequence[Path]) -> list[Path]:
    """Files as they are given, and all images below folders, sorted.

    Raises:
        DataError: a place does not exist, or no folder has images.
    """
    files: list[Path] = []
    empty: list[Path] = []
    for place in places:
        if place.is_dir():
            below = sorted(
                path
                for path in place.rglob("*")
                if path.suffix.lower() in (*ENDINGS, ".npz") and path.is_file()
            )
            files += below
            empty += [] if below else [place]
        elif place.exists():
            files.append(place)
        else:
            raise DataError(f"{place} must be a file or a folder; there is none")
    if not files:
        raise DataError(f"{empty[0]} must have images in it; it has none")
    for place in empty:
        _LOG.warning("%s has no images in it and is passed over", place)
    return files


def load_images(files: Iterable[Path], *, channels: int, threads: int = 8) -> Iterator[Loaded]:
    """Read images in order, some ahead.

    Args:
        files: images, and ``.npz`` archives whose every array of images is taken.
        channels: 1 for gray, 3 for color; other images are converted.
        threads: that decode.
    """
    with ThreadPoolExecutor(threads) as pool:
        stream = iter(files)
        while ahead := list(islice(stream, 64 * threads)):
            for path, result in zip(
                ahead, pool.map(lambda path: _one(path, channels), ahead), strict=True
            ):
                yield from (
                    result if isinstance(result, list) else [Loaded(str(path), *_split(result))]
                )


def _split(result: Tensor | str) -> tuple[Tensor | None, str | None]:
    return (None, result) if isinstance(result, str) else (result, None)


def _one(path: Path, channels: int) -> Any:
    return (
        _archive(path, channels) if path.suffix.lower() == ".npz" else decoded(str(path), channels)
    )


def _archive(path: Path, channels: int) -> list[Loaded]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception:  # Whatever a damaged archive makes NumPy raise.
        return [
            Loaded(
                str(path), None, f"{path} must be an .npz of plain arrays; it is damaged or none"
            )
        ]
    loaded = []
    for key, array in arrays.items():
        if array.ndim not in (3, 4):
            continue
        # One image in color is not some gray ones of three columns.
        images = array[None] if array.ndim == 3 and array.shape[2] == 3 else array
        try:
            pixels = _with_channels(
                torch.from_numpy(as_bytes(images, f"{key} in {path.name}")), channels
            )
            loaded += [
                Loaded(f"{path}:{key}[{index}]", image) for index, image in enumerate(pixels)
            ]
        except DataError as error:
            loaded.append(Loaded(f"{path}:{key}", None, str(error)))
    return loaded or [Loaded(str(path), None, f"{path} must hold arrays of images; it holds none")]


def _with_channels(images: Tensor, channels: int) -> Tensor:
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, -1, -1)
    weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    return (images * weights).sum(1, keepdim=True).round().to(torch.uint8)
