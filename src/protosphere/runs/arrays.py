"""Arrays of the last evaluation and of the best one, for plots; written and read without torch.

RUN/geometry.safetensors       arrays of the last evaluation
RUN/geometry-best.safetensors  arrays of the best evaluation by the monitored metric, if that is
                               not the last one

Each file has the step of its evaluation in its metadata, and nothing relies on a file without
looking at the step: a process may be killed between two evaluations, or between the arrays of an
evaluation and its checkpoint, and resume before them. Files of earlier versions have no step.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from protosphere.runs.folder import RunFolder, RunFolderError
from protosphere.storage.atomic import reason, write_atomically

ARRAYS_FILE = "geometry.safetensors"
BEST_ARRAYS_FILE = "geometry-best.safetensors"


class EvaluationArrays(NamedTuple):
    """Arrays of an evaluation.

    Attributes:
        arrays: Arrays by name.
        step: Step of the evaluation; None for the last one of a run of an earlier version.
    """

    arrays: dict[str, NDArray[Any]]
    step: int | None


def write_arrays(
    folder: RunFolder, arrays: Mapping[str, NDArray[Any]], *, step: int | None = None
) -> None:
    """Write the arrays of an evaluation atomically, replacing those of the last one.

    Args:
        folder: Folder of the run.
        arrays: Arrays by name.
        step: Step of the evaluation.

    Raises:
        StorageError: The file could not be written.
    """
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = None if step is None else {"step": str(step)}
    write_atomically(folder.path / ARRAYS_FILE, save(plain, metadata))


def keep_best_arrays(folder: RunFolder, step: int) -> None:
    """Keep the arrays of the best evaluation; call it before those of another one are written.

    If the arrays of the last evaluation are of another step, nothing changes: those of the best
    one were kept before, or a killed process has left arrays of an evaluation that does not count.

    Args:
        folder: Folder of the run.
        step: Step of the best evaluation.

    Raises:
        StorageError: The file could not be written.
    """
    with suppress(RunFolderError):  # Nothing can be kept of a missing or damaged file.
        content = _read_bytes(folder, ARRAYS_FILE)
        if _parse(folder, ARRAYS_FILE, content).step == step:
            write_atomically(folder.path / BEST_ARRAYS_FILE, content)


def discard_best_arrays(folder: RunFolder) -> None:
    """Remove the arrays of an earlier best evaluation, once the last one is the best.

    Call it after the checkpoint of the last evaluation is saved: a run that is resumed before it
    may need the earlier ones.

    Args:
        folder: Folder of the run.
    """
    with suppress(OSError):  # Nothing reads a file of another step.
        (folder.path / BEST_ARRAYS_FILE).unlink(missing_ok=True)


def read_arrays(folder: RunFolder) -> dict[str, NDArray[Any]]:
    """Read the arrays of the last evaluation.

    Args:
        folder: Folder of the run.

    Returns:
        Arrays by name.

    Raises:
        RunFolderError: The file is missing, unreadable or damaged.
    """
    return read_arrays_of(folder, None).arrays


def read_arrays_of(folder: RunFolder, step: int | None) -> EvaluationArrays:
    """Read the arrays of an evaluation, or those of the last one if the others are not there.

    Args:
        folder: Folder of the run.
        step: Step of the evaluation; None for the last one.

    Raises:
        RunFolderError: The file of the last evaluation is missing, unreadable or damaged, and
            there are no others of this step.
    """
    # In this order: a process that is running keeps the best arrays before it writes others.
    last = problem = None
    try:
        last = _parse(folder, ARRAYS_FILE, _read_bytes(folder, ARRAYS_FILE))
    except RunFolderError as error:
        problem = error
    if step is not None and (last is None or last.step != step):
        with suppress(RunFolderError):
            best = _parse(folder, BEST_ARRAYS_FILE, _read_bytes(folder, BEST_ARRAYS_FILE))
            if best.step == step:
                return best
    if last is None:
        assert problem is not None
        raise problem
    return last


def _read_bytes(folder: RunFolder, name: str) -> bytes:
    path = folder.path / name
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise RunFolderError(f"{folder.path} has no {name}") from None
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {reason(error)}") from None


def _parse(folder: RunFolder, name: str, content: bytes) -> EvaluationArrays:
    try:
        arrays = dict(load(content))
        # A safetensors file begins with the length of its header, which is JSON.
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        step = header.get("__metadata__", {}).get("step")
        return EvaluationArrays(arrays, None if step is None else int(step))
    except (SafetensorError, ValueError, KeyError):
        path = folder.path / name
        raise RunFolderError(f"{path} is damaged: it is not a safetensors file") from None
