"""Sets to transfer to: those of torchvision, folders of images, and ``.npz`` files of arrays."""

import difflib
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from protosphere.data.datasets import TORCHVISION, load_arrays, load_digits, load_torchvision
from protosphere.data.decoding import import_torchvision
from protosphere.data.folders import ImageFiles, find_split_folders, load_folder
from protosphere.data.splits import DataError, ImageSet, Split
from protosphere.data.voc import VOC_CLASSES, read_annotations

TransferMetric = Literal["top1", "mean_per_class", "map"]
StoredImages: TypeAlias = ImageSet | ImageFiles
VALIDATION_FRACTION = 0.2


@dataclass(frozen=True)
class TransferSplit:
    """Images of a set to transfer to, with what is to be predicted.

    Attributes:
        images: The images; of a set with several labels per image, their own labels are not used.
        targets: Class index of each image; or, of a set with several labels per image, 1 for
            each class that is in the image, 0 for each that is not, and -1 where it does not count.
    """

    images: StoredImages
    targets: Integer[Tensor, "samples *classes"]

    def __len__(self) -> int:
        return len(self.targets)

    @cached_property
    def fingerprint(self) -> str:
        """A digest that changes when images, targets or class names change."""
        digest = hashlib.sha256(self.images.fingerprint().encode())
        digest.update(self.targets.cpu().contiguous().numpy())  # type: ignore[arg-type]
        return digest.hexdigest()


@dataclass(frozen=True)
class TransferSet:
    """A set to transfer to.

    Attributes:
        name: Name of the set.
        metric: The metric that is reported for it by convention.
        class_names: Name of each class.
        train: Images that a classifier is fitted to in the end.
        test: Images that it is evaluated on.
        is_validation: Which of the training images settings are chosen on: the official
            validation images, or a random fraction of each class.
    """

    name: str
    metric: TransferMetric
    class_names: tuple[str, ...]
    train: TransferSplit
    test: TransferSplit
    is_validation: Bool[Tensor, "samples"]

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)


class TargetName(NamedTuple):
    """What names a set: a known name, a path, or both.

    Attributes:
        name: Name of the set.
        path: Folder or ``.npz`` file; None for a known set in the folder of downloaded data.
    """

    name: str
    path: Path | None


class _Loaded(NamedTuple):
    """The splits of a set; without an official validation part, ``is_validation`` is None."""

    train: TransferSplit
    test: TransferSplit
    class_names: tuple[str, ...]
    is_validation: Tensor | None = None


class _Entry(NamedTuple):
    """How a known set is loaded from a root folder, and its metric."""

    load: Callable[[str, Path, bool], _Loaded]
    metric: TransferMetric


def parse_target(
    text: str, *, others: Sequence[str] = (), what: str = "a set to transfer to"
) -> TargetName:
    """Return the name and the path that an argument stands for.

    Args:
        text: Name of a known set, the path of a folder or an ``.npz`` file, or ``NAME=PATH``, which
            reads a set from a path: a known name also stands for its metric.
        others: Further names to offer in the error message.
        what: What the error message calls it.

    Raises:
        DataError: It is neither a known name nor an existing path.

    >>> parse_target("cifar10")
    TargetName(name='cifar10', path=None)
    """
    if text in TRANSFER_SETS:
        return TargetName(text, None)
    path = Path(text).expanduser()
    if path.exists():
        return TargetName(path.resolve().stem if path.is_file() else path.resolve().name, path)
    name, separator, rest = text.partition("=")
    if separator and name and rest:
        named = Path(rest).expanduser()
        if not named.exists():
            raise DataError(
                f"{name} must be read from a folder or an .npz file; {named} does not exist"
            )
        return TargetName(name, named)
    if path.suffix or len(path.parts) > 1:
        raise DataError(f"{path} must be a folder or an .npz file; it does not exist")
    names = [*TRANSFER_SETS, *others]
    near = difflib.get_close_matches(text.lower(), names, 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise DataError(
        f"{what} must be one of {', '.join(names)}, a folder or an .npz file; got {text!r}{hint}"
    )


def load_transfer_set(
    target: TargetName | str, *, root: Path | str = "data", download: bool = False, seed: int = 0
) -> TransferSet:
    """Load a set to transfer to.

    Args:
        target: What :func:`parse_target` returns, or the text that it takes.
        root: Folder of downloaded datasets.
        download: Whether a known set that is not in ``root`` is downloaded.
        seed: Seed of the validation part, for sets without an official one.

    Raises:
        DataError: The set is unknown, missing or damaged, its splits have different classes, or a
            class of the test images has no training images.
    """
    name, path = parse_target(target) if isinstance(target, str) else target
    entry = TRANSFER_SETS.get(name)
    if path is not None:
        if name == "voc2007":
            raise DataError(
                "voc2007 has several labels per image, so it must be in the folder VOCdevkit of "
                f"--root; got {path}"
            )
        loaded = _load_path(path)
    else:
        assert entry is not None
        loaded = entry.load(name, Path(root).expanduser(), download)
    metric = "top1" if entry is None else entry.metric
    return _create(name, metric, loaded, seed)


def transfer_set(
    name: str, metric: TransferMetric, train: Split, test: Split, *, seed: int = 0
) -> TransferSet:
    """Create a set to transfer to from two splits, with a random validation part.

    Args:
        name: Name of the set.
        metric: The metric to report.
        train: Training images.
        test: Test images.
        seed: Seed of the validation part.

    Raises:
        DataError: A class of the test images has no training images.
    """
    return _create(name, metric, _labeled(train, test), seed)


def _create(name: str, metric: TransferMetric, loaded: _Loaded, seed: int) -> TransferSet:
    train, test, class_names, is_validation = loaded
    if not len(train) or not len(test):
        raise DataError(
            f"{name} must have training and test images, got {len(train)} and {len(test)}"
        )
    if train.targets.ndim == 1:
        _check_classes(name, train.targets, test.targets, class_names)
    if is_validation is None:
        is_validation = stratified_mask(train.targets, fraction=VALIDATION_FRACTION, seed=seed)
    return TransferSet(name, metric, class_names, train, test, is_validation)


def _check_classes(name: str, train: Tensor, test: Tensor, class_names: Sequence[str]) -> None:
    counts = torch.bincount(train, minlength=len(class_names))
    missing = sorted(set(test.tolist()) - set(counts.nonzero().flatten().tolist()))
    if missing:
        raise DataError(
            f"every class of the test images of {name} must have training images; "
            f"{class_names[missing[0]]} has none"
        )


def stratified_mask(
    labels: Integer[Tensor, "samples"], *, fraction: float, seed: int
) -> Bool[Tensor, "samples"]:
    """Select a random fraction of each class; a class with one sample is not selected.

    Args:
        labels: Class index of each sample.
        fraction: Fraction of each class, at least one of its samples and not all of them.
        seed: Seed of the random choice.

    >>> stratified_mask(torch.tensor([0, 0, 0, 0, 1, 1, 2]), fraction=0.25, seed=0).sum()
    tensor(2)
    """
    generator = torch.Generator().manual_seed(seed)
    selected = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique().tolist():
        members = torch.nonzero(labels == label).flatten()
        order = torch.randperm(len(members), generator=generator)
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        selected[members[order[:count]]] = True
    return selected


def _labeled(train: Split, test: Split, is_validation: Tensor | None = None) -> _Loaded:
    assert isinstance(train, ImageSet | ImageFiles)
    assert isinstance(test, ImageSet | ImageFiles)
    return _Loaded(
        TransferSplit(train, train.labels),
        TransferSplit(test, test.labels),
        train.class_names,
        is_validation,
    )


def _load_path(path: Path) -> _Loaded:
    """Load a folder or an ``.npz`` file."""
    if path.is_file():
        dataset = load_arrays(path)
        return _labeled(dataset.train, dataset.test)
    train, test = find_split_folders(path)
    if test is None:
        problem = "class folders without splits" if train == path else "only train"
        raise DataError(f"{path} must have the folders train and test (or val); it has {problem}")
    if (path / "val").is_dir() and (path / "test").is_dir():
        images, validation = load_folder(path, test_folder="val")
        _, tests = load_folder(path, test_folder="test")
        return _labeled(*_join(images, validation, tests))
    return _labeled(*load_folder(path))


def _join(
    train: ImageFiles, validation: ImageFiles, test: ImageFiles
) -> tuple[ImageFiles, ImageFiles, Tensor]:
    """Return training and validation images together, the test images, and which validate."""
    labels = torch.cat([train.labels, validation.labels])
    joined = ImageFiles(train.paths + validation.paths, labels, train.class_names, train.root)
    return joined, test, torch.arange(len(joined)) >= len(train)


def _load_in_memory(name: str, root: Path, download: bool) -> _Loaded:
    dataset = (
        load_digits() if name == "digits" else load_torchvision(name, root=root, download=download)
    )
    return _labeled(dataset.train, dataset.test)


def _open(name: str, root: Path, download: bool, arguments: Sequence[dict[str, Any]]) -> list[Any]:
    """Open splits of a set of torchvision, which is downloaded only if it is not there."""
    dataset = getattr(import_torchvision("datasets"), _TORCHVISION_FILES[name])
    try:
        return [dataset(os.fspath(root), **keywords) for keywords in arguments]
    except Exception as error:  # Whatever missing or damaged files make it raise.
        if name == "cars":
            raise DataError(
                "cars must be in the folder stanford_cars of "
                f"{root}, or be given as a folder with train and test, --to cars=PATH: the "
                "official download of Stanford Cars is gone"
            ) from error
        if not download:
            raise DataError(
                f"{name} must be in {root}, or be downloaded (--download); it was not found"
            ) from error
    try:
        return [dataset(os.fspath(root), download=True, **keywords) for keywords in arguments]
    except Exception as error:  # Whatever the network, the disk or a damaged archive make it raise.
        raise DataError(f"{name} could not be downloaded to {root}: {error}") from error


def _load_files(name: str, root: Path, download: bool) -> _Loaded:
    """Load a set of torchvision whose images are files, with one label each."""
    splits = _SPLITS[name]
    extra = {"partition": 1} if name == "dtd" else {}
    opened = _open(name, root, download, [{"split": split, **extra} for split in splits])
    classes = [tuple(map(str, dataset.classes)) for dataset in opened]
    if len(set(classes)) > 1:
        raise DataError(f"all splits of {name} in {root} must have the same classes; they have not")
    files = [_image_files(dataset, classes[0], root) for dataset in opened]
    if len(files) == 3:
        return _labeled(*_join(*files))
    return _labeled(files[0], files[1])


def _image_files(dataset: Any, class_names: tuple[str, ...], root: Path) -> ImageFiles:
    # Torchvision has no public list of the files.
    samples = getattr(dataset, "_samples", None)
    if samples is None:
        paths = dataset._images if hasattr(dataset, "_images") else dataset._image_files
        samples = list(zip(paths, dataset._labels, strict=True))
    labels = torch.tensor([int(label) for _, label in samples], dtype=torch.long)
    return ImageFiles(tuple(str(path) for path, _ in samples), labels, class_names, str(root))


def _load_voc(name: str, root: Path, download: bool) -> _Loaded:
    """Load VOC2007: trainval and test, the official val as validation images."""
    arguments = [{"year": "2007", "image_set": split} for split in ("trainval", "test", "val")]
    trainval, test, validation = _open(name, root, download, arguments)

    def split(dataset: Any) -> TransferSplit:
        targets = read_annotations(dataset.annotations)
        paths, unused = tuple(dataset.images), torch.zeros(len(targets), dtype=torch.long)
        return TransferSplit(ImageFiles(paths, unused, VOC_CLASSES, str(root)), targets)

    held_out = set(validation.images)
    is_validation = torch.tensor([path in held_out for path in trainval.images])
    return _Loaded(split(trainval), split(test), VOC_CLASSES, is_validation)


_TORCHVISION_FILES = {
    "food101": "Food101",
    "cars": "StanfordCars",
    "dtd": "DTD",
    "pets": "OxfordIIITPet",
    "flowers102": "Flowers102",
    "voc2007": "VOCDetection",
}
# Training, validation where there is an official one, and test.
_SPLITS = {
    "food101": ("train", "test"),
    "cars": ("train", "test"),
    "dtd": ("train", "val", "test"),
    "pets": ("trainval", "test"),
    "flowers102": ("train", "val", "test"),
}
# The sets that can be named, in the order of the paper's table; others follow.
TRANSFER_SETS: dict[str, _Entry] = {
    "food101": _Entry(_load_files, "top1"),
    "cifar10": _Entry(_load_in_memory, "top1"),
    "cifar100": _Entry(_load_in_memory, "top1"),
    "cars": _Entry(_load_files, "top1"),
    "dtd": _Entry(_load_files, "top1"),
    "pets": _Entry(_load_files, "mean_per_class"),
    "flowers102": _Entry(_load_files, "mean_per_class"),
    "voc2007": _Entry(_load_voc, "map"),
    **{
        name: _Entry(_load_in_memory, "top1")
        for name in ("digits", *TORCHVISION)
        if not name.startswith("cifar")
    },
}
