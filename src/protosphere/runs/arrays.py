"""Arrays of the last evaluation, for plots; written and read without torch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from protosphere.runs.folder import RunFolder, RunFolderError
from protosphere.storage.atomic import reason, write_atomically

ARRAYS_FILE = "geometry.safetensors"


def write_arrays(folder: RunFolder, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the arrays of an evaluation atomically, replacing those of an earlier one.

    Args:
        folder: Folder of the run.
        arrays: Arrays by name.

    Raises:
        StorageError: The file could not be written.
    """
    content = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    write_atomically(folder.path / ARRAYS_FILE, content)


def read_arrays(folder: RunFolder) -> dict[str, NDArray[Any]]:
    """Read the arrays of the last evaluation.

    Args:
        folder: Folder of the run.

    Returns:
        Arrays by name.

    Raises:
        RunFolderError: The file is missing, unreadable or damaged.
    """
    path = folder.path / ARRAYS_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise RunFolderError(f"{folder.path} has no {ARRAYS_FILE}") from None
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {reason(error)}") from None
    try:
        return dict(load(content))
    except (SafetensorError, ValueError, KeyError):
        raise RunFolderError(f"{path} is damaged: it is not a safetensors file") from None
