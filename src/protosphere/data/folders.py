"""Folders of images: one folder per class, in one folder per split or without splits."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Integer
from torch import Tensor

from protosphere.data.decoding import import_torchvision, read_error
from protosphere.data.file_digests import digest_files
from protosphere.data.splits import ChannelStatistics, DataError, EvaluationCrop

IMAGENET_STATISTICS = ChannelStatistics((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class ImageFiles:
    """Labeled images on disk.

    Attributes:
        paths: Path of each file.
        labels: Class index of each image.
        class_names: Name of each class.
        root: Folder of the dataset. The fingerprint has the paths relative to it.
    """

    paths: tuple[str, ...]
    labels: Integer[Tensor, "samples"]
    class_names: tuple[str, ...]
    root: str = ""

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def num_classes(self) -> int:
        """Number of classes of the dataset, including classes without images in this split."""
        return len(self.class_names)

    @property
    def channels(self) -> int:
        """3: all files are read as RGB."""
        return 3

    @property
    def evaluation_crop(self) -> EvaluationCrop:
        """``"center"``: images have different sizes and are evaluated by their center."""
        return "center"

    def fingerprint(self) -> str:
        """Return a digest of file contents, relative paths, labels and class names.

        It does not depend on where the root folder is. The files are hashed completely if they
        have at most 1 GiB in all; beyond that, the size and three blocks of 4 KiB of each file
        (at the start, in the middle and at the end) stand for its content, because hashing all of
        ImageNet at every start would take too long.

        Raises:
            DataError: A file cannot be read.
        """
        return digest_files(self.paths, self.labels.tolist(), self.class_names, root=self.root)

    def subset(self, index: Integer[Tensor, "subset"]) -> "ImageFiles":
        """Return the images at these indices, in this order."""
        paths = tuple(self.paths[position] for position in index.tolist())
        return replace(self, paths=paths, labels=self.labels[index])

    def channel_statistics(self) -> ChannelStatistics:
        """Return the statistics of ImageNet: computing them would mean decoding all images."""
        return IMAGENET_STATISTICS


def load_folder(
    path: Path | str,
    *,
    classes: Path | str | None = None,
    test_folder: str | None = None,
    require_test: bool = True,
) -> tuple[ImageFiles, ImageFiles]:
    """Find the images in PATH/train/CLASS and PATH/val/CLASS (or PATH/test/CLASS without val).

    A folder without splits, PATH/CLASS, has only training images.

    Args:
        path: Folder of the dataset.
        classes: Text file that lists class folders, one per line; words after the name of a
            folder are ignored. Only these classes are used, and the labels follow the order of
            the list. None uses all class folders of the training images in alphabetical order.
        test_folder: Name of the folder beside train with the images of the test split; None takes
            val, or test without val.
        require_test: Whether a folder of the test split must exist.

    Returns:
        The training split and the test split; the test split is empty if there is no folder for
        it.

    Raises:
        DataError: A folder or the list is missing, or the two splits and the list do not match.
    """
    root = Path(path).expanduser()
    train, test = find_split_folders(root)
    if test_folder is not None:
        test = root / test_folder
        if train == root or not test.is_dir():
            raise DataError(f"{root} must have the folders train and {test_folder}; it has not")
    if test is None and require_test:
        place = "class folders without splits" if train == root else "neither"
        raise DataError(
            f"{root} must have a folder val or test; it has {place} "
            "(data.validation_fraction=0.1 evaluates on a tenth of the training images instead)"
        )
    found = {split: _class_folders(split) for split in (train, test) if split is not None}
    names = (
        found[train]
        if classes is None
        else _listed_classes(Path(classes).expanduser(), found[train])
    )
    for split, folders in found.items():
        if missing := _difference(names, folders):
            raise DataError(
                f"{split} must have a folder for each of the {len(names)} classes; "
                f"missing: {abbreviate(missing)}"
            )
    images = _find_images(train, names, root)
    if test is None:
        return images, images.subset(torch.empty(0, dtype=torch.long))
    if classes is None and (unknown := _difference(found[test], names)):
        raise DataError(
            f"{test} must have only the classes of train; unknown: {abbreviate(unknown)}"
        )
    return images, _find_images(test, names, root)


def find_split_folders(root: Path) -> tuple[Path, Path | None]:
    """Find the folders of the training and test images of a dataset.

    Args:
        root: Folder of the dataset.

    Returns:
        The folder of the training images, which is ``root`` if that has class folders without
        splits, and the folder val or test, or None.

    Raises:
        DataError: The folder does not exist or has no folders in it.
    """
    if not root.is_dir():
        problem = "it is a file" if root.is_file() else "it does not exist"
        raise DataError(
            f"{root} must be a folder of images; {problem} (data.path says where it is)"
        )
    folders = {folder.name for folder in root.iterdir() if folder.is_dir()}
    tests = [name for name in ("val", "test") if name in folders]
    if "train" in folders and (tests or not _is_class_folder(root / "train")):
        return root / "train", root / tests[0] if tests else None
    if tests or not any(not name.startswith(".") for name in folders):
        raise DataError(
            f"{root} must be the folder that contains train, or one folder per class; "
            f"{root / 'train'} does not exist"
        )
    return root, None


def _is_class_folder(folder: Path) -> bool:
    """Whether a folder called train is of a class: it has images, and no folders of classes."""
    content = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return bool(content) and not any(entry.is_dir() for entry in content)


def _find_images(folder: Path, names: Sequence[str], root: Path) -> ImageFiles:
    """Find the images of the classes with these names."""
    torchvision = import_torchvision("datasets.folder")
    indices = {name: index for index, name in enumerate(names)}
    samples = torchvision.make_dataset(
        folder, indices, extensions=torchvision.IMG_EXTENSIONS, allow_empty=True
    )
    # Hidden files are not images: macOS writes ._1.jpg beside 1.jpg on other file systems.
    samples = [sample for sample in samples if sample[0].rpartition(os.sep)[2][0] != "."]
    labels = torch.tensor([label for _, label in samples], dtype=torch.int64)
    counts = torch.bincount(labels, minlength=len(names)).tolist()
    if empty := [name for name, count in zip(names, counts, strict=True) if not count]:
        raise DataError(
            f"{folder} must have images of each class; classes without images: {abbreviate(empty)}"
        )
    return ImageFiles(tuple(path for path, _ in samples), labels, tuple(names), os.fspath(root))


def _class_folders(folder: Path) -> list[str]:
    try:
        names = import_torchvision("datasets.folder").find_classes(folder)[0]
    except FileNotFoundError:
        raise DataError(f"{folder} must have a folder for each class; it has none") from None
    return [name for name in names if not name.startswith(".")]


def _listed_classes(path: Path, folders: Sequence[str]) -> list[str]:
    """Read the list of classes."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} must be a text file of class names; it cannot be read ({read_error(error)})"
        ) from error
    lines = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    known = set(folders)
    names = [line if line in known else line.split()[0] for line in lines]
    if not names:
        raise DataError(f"{path} must have one class name per line; it has none")
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{path} must list each class once; repeated: {abbreviate(repeated)}")
    return names


def _difference(names: Sequence[str], others: Sequence[str]) -> list[str]:
    known = set(others)
    return [name for name in names if name not in known]


def abbreviate(names: Sequence[str]) -> str:
    """Join up to three names, and say how many there are if there are more.

    Args:
        names: The names.
    """
    return ", ".join(names[:3]) + (f", ... ({len(names)} in all)" if len(names) > 3 else "")
