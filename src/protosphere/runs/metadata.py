"""Metadata of a run: its data, its classes, and the machine it ran on."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from protosphere import __version__
from protosphere.runs.folder import RunFolder, RunFolderError

_PACKAGES = ("torch", "torchvision", "timm", "numpy")
_DATA, _CLASSES = "data.json", "classes.json"


@dataclass(frozen=True)
class DataMetadata:
    """What a run has recorded about its data.

    Attributes:
        num_train: Number of training samples.
        num_eval: Number of samples that the run is evaluated on.
        split: Split that the run is evaluated on.
        train_fingerprint: Fingerprint of the training images.
        eval_fingerprint: Fingerprint of the images that the run is evaluated on.
        channels: Number of channels of the images.
        mean: Mean of each channel, for normalization.
        std: Standard deviation of each channel, for normalization.
        evaluation_crop: How images are brought to the size of the model for evaluation.
        class_counts: Number of training images of each class; None in runs of version 0.2.0.
        in_memory: Whether training crops came from images in memory; None in runs of 0.2.0.
    """

    num_train: int
    num_eval: int
    split: Literal["test", "validation"]
    train_fingerprint: str
    eval_fingerprint: str
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    evaluation_crop: Literal["center", "resize"]
    class_counts: tuple[int, ...] | None = None
    in_memory: bool | None = None

    def write(self, folder: RunFolder) -> None:
        """Write the metadata to data.json.

        Args:
            folder: Folder of the run.

        Raises:
            StorageError: The file could not be written.
        """
        folder.write_json(_DATA, asdict(self))

    @classmethod
    def read(cls, folder: RunFolder) -> "DataMetadata":
        """Read the metadata from data.json.

        Args:
            folder: Folder of the run.

        Returns:
            The metadata.

        Raises:
            RunFolderError: The file is missing or damaged, or an entry is missing or of another
                type.
        """
        content = folder.read_json(_DATA)
        if not isinstance(content, Mapping):
            raise RunFolderError(f"{folder.path / _DATA} must be a mapping of names to values")
        values: dict[str, Any] = {}
        for field in fields(cls):
            if field.name not in content and field.default is None:
                continue
            if field.name not in content:
                raise RunFolderError(f"{folder.path / _DATA} has no entry {field.name!r}")
            value = content[field.name]
            if not _CHECKS[field.name](value):
                raise RunFolderError(
                    f"{folder.path / _DATA} has an invalid {field.name!r}: {value!r}"
                )
            values[field.name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(number, int | float) for number in value)


def _is_counts(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(map(_is_count, value)))


_CHECKS = {
    "num_train": _is_count,
    "num_eval": _is_count,
    "split": ("test", "validation").__contains__,
    "train_fingerprint": _is_text,
    "eval_fingerprint": _is_text,
    "channels": _is_count,
    "mean": _is_numbers,
    "std": _is_numbers,
    "evaluation_crop": ("center", "resize").__contains__,
    "class_counts": _is_counts,
    "in_memory": (None, False, True).__contains__,
}


def write_class_names(folder: RunFolder, names: Sequence[str]) -> None:
    """Write the class names to classes.json.

    Args:
        folder: Folder of the run.
        names: Class names, in the order of the class indices.

    Raises:
        StorageError: The file could not be written.
    """
    folder.write_json(_CLASSES, list(names))


def read_class_names(folder: RunFolder) -> list[str]:
    """Read the class names from classes.json.

    Args:
        folder: Folder of the run.

    Returns:
        Class names, in the order of the class indices.

    Raises:
        RunFolderError: The file is missing or damaged.
    """
    names = folder.read_json(_CLASSES)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RunFolderError(f"{folder.path / _CLASSES} must be a list of class names")
    return names


def check_class_names(folder: RunFolder, names: Sequence[str]) -> None:
    """Check that data have the classes of a run.

    Args:
        folder: Folder of the run.
        names: Class names of the data, in the order of the class indices.

    Raises:
        RunFolderError: The classes or their order differ.
    """
    if read_class_names(folder) != list(names):
        raise RunFolderError(
            f"{folder.path} needs data with its own classes in its own order; these data have "
            "other classes or another order"
        )


def check_fingerprints(
    folder: RunFolder, *, train: str | None = None, eval: str | None = None
) -> None:
    """Check that images are those of a run.

    Args:
        folder: Folder of the run.
        train: Fingerprint of the training images; None skips the check.
        eval: Fingerprint of the images for evaluation; None skips the check.

    Raises:
        RunFolderError: A fingerprint differs from the one that the run has recorded.
    """
    stored = DataMetadata.read(folder)
    if train is not None and train != stored.train_fingerprint:
        raise RunFolderError(f"{folder.path} was trained on other training images than those given")
    if eval is not None and eval != stored.eval_fingerprint:
        raise RunFolderError(
            f"{folder.path} was evaluated on other {stored.split} images than those given"
        )


def machine(device_name: str) -> dict[str, Any]:
    """Describe the machine and the versions of the installed packages.

    Args:
        device_name: Name of the device, e.g. ``"cpu"`` or ``torch.cuda.get_device_name()``.

    Returns:
        The entries ``python``, ``system``, ``device``, ``versions`` and ``commit``, ready for
        ``RunFolder.write_json("machine.json", ...)``.

    >>> machine("cpu")["device"]
    'cpu'
    """
    versions = {name: _version(name) for name in _PACKAGES}
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": device_name,
        "versions": {"protosphere": __version__} | versions,
        "commit": source_commit(),
    }


def source_commit() -> str | None:
    """Return the commit of protosphere's source, marked ``-dirty`` if files were changed.

    The environment variable ``GIT_COMMIT`` names the commit of a tree that was copied without git.

    Returns:
        The commit; None if protosphere was not imported from a git repository of its own.
    """
    return os.environ.get("GIT_COMMIT") or _git_commit()


@cache
def _git_commit() -> str | None:
    here = Path(__file__)
    # A package that was installed below the repository of another project is not tracked there.
    if _git("ls-files", "--error-unmatch", here.name, folder=here.parent) is None:
        return None
    return _git("describe", "--always", "--dirty", "--exclude=*", "--abbrev=12", folder=here.parent)


def _git(*arguments: str, folder: Path) -> str | None:
    """Return what a git command prints; None if it fails."""
    try:
        completed = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
    except OSError:  # Git is not installed.
        return None
    return None if completed.returncode else completed.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
