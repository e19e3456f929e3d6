"""Folders of images, one a class: found by torchvision, decoded and cut by workers, augmented on the device."""

import hashlib
import importlib
import json
import os
import warnings
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Integer, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from protosphere.data.augmentation import Augmentation
from protosphere.data.datasets import DataError
from protosphere.data.loaders import Batch, shuffled, whole_batches

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# What a worker is asked for: a file, and the seed, epoch and index that decide its crop; without them it is evaluated.
_Key = tuple[str, tuple[int, int, int] | None]


@dataclass(frozen=True)
class ImageFiles:
    """Images on disk.

    Attributes:
        paths: their files.
        labels: the class of each, from 0.
        class_names: one a class.
    """

    paths: tuple[str, ...]
    labels: Integer[Tensor, "samples"]
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def num_classes(self) -> int:
        """How many classes there are, in this part or in another one of the same folder."""
        return len(self.class_names)

    @property
    def channels(self) -> int:
        """Always 3: whatever a file holds is read as RGB."""
        return 3

    def fingerprint(self) -> str:
        """What tells this set from others: a digest of names and labels, wherever the folder is."""
        digest = hashlib.sha256(json.dumps(self.class_names).encode())
        digest.update(self.labels.contiguous().numpy())  # type: ignore[arg-type]
        for path in self.paths:
            digest.update("/".join(Path(path).parts[-2:]).encode() + b"\n")
        return digest.hexdigest()

    def chosen(self, index: Integer[Tensor, "chosen"]) -> "ImageFiles":
        """Some of the images, in this order."""
        return replace(
            self, paths=tuple(self.paths[one] for one in index.tolist()), labels=self.labels[index]
        )


def load_folder(
    path: Path | str,
    *,
    classes: Path | str | None = None,
    test_part: Literal["needed", "optional"] = "needed",
) -> tuple[ImageFiles, ImageFiles]:
    """Find the images of PATH/train/CLASS and PATH/val/CLASS, or PATH/test/CLASS where there is no val.

    Args:
        path: the folder.
        classes: a text file with a class folder a line, its name alone or before other words; only these are taken,
            and labels follow its order. Without it all of train are, sorted.
        test_part: whether there must be a folder val or test.

    Returns:
        The images to train with, and those to evaluate with, if any.

    Raises:
        DataError: something is not there, or the two parts and the list do not agree.
    """
    root = Path(path).expanduser()
    train = root / "train"
    test = root / "val" if (root / "val").is_dir() else root / "test"
    if not root.is_dir():
        raise DataError(f"{root} must be a folder of images; there is none")
    if not train.is_dir():
        raise DataError(f"{root} must have a folder train; it is not there")
    if not test.is_dir() and test_part == "needed":
        raise DataError(f"{root} must have a folder val or test; neither is there")
    present = {part: _folders(part) for part in (train, test) if part.is_dir()}
    names = (
        present[train] if classes is None else _listed(Path(classes).expanduser(), present[train])
    )
    for part, own in present.items():
        if missing := _without(names, own):
            numbers = f"it lacks {len(missing)} ({_few(missing)})"
            raise DataError(
                f"{part} must have a folder for each of the {len(names)} classes; {numbers}"
            )
    images = _image_files(train, names)
    if test not in present:
        return images, images.chosen(torch.empty(0, dtype=torch.long))
    if classes is None and (unknown := _without(present[test], names)):
        raise DataError(
            f"{test} must have the classes of train only; got {len(unknown)} more ({_few(unknown)})"
        )
    return images, _image_files(test, names)


class FileFeed:
    """A set that stays on disk; workers decode and cut, the device does the rest of the augmentation.

    What a sample looks like is decided by seed, epoch and its index, not by how many workers there are. They live as
    long as the feed. Batches of one epoch at a time: once another is begun, the earlier one cannot be continued.

    Args:
        data: the files.
        augmentation: what is done to the images.
        device: where batches come out.
        views: how often each image of a batch is cut and augmented, each time anew.
        workers: processes, no more than there are cores; with 0 this one decodes.

    Raises:
        DataError: torchvision is missing; and, while batches are taken, for an image that cannot be read.
    """

    def __init__(
        self,
        data: ImageFiles,
        augmentation: Augmentation,
        *,
        device: torch.device | str,
        views: int = 1,
        workers: int = 8,
    ) -> None:
        if workers < 0:
            raise DataError(f"workers must be 0 or more; got {workers}")
        self.data = data
        self.augmentation = augmentation
        self._device = torch.device(device)
        self._rest = (
            augmentation if augmentation.crop == "padded" else replace(augmentation, crop="none")
        )
        cut = _Cut(augmentation, views)
        self._training, self._evaluation = (_Decoded(cut, self._device, workers) for _ in range(2))

    @property
    def device(self) -> torch.device:
        """Where batches come out."""
        return self._device

    def __len__(self) -> int:
        return len(self.data)

    def batches(
        self, size: int, *, seed: int, epoch: int, first: int = 0
    ) -> Iterator[tuple[Tensor, ...]]:
        """Images, cut but otherwise as they are, (samples, views, channels, size, size), and labels."""
        paths = self.data.paths
        order = shuffled(len(self), seed=seed, epoch=epoch)
        labels = self.data.labels[order].to(self.device)
        starts = range(first * size, whole_batches(len(self), size) * size, size)
        keys: Iterator[list[_Key]] = (
            [(paths[index], (seed, epoch, index)) for index in order[start : start + size].tolist()]
            for start in starts
        )
        for start, images in zip(starts, self._training.batches(keys), strict=True):
            yield images, labels[start : start + size]

    def prepared(self, *parts: Tensor) -> Batch:
        """The augmentation less its crop, which the workers have made; shifts of padded crops are made here."""
        images, labels = parts
        views = images.shape[1]
        return self._rest(images.transpose(0, 1).flatten(0, 1)), labels.repeat(views)

    def in_order(self, size: int) -> Iterator[Batch]:
        """All samples, the middle of each."""
        clean = self.augmentation.clean()
        labels = self.data.labels.to(self.device)
        starts = range(0, len(self), size)
        paths = self.data.paths
        keys: Iterator[list[_Key]] = (
            [(path, None) for path in paths[start : start + size]] for start in starts
        )
        for start, images in zip(starts, self._evaluation.batches(keys), strict=True):
            yield clean(images.squeeze(1)), labels[start : start + size]


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """What a sample's crop is drawn with: 32 bits, as many as the CPU's generator takes.

    >>> sample_seed(0, 1, 2) == sample_seed(0, 1, 2), sample_seed(0, 1, 2) == sample_seed(0, 2, 1)
    (True, False)
    """
    return int(np.random.SeedSequence((seed % (1 << 64), epoch, index)).generate_state(1)[0])


class _Cut(Dataset[Tensor | str]):
    """Bytes of an image of the right size, once a view; for one that cannot be read, the sentence that says so."""

    def __init__(self, augmentation: Augmentation, views: int) -> None:
        self.views = views
        size = augmentation.size
        self.evaluation = partial(middle, size=size)
        self.training = {
            "resized": _torchvision("transforms.v2").RandomResizedCrop(
                size, scale=augmentation.scale, antialias=True
            ),
            "padded": partial(middle, size=size, share=1.0),
            "none": self.evaluation,
        }[augmentation.crop]

    def __getitem__(self, key: _Key) -> Tensor | str:
        path, drawn = key
        pixels = decoded(path)
        if isinstance(pixels, str):
            return pixels
        if drawn is None:
            return self.evaluation(pixels)[None]
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would seed the GPU as well.
            torch.default_generator.manual_seed(sample_seed(*drawn))
            return torch.stack([self.training(pixels) for _ in range(self.views)])


def middle(
    image: UInt8[Tensor, "channels height width"], size: int, share: float = 0.875
) -> Tensor:
    """The middle of an image, a square of this size that has this share of its shorter side; as torchvision resizes.

    A very long image is shortened first: resized as a whole it could take gigabytes.
    """
    functional = _torchvision("transforms.v2.functional")
    longest = 4 * min(image.shape[1:])
    sides = [
        min(side, longest + side % 2) for side in image.shape[1:]
    ]  # What is cut off is as much on both ends.
    resized = functional.resize(
        functional.center_crop(image, sides), [round(size / share)], antialias=True
    )
    cut: Tensor = functional.center_crop(resized, [size, size])
    return cut


def decoded(path: str, channels: int = 3) -> Tensor | str:
    """The bytes of an image, in color or in gray; or, for one that cannot be read, the sentence that says so."""
    from PIL import Image  # noqa: PLC0415

    try:
        with warnings.catch_warnings(action="ignore"), Image.open(path) as image:
            converted = _of_eight_bits(_upright(image)).convert("RGB" if channels == 3 else "L")
            pixels = torch.from_numpy(np.array(converted))
    except Exception as error:  # Whatever a damaged file makes Pillow raise.
        return f"{path} must be an image; it cannot be read ({_reason(error)})"
    return pixels.movedim(2, 0).contiguous() if channels == 3 else pixels[None]


def _of_eight_bits(image: Any) -> Any:
    """Gray images of sixteen bits, which Pillow would cut off at 255."""
    if not image.mode.startswith(("I", "F")):
        return image
    from PIL import Image  # noqa: PLC0415

    levels = np.asarray(image)
    if image.mode == "F" or levels.min() < 0 or levels.max() > 65535:
        raise DataError("its pixels are neither of eight nor of sixteen bits")
    return Image.fromarray((levels.astype(np.float64) / 257).round().astype(np.uint8))


def _upright(image: Any) -> Any:
    """As viewers show it: turned as the camera noted."""
    from PIL import ImageOps  # noqa: PLC0415

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # Whatever a damaged note makes its parser raise: the pixels may be whole.
        return image


class _Decoded:
    """A loader that is told anew, each time, which batches to load."""

    def __init__(self, cut: _Cut, device: torch.device, workers: int) -> None:
        cores = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
        count = min(workers, cores)
        self.device = device
        self.order = _Order()
        self.loader: DataLoader[Tensor | str] = DataLoader(
            cut, batch_sampler=self.order, num_workers=count, collate_fn=_collated, worker_init_fn=_apart,
            persistent_workers=count > 0, pin_memory=device.type == "cuda", generator=torch.Generator(),
        )  # fmt: skip
        # Were the loader collected in a cycle with this, its queues would close before its workers are told to end,
        # and it would wait five seconds for each.
        weakref.finalize(self, lambda _: None, self.loader).atexit = False

    def batches(self, keys: Iterator[list[_Key]]) -> Iterator[Tensor]:
        self.order.keys = keys
        for images in self.loader:
            if isinstance(images, str):
                raise DataError(images)
            yield images.to(self.device, non_blocking=True)
            if self.order.keys is not keys:
                raise DataError(
                    "batches must all be taken before others are begun; others have been"
                )


def _apart(_: int) -> None:
    """Workers leave the group of processes that is asked to stop as one: their parent has a step to finish."""
    os.setpgid(0, 0)


class _Order(Iterable[list[_Key]]):
    """The batches to load; the loader asks once for each epoch."""

    keys: Iterator[list[_Key]] = iter(())

    def __iter__(self) -> Iterator[list[_Key]]:
        return self.keys


def _collated(samples: list[Tensor | str]) -> Any:
    return next((sample for sample in samples if isinstance(sample, str)), None) or default_collate(
        samples
    )


def _image_files(part: Path, names: Sequence[str]) -> ImageFiles:
    folder = _torchvision("datasets.folder")
    indices = {name: index for index, name in enumerate(names)}
    found = folder.make_dataset(part, indices, extensions=folder.IMG_EXTENSIONS, allow_empty=True)
    labels = torch.tensor([label for _, label in found], dtype=torch.int64)
    counts = torch.bincount(labels, minlength=len(names)).tolist()
    if empty := [name for name, count in zip(names, counts, strict=True) if not count]:
        raise DataError(
            f"{part} must have images of each class; it has none of {len(empty)} ({_few(empty)})"
        )
    return ImageFiles(tuple(path for path, _ in found), labels, tuple(names))


def _folders(part: Path) -> list[str]:
    try:
        found = _torchvision("datasets.folder").find_classes(part)[0]
    except FileNotFoundError:
        raise DataError(f"{part} must have a folder for each class; it has none") from None
    return [name for name in found if not name.startswith(".")]


def _listed(path: Path, folders: Sequence[str]) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} must be a text of class names; it cannot be read ({_reason(error)})"
        ) from error
    lines = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    known = set(folders)
    names = [line if line in known else line.split()[0] for line in lines]
    if not names:
        raise DataError(f"{path} must name a class a line; it names none")
    if again := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{path} must name each class once; got {_few(again)} more than once")
    return names


def _without(names: Sequence[str], others: Sequence[str]) -> list[str]:
    known = set(others)
    return [name for name in names if name not in known]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _reason(error: Exception) -> str:
    """Why a file cannot be read: the system's words where it is the system that refuses, ours where we do."""
    if isinstance(error, DataError):
        return str(error)
    return (isinstance(error, OSError) and error.strerror) or "damaged or none"


def _torchvision(part: str) -> Any:
    try:
        return importlib.import_module(f"torchvision.{part}")
    except ImportError as error:
        raise DataError(
            'folders need torchvision, which is missing: pip install "protosphere[train]"'
        ) from error
