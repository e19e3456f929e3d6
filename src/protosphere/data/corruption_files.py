"""Corrupted images from disk: CIFAR-10-C and CIFAR-100-C arrays, and folders as of ImageNet-C.

CIFAR-10-C    FOLDER/labels.npy, FOLDER/CORRUPTION.npy: the test images at severity 1, at 2, ...
ImageNet-C    FOLDER/CORRUPTION/SEVERITY/CLASS/*.JPEG, or FOLDER/GROUP/CORRUPTION/...
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor

from protosphere.data.corruptions import SEVERITIES
from protosphere.data.folders import ImageFiles, abbreviate
from protosphere.data.splits import DataError, ImageSet, image_set

_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")


@dataclass(frozen=True)
class CorruptionArrays:
    """CIFAR-10-C or CIFAR-100-C.

    Attributes:
        folder: Folder of the arrays.
        labels: Class index of each image of one severity.
        class_names: Name of each class.
    """

    folder: Path
    labels: Integer[Tensor, "images"]
    class_names: tuple[str, ...]

    def images(self, name: str, severity: int) -> ImageSet:
        """Return the images of a corruption at a severity, with their labels.

        Raises:
            DataError: The array is damaged or has another shape.
        """
        path = self.folder / f"{name}.npy"
        pixels, count = _read_array(path), len(self.labels)
        if pixels.ndim != 4 or len(pixels) != len(SEVERITIES) * count or pixels.shape[3] != 3:
            raise DataError(
                f"{path} must have shape ({len(SEVERITIES) * count}, height, width, 3), one image "
                f"per label; got {pixels.shape}"
            )
        part = pixels[(severity - 1) * count : severity * count]
        return image_set(part, self.labels.numpy(), self.class_names, source=str(path))


@dataclass(frozen=True)
class CorruptionFolder:
    """ImageNet-C, or folders like it.

    Attributes:
        folders: Folder of each corruption.
        class_names: Name of each class folder, in the order of the class indices.
    """

    folders: dict[str, Path]
    class_names: tuple[str, ...]

    def images(self, name: str, severity: int) -> ImageFiles:
        """Return the images of a corruption at a severity, with their labels.

        Raises:
            DataError: A class has no images.
        """
        folder = self.folders[name] / str(severity)
        paths: list[str] = []
        labels: list[int] = []
        for index, class_name in enumerate(self.class_names):
            found = _find_images(folder / class_name)
            if not found:
                raise DataError(
                    f"{folder} must have images of each class; {class_name} has none (the classes "
                    "of the run must be those of the corrupted images)"
                )
            paths += found
            labels += [index] * len(found)
        return ImageFiles(tuple(paths), torch.tensor(labels), self.class_names, str(folder))


def open_corruption_files(
    folder: Path | str,
    *,
    class_names: Sequence[str],
    corruptions: Sequence[str],
    severities: Sequence[int] = SEVERITIES,
) -> CorruptionArrays | CorruptionFolder:
    """Find corrupted images on disk and check that nothing is missing.

    Args:
        folder: Folder with labels.npy and an array per corruption (CIFAR-10-C, CIFAR-100-C), or
            with a folder per corruption (ImageNet-C).
        class_names: Classes of the run. The folders of a class have its name; of more classes,
            those of the run are used. Labels of arrays are indices of exactly these classes.
        corruptions: Corruptions that must be there.
        severities: Severities that must be there.

    Raises:
        DataError: The folder, a corruption or a severity is missing, or the classes differ.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        problem = "it is a file" if root.is_file() else "it does not exist"
        raise DataError(f"{root} must be a folder of corrupted images; {problem}")
    if (root / "labels.npy").exists():
        return _open_arrays(root, tuple(class_names), corruptions)
    return _open_folders(root, tuple(class_names), corruptions, severities)


def _open_arrays(
    root: Path, class_names: tuple[str, ...], corruptions: Sequence[str]
) -> CorruptionArrays:
    names = [f"{name}.npy" for name in corruptions]
    if missing := [name for name in names if not (root / name).is_file()]:
        raise DataError(
            f"{root} must have an array for each corruption; missing: {abbreviate(missing)}"
        )
    path = root / "labels.npy"
    labels = np.asarray(_read_array(path))
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not labels.size:
        raise DataError(
            f"{path} must hold one class index per image; got {labels.dtype} of shape "
            f"{labels.shape}"
        )
    repeated = labels.reshape(len(SEVERITIES), -1) if len(labels) % len(SEVERITIES) == 0 else None
    if repeated is None or not (repeated == repeated[0]).all():
        raise DataError(
            f"{path} must hold the labels of the test images {len(SEVERITIES)} times, once per "
            "severity; it does not"
        )
    found = len(np.unique(labels))
    if labels.min() < 0 or labels.max() >= len(class_names) or found != len(class_names):
        raise DataError(
            f"{path} must have the {len(class_names)} classes of the run; it has {found}"
        )
    return CorruptionArrays(root, torch.from_numpy(repeated[0].astype(np.int64)), class_names)


def _open_folders(
    root: Path,
    class_names: tuple[str, ...],
    corruptions: Sequence[str],
    severities: Sequence[int],
) -> CorruptionFolder:
    # The archives of ImageNet-C are one per group (noise, blur, ...): these may be folders.
    groups = [root, *sorted(child for child in root.iterdir() if child.is_dir())]
    found = {
        name: group / name
        for group in reversed(groups)
        for name in corruptions
        if (group / name).is_dir()
    }
    missing = [name for name in corruptions if name not in found]
    if len(missing) == len(corruptions):
        raise DataError(
            f"{root} must have labels.npy and an array for each corruption (CIFAR-10-C), or a "
            f"folder for each corruption (ImageNet-C); it has neither {missing[0]} nor labels.npy"
        )
    if missing:
        raise DataError(
            f"{root} must have a folder for each corruption; missing: {abbreviate(missing)}"
        )
    for name in corruptions:
        for severity in severities:
            folder = found[name] / str(severity)
            if not folder.is_dir():
                raise DataError(
                    f"{found[name]} must have a folder for each severity; missing: {severity}"
                )
            absent = [name for name in class_names if not (folder / name).is_dir()]
            if absent:
                raise DataError(
                    f"{folder} must have a folder for each class of the run; missing: "
                    f"{abbreviate(absent)}"
                )
    return CorruptionFolder(found, class_names)


def _find_images(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(
        str(path)
        for path in folder.iterdir()
        if path.suffix.lower() in _SUFFIXES and not path.name.startswith(".")
    )


def _read_array(path: Path) -> Any:
    """Open an array without reading all of it."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise DataError(
            f"{path} must be an array in NumPy's format; it is damaged or in another format"
        ) from None
