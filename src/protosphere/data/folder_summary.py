"""A look at a folder of images: classes, counts, sizes, and files that cannot be read."""

import os
import statistics
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from protosphere.data.decoding import decode_image
from protosphere.data.folders import ImageFiles, find_split_folders, load_folder
from protosphere.data.progress import Progress, no_progress
from protosphere.data.splits import DataError

_THREADS = 8
_FILES_PER_TASK = 64
_TAIL_BYTES = 64
# Pillow's modes of images without color.
_GRAYSCALE_MODES = ("1", "L", "LA", "La", "I", "F")
# Formats, and the bytes near the end of a file that was written completely.
_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}


@dataclass(frozen=True)
class FolderSummary:
    """What a folder of images holds.

    Attributes:
        path: The folder.
        class_names: Names of the class folders.
        counts: Number of training images of each class.
        test_folder: ``"val"`` or ``"test"``, or None if the folder has no test images.
        num_test: Number of test images.
        sizes: Width and height of each image that can be read, of all splits.
        num_grayscale: Number of images that are stored without color.
        problems: One sentence for each file that cannot be read, with its path.
    """

    path: Path
    class_names: tuple[str, ...]
    counts: tuple[int, ...]
    test_folder: str | None
    num_test: int
    sizes: tuple[tuple[int, int], ...]
    num_grayscale: int
    problems: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def num_train(self) -> int:
        """Number of training images."""
        return sum(self.counts)

    @property
    def imbalance(self) -> float:
        """Number of training images of the largest class, relative to the smallest."""
        return max(self.counts) / min(self.counts)

    @property
    def median_count(self) -> float:
        """Median number of training images of a class."""
        return statistics.median(self.counts)

    @property
    def median_size(self) -> tuple[int, int]:
        """Median width and median height."""
        width, height = (round(statistics.median(side)) for side in zip(*self.sizes, strict=True))
        return width, height

    @property
    def shorter_side(self) -> int:
        """Median of the shorter side of the images."""
        return round(statistics.median(min(size) for size in self.sizes))

    @property
    def shorter_side_range(self) -> tuple[int, int]:
        """Smallest and largest shorter side."""
        sides = [min(size) for size in self.sizes]
        return min(sides), max(sides)


def summarize_folder(path: Path | str, *, progress: Progress = no_progress) -> FolderSummary:
    """Look at a folder of images without decoding them.

    Sizes come from the headers of the files. A JPEG or PNG file without an end is decoded to see
    whether it can be read; damage elsewhere is only found in training.

    Args:
        path: Folder as :func:`~protosphere.data.folders.load_folder` takes it, with or without
            splits.
        progress: Called with the fraction that is done.

    Raises:
        DataError: The folder is not one of images, has fewer than two classes or a class without
            images, or none of its images can be read.
    """
    root = Path(path).expanduser()
    _, test_folder = find_split_folders(root)
    train, test = load_folder(root, require_test=False)
    if train.num_classes < 2:
        raise DataError(
            f"{root} must have at least two class folders; it has one: {train.class_names[0]}"
        )
    headers = _read_headers([*train.paths, *test.paths], progress)
    readable = [header for header in headers if isinstance(header, _Header)]
    problems = tuple(header for header in headers if isinstance(header, str))
    if not readable:
        raise DataError(f"{root} must have images that can be read; {problems[0]}")
    return FolderSummary(
        path=Path(path),
        class_names=train.class_names,
        counts=_counts(train),
        test_folder=None if test_folder is None else test_folder.name,
        num_test=len(test),
        sizes=tuple((header.width, header.height) for header in readable),
        num_grayscale=sum(header.is_grayscale for header in readable),
        problems=problems,
    )


def _counts(files: ImageFiles) -> tuple[int, ...]:
    return tuple(files.labels.bincount(minlength=files.num_classes).tolist())


class _Header(NamedTuple):
    width: int
    height: int
    is_grayscale: bool


def _read_headers(paths: Sequence[str], progress: Callable[[float], None]) -> list[_Header | str]:
    """Read the headers of files in threads; a message stands for one that cannot be read."""
    chunks = [
        paths[start : start + _FILES_PER_TASK] for start in range(0, len(paths), _FILES_PER_TASK)
    ]
    headers: list[_Header | str] = []
    # The filters of warnings belong to the whole process: they are set once, not in the threads.
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(_THREADS) as pool:
        for results in pool.map(lambda chunk: [_read_header(path) for path in chunk], chunks):
            headers += results
            progress(len(headers) / len(paths))
    return headers


def _read_header(path: str) -> _Header | str:
    from PIL import Image  # noqa: PLC0415

    try:
        with Image.open(path) as image:
            width, height = image.size
            is_grayscale = image.mode in _GRAYSCALE_MODES or image.mode.startswith("I;16")
            end = _ENDS.get(image.format or "")
        is_complete = end is None or end in _tail(path)
    except Exception:  # Whatever a damaged file makes Pillow raise; decoding says why.
        is_complete = False
    if not is_complete:
        image_or_problem = decode_image(path)
        if isinstance(image_or_problem, str):
            return image_or_problem
        height, width = image_or_problem.shape[1:]
        is_grayscale = False
    return _Header(width, height, is_grayscale)


def _tail(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        return file.read()
