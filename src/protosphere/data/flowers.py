"""Oxford Flowers-102 as image files."""

from pathlib import Path

import torch

from protosphere.data.datasets import ImageDataset
from protosphere.data.decoding import import_torchvision
from protosphere.data.folders import ImageFiles
from protosphere.data.splits import DataError


def load_flowers102(root: Path | str = "data", *, download: bool = False) -> ImageDataset:
    """Load Flowers-102: 2,040 training images and 6,149 test images of 102 classes.

    The training split holds the images of the authors' training and validation sets.

    Args:
        root: Folder of the downloaded datasets.
        download: Whether to download the dataset if it is not in ``root``.

    Raises:
        DataError: torchvision is not installed, or the dataset is missing, damaged or cannot be
            downloaded.
    """
    dataset = import_torchvision("datasets").Flowers102
    try:
        train, val, test = (
            dataset(root, split=split, download=download) for split in ("train", "val", "test")
        )
    except Exception as error:  # Whatever the network, the disk or a damaged archive make it raise.
        if download:
            raise DataError(f"flowers102 could not be downloaded to {root}: {error}") from error
        raise DataError(
            f"flowers102 must be in {root}, or be downloaded (--download); it was not found"
        ) from error
    names = tuple(f"{index:03d}" for index in range(1, 103))

    def files(*splits: object) -> ImageFiles:
        # Torchvision has no public list of the files.
        paths = [str(path) for split in splits for path in split._image_files]  # type: ignore[attr-defined]
        labels = [label for split in splits for label in split._labels]  # type: ignore[attr-defined]
        return ImageFiles(tuple(paths), torch.tensor(labels), names, str(root))

    return ImageDataset("flowers102", files(train, val), files(test))
