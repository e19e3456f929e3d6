"""Where images come from: bundled digits, torchvision's sets, an ``.npz`` of arrays, noise; checked on entry."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Integer, UInt8
from torch import Tensor


class DataError(ValueError):
    """Data are missing or make no sense; the sentence says which and why."""


SomePart = TypeVar("SomePart", bound="Part")


@runtime_checkable
class Part(Protocol):
    """One part of a data set, wherever its images are."""

    @property
    def labels(self) -> Tensor:
        """The class of each image, from 0."""
        ...

    @property
    def class_names(self) -> tuple[str, ...]:
        """One a class."""
        ...

    @property
    def num_classes(self) -> int:
        """How many classes there are, in this part or in another one of the same source."""
        ...

    @property
    def channels(self) -> int:
        """Of each image."""
        ...

    def __len__(self) -> int:
        """How many images there are."""
        ...

    def fingerprint(self) -> str:
        """What tells this part from others."""
        ...

    def chosen(self: SomePart, index: Tensor) -> SomePart:
        """Some of the images, in this order."""
        ...


@dataclass(frozen=True)
class ImageSet:
    """Images in memory, as bytes.

    Attributes:
        images: (samples, channels, height, width).
        labels: the class of each, from 0.
        class_names: one a class.
    """

    images: UInt8[Tensor, "samples channels height width"]
    labels: Integer[Tensor, "samples"]
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """How many classes there are, in this part or in another one of the same source."""
        return len(self.class_names)

    @property
    def channels(self) -> int:
        """Of each image."""
        return self.images.shape[1]

    def fingerprint(self) -> str:
        """What tells this set from others: a digest of images, labels and names."""
        digest = hashlib.sha256(json.dumps(self.class_names).encode())
        for part in (self.labels, self.images):
            digest.update(part.cpu().contiguous().numpy())  # type: ignore[arg-type]
        return digest.hexdigest()

    def chosen(self, index: Integer[Tensor, "chosen"]) -> "ImageSet":
        """Some of the images, in this order."""
        return replace(self, images=self.images[index], labels=self.labels[index])

    def to(self, device: torch.device | str) -> "ImageSet":
        """The same on a device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def channel_statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel, as shares of 255."""
        # Sums of bytes and of their squares are whole numbers, exact in float64.
        pixels = self.images.movedim(1, 0).flatten(1)
        sums = torch.stack([channel.sum(dtype=torch.float64) for channel in pixels])
        squares = torch.stack([_squares(channel) for channel in pixels])
        mean = sums / pixels.shape[1]
        std = (squares / pixels.shape[1] - mean.square()).clamp(min=1e-12).sqrt()
        return tuple((mean / 255).tolist()), tuple((std / 255).tolist())


def _squares(pixels: Tensor) -> Tensor:
    """The sum of squares, some at a time: as float64 the whole set would be eight times its size."""
    return torch.stack([part.double().square().sum() for part in pixels.split(1 << 24)]).sum()


@dataclass(frozen=True)
class Source:
    """The two parts of a data set."""

    name: str
    train: Part
    test: Part


TORCHVISION = {
    "mnist": "MNIST",
    "fashion-mnist": "FashionMNIST",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
}


def load(
    name: str, *, root: Path | str = "data", download: bool = False, path: Path | str | None = None
) -> Source:
    """Load a data set into memory.

    Args:
        name: ``digits`` (bundled with scikit-learn), ``mnist``, ``fashion-mnist``, ``cifar10``, ``cifar100``
            (torchvision's, from ``root``), or ``arrays`` (an ``.npz``).
        root: the folder of downloaded sets.
        download: fetch a set that is not there.
        path: of ``arrays``: a file with x_train, y_train, x_test and y_test.

    Raises:
        DataError: there is no such set, it is not there, or it is damaged.
    """
    if name == "digits":
        return _digits()
    if name in TORCHVISION:
        return _torchvision(name, Path(root), download)
    if name == "arrays":
        if path is None:
            raise DataError("arrays must come from a file; no path was given")
        return _arrays(Path(path))
    names = ", ".join(["digits", *TORCHVISION, "arrays"])
    raise DataError(f"a data set must be one of {names}; got {name!r}")


def synthetic(
    num_classes: int, *, samples: int, resolution: int, channels: int = 3, seed: int = 0
) -> Source:
    """Noise about a random image a class: for trying things out at any size.

    >>> synthetic(10, samples=20, resolution=8).train.images.shape
    torch.Size([20, 3, 8, 8])
    """
    if num_classes < 2 or samples < num_classes or resolution < 1:
        raise DataError(
            f"synthetic data need two classes and a sample of each; got {num_classes} classes and {samples} samples"
        )
    generator = torch.Generator().manual_seed(seed)
    shape = (channels, resolution, resolution)
    centers = torch.randint(16, 144, (num_classes, *shape), generator=generator, dtype=torch.uint8)
    names = tuple(f"class {index}" for index in range(num_classes))

    def part() -> ImageSet:
        labels = torch.arange(samples) % num_classes
        images = torch.randint(0, 97, (samples, *shape), generator=generator, dtype=torch.uint8)
        for own in torch.arange(samples).split(4096):
            images[own] += centers[labels[own]]
        return ImageSet(images, labels, names)

    return Source("synthetic", part(), part())


def hold_out(part: SomePart, share: float, *, seed: int = 0) -> tuple[SomePart, SomePart]:
    """Split a set in two, the same share of each class, the same way each time.

    Args:
        part: the set.
        share: of the second of the two, between 0 and 1.
        seed: of the choice.

    Returns:
        What remains, and what is held out; both in the order of the set.

    Raises:
        DataError: a class would be left without samples on either side.
    """
    if not 0 < share < 1:
        raise DataError(f"the share that is held out must lie between 0 and 1; got {share}")
    generator = torch.Generator().manual_seed(seed)
    held = torch.zeros(len(part), dtype=torch.bool)
    labels = part.labels.cpu()
    for index in range(part.num_classes):
        own = torch.nonzero(labels == index).flatten()
        count = round(share * len(own))
        if not 0 < count < len(own):
            numbers = f"it has {len(own)} and {count} are held out"
            raise DataError(
                f"class {part.class_names[index]} must have samples on both sides; {numbers}"
            )
        held[own[torch.randperm(len(own), generator=generator)[:count]]] = True
    return part.chosen(torch.nonzero(~held).flatten()), part.chosen(torch.nonzero(held).flatten())


def _digits() -> Source:
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415
    except ImportError as error:
        raise DataError(
            'digits need scikit-learn, which is missing: pip install "protosphere[train]"'
        ) from error
    digits = load_digits()
    images = torch.from_numpy(np.round(digits.images * (255 / 16)).astype(np.uint8))[:, None]
    whole = ImageSet(
        images, torch.from_numpy(digits.target.astype(np.int64)), tuple(map(str, range(10)))
    )
    train, test = hold_out(whole, 1 / 3)
    return Source("digits", train, test)


def _torchvision(name: str, root: Path, download: bool) -> Source:
    try:
        import torchvision  # noqa: PLC0415
    except ImportError as error:
        raise DataError(
            f'{name} needs torchvision, which is missing: pip install "protosphere[train]"'
        ) from error
    kind = getattr(torchvision.datasets, TORCHVISION[name])
    try:
        parts = [kind(root, train=train, download=download) for train in (True, False)]
    except Exception as error:  # Whatever the network, the disk or a damaged archive make it raise.
        if download:
            raise DataError(
                f"{name} must be downloaded to {root}; that failed ({error})"
            ) from error
        raise DataError(
            f"{name} must be in {root}, or be downloaded (--download); it is not there"
        ) from error
    train, test = (_image_set(part.data, part.targets, part.classes, name) for part in parts)
    return Source(name, train, test)


def _arrays(path: Path) -> Source:
    try:
        with np.load(path, allow_pickle=False) as file:
            content = {key: file[key] for key in file.files}
    except FileNotFoundError:
        raise DataError(f"{path} must be a file; there is none") from None
    except Exception as error:  # Whatever a damaged archive makes NumPy raise.
        raise DataError(
            f"{path.name} must be an .npz of plain arrays; it is damaged or none"
        ) from error
    missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in content]
    if missing:
        raise DataError(
            f"{path.name} must hold x_train, y_train, x_test and y_test; it has no {', '.join(missing)}"
        )
    names = _names(content, path.name)
    train, test = (
        _image_set(content[f"x_{part}"], content[f"y_{part}"], names, path.name)
        for part in ("train", "test")
    )
    if train.channels != test.channels:
        numbers = f"got {train.channels} and {test.channels}"
        raise DataError(
            f"training and test images of {path.name} must have as many channels; {numbers}"
        )
    return Source(path.stem, train, test)


def _names(content: dict[str, np.ndarray], file: str) -> list[str]:
    """The names of the classes: those of the file, or numbers up to the largest label."""
    given = content.get("class_names")
    if given is not None:
        names = (
            list(map(str, given.tolist())) if given.ndim == 1 and given.dtype.kind == "U" else []
        )
        if not names or len(set(names)) < len(names):
            raise DataError(
                f"class_names of {file} must be a list of different texts; they are none"
            )
        return names
    labels = [content[f"y_{part}"] for part in ("train", "test")]
    if any(part.dtype.kind not in "iu" or not part.size for part in labels):
        return []  # Which is told with the labels themselves.
    largest = max(int(part.max()) for part in labels)
    if largest >= labels[0].size:
        raise DataError(
            f"labels of {file} must number the classes, each with a training image; got {largest}"
        )
    return [f"class {index}" for index in range(largest + 1)]


def as_bytes(images: Any, source: str) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Images as bytes with channels first, (samples, channels, height, width). Raises DataError for what is none."""
    pixels = np.asarray(images)
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    elif pixels.ndim == 4 and pixels.shape[3] in (1, 3) and pixels.shape[1] not in (1, 3):
        pixels = np.moveaxis(pixels, 3, 1)
    if pixels.ndim != 4 or pixels.shape[1] not in (1, 3) or not pixels.size:
        raise DataError(
            f"images of {source} must be (samples, height, width) with 1 or 3 channels; got {pixels.shape}"
        )
    if pixels.dtype.kind == "f":
        if not np.isfinite(pixels).all() or pixels.min() < 0 or pixels.max() > 1:
            raise DataError(f"floating images of {source} must lie between 0 and 1; they do not")
        pixels = np.round(pixels * 255).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise DataError(
            f"images of {source} must be bytes or floats between 0 and 1; got {pixels.dtype}"
        )
    return np.ascontiguousarray(pixels)


def _image_set(images: Any, labels: Any, names: Sequence[str], source: str) -> ImageSet:
    """Images and labels together. Raises DataError unless they make sense."""
    pixels, targets = as_bytes(images, source), np.asarray(labels)
    if targets.shape != (len(pixels),) or targets.dtype.kind not in "iu":
        got = f"{targets.shape} of {targets.dtype}"
        raise DataError(
            f"labels of {source} must be one whole number per image, ({len(pixels)},); got {got}"
        )
    if targets.min() < 0 or targets.max() >= len(names):
        raise DataError(
            f"labels of {source} must lie in 0..{len(names) - 1}; got {targets.min()}..{targets.max()}"
        )
    tensors = torch.from_numpy(pixels), torch.from_numpy(targets.astype(np.int64))
    return ImageSet(*tensors, tuple(map(str, names)))
