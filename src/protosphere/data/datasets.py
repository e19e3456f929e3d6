"""Datasets: bundled digits, torchvision's, an ``.npz`` file of arrays, and synthetic images."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from protosphere.data.splits import (
    ChannelStatistics,
    DataError,
    EvaluationCrop,
    ImageSet,
    Split,
    image_set,
    split_validation,
)

__all__ = [
    "TORCHVISION",
    "ChannelStatistics",
    "DataError",
    "EvaluationCrop",
    "ImageDataset",
    "ImageSet",
    "Split",
    "load_arrays",
    "load_digits",
    "load_synthetic",
    "load_torchvision",
    "split_validation",
]

# Our name of a dataset, and the class of torchvision.datasets.
TORCHVISION = {
    "mnist": "MNIST",
    "fashion-mnist": "FashionMNIST",
    "kmnist": "KMNIST",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
}


@dataclass(frozen=True)
class ImageDataset:
    """A dataset with a training and a test split.

    Attributes:
        name: Name of the dataset.
        train: Training split.
        test: Test split, or the validation split in its place.
    """

    name: str
    train: Split
    test: Split


def load_digits() -> ImageDataset:
    """Load scikit-learn's 8 × 8 digits, a third of each class for testing.

    Raises:
        DataError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets  # noqa: PLC0415
    except ImportError as error:
        raise DataError(
            'digits need scikit-learn, which is not installed: pip install "protosphere[train]"'
        ) from error
    digits = datasets.load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    split = image_set(images, digits.target, tuple(map(str, range(10))), source="digits")
    return ImageDataset("digits", *split_validation(split, 1 / 3))


def load_torchvision(
    name: str, *, root: Path | str = "data", download: bool = False
) -> ImageDataset:
    """Load a torchvision dataset into memory.

    Args:
        name: One of the keys of ``TORCHVISION``.
        root: Folder of the downloaded datasets.
        download: Whether to download a dataset that is not in ``root``.

    Raises:
        DataError: The name is unknown, torchvision is not installed, or the dataset is missing,
            damaged or cannot be downloaded.
    """
    if name not in TORCHVISION:
        raise DataError(f"dataset must be one of {', '.join(TORCHVISION)}; got {name!r}")
    try:
        import torchvision  # noqa: PLC0415
    except ImportError as error:
        raise DataError(
            f'{name} needs torchvision, which is not installed: pip install "protosphere[train]"'
        ) from error
    dataset = getattr(torchvision.datasets, TORCHVISION[name])
    try:
        splits = [dataset(root, train=train, download=download) for train in (True, False)]
    except Exception as error:  # Whatever the network, the disk or a damaged archive make it raise.
        if download:
            raise DataError(f"{name} could not be downloaded to {root}: {error}") from error
        raise DataError(
            f"{name} must be in {root}, or be downloaded (--download); it was not found"
        ) from error
    train, test = (
        image_set(split.data, split.targets, split.classes, source=name) for split in splits
    )
    return ImageDataset(name, train, test)


def load_arrays(path: Path | str) -> ImageDataset:
    """Load an ``.npz`` file with the arrays x_train, y_train, x_test and y_test.

    Args:
        path: The file. It may also hold ``class_names``, an array of distinct strings.

    Raises:
        DataError: The file is missing or damaged, or its arrays are not images and labels.
    """
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except FileNotFoundError:
        raise DataError(f"{path} must be an .npz file; it does not exist") from None
    except Exception as error:  # Whatever a damaged archive makes NumPy raise.
        raise DataError(
            f"{path.name} must be an .npz file of plain arrays; it is damaged or in another format"
        ) from error
    missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in arrays]
    if missing:
        raise DataError(
            f"{path.name} must have the arrays x_train, y_train, x_test and y_test; "
            f"missing: {', '.join(missing)}"
        )
    names = _class_names(arrays, path.name)
    train, test = (
        image_set(arrays[f"x_{split}"], arrays[f"y_{split}"], names, source=path.name)
        for split in ("train", "test")
    )
    if train.channels != test.channels:
        raise DataError(
            f"training and test images of {path.name} must have the same number of channels, "
            f"got {train.channels} and {test.channels}"
        )
    return ImageDataset(path.stem, train, test)


def _class_names(arrays: dict[str, np.ndarray], source: str) -> list[str]:
    """Return the class names in the file, or numbered ones up to the largest label."""
    given = arrays.get("class_names")
    if given is not None:
        is_text = given.ndim == 1 and given.dtype.kind == "U"
        names = list(map(str, given.tolist())) if is_text else []
        if not names or len(set(names)) < len(names):
            raise DataError(
                f"class_names of {source} must be a one-dimensional array of distinct strings, "
                f"got {given.dtype} of shape {given.shape}"
            )
        return names
    labels = [arrays[f"y_{split}"] for split in ("train", "test")]
    if any(split.dtype.kind not in "iu" or not split.size for split in labels):
        return []  # image_set rejects these labels with a message of its own.
    largest = max(int(split.max()) for split in labels)
    if largest >= labels[0].size:
        raise DataError(
            f"labels of {source} must be class indices, and each class must have a training "
            f"image; got label {largest} with {labels[0].size} training images"
        )
    return [f"class {index}" for index in range(largest + 1)]


def load_synthetic(
    *, num_classes: int, num_samples: int, image_size: int, channels: int = 3, seed: int = 0
) -> ImageDataset:
    """Generate images that are a random image per class plus noise.

    Args:
        num_classes: Number of classes, at least 2.
        num_samples: Number of images in each split, at least one per class.
        image_size: Side of the images in pixels.
        channels: Number of image channels.
        seed: Seed of the random images.

    Raises:
        DataError: An argument is out of its range.

    >>> dataset = load_synthetic(num_classes=10, num_samples=20, image_size=8)
    >>> dataset.train.images.shape
    torch.Size([20, 3, 8, 8])
    """
    if num_classes < 2:
        raise DataError(f"num_classes must be at least 2, got {num_classes}")
    if num_samples < num_classes:
        raise DataError(
            f"num_samples must be at least num_classes, got {num_samples} for {num_classes} classes"
        )
    if image_size < 1:
        raise DataError(f"image_size must be at least 1, got {image_size}")
    generator = torch.Generator().manual_seed(seed)
    shape = (channels, image_size, image_size)
    centers = torch.randint(16, 144, (num_classes, *shape), generator=generator, dtype=torch.uint8)
    names = tuple(f"class {index}" for index in range(num_classes))

    def generate() -> ImageSet:
        labels = torch.arange(num_samples) % num_classes
        images = torch.randint(0, 97, (num_samples, *shape), generator=generator, dtype=torch.uint8)
        for chunk in torch.arange(num_samples).split(4096):
            images[chunk] += centers[labels[chunk]]
        return ImageSet(images, labels, names)

    return ImageDataset("synthetic", generate(), generate())
