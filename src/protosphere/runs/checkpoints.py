"""Checkpoints: weights as safetensors and the training state as plain types, with checksums.

A checkpoint is a folder ``step-000001000``. It is written under a temporary name and renamed when
it is complete, so a process may be killed at any moment.
"""

import hashlib
import io
import json
import logging
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from protosphere.runs.folder import RunFolderError
from protosphere.storage.atomic import reason, sync_folder, write_atomically
from protosphere.storage.errors import StorageError

_MANIFEST, _WEIGHTS, _STATE = "checkpoint.json", "weights.safetensors", "state.pt"
_LOG = logging.getLogger("protosphere")


class Checkpoint(NamedTuple):
    """A saved state of a training run.

    Attributes:
        step: Number of training steps done.
        weights: State dict of the trained module.
        state: Everything else that resuming needs (optimizer state and the like), as tensors,
            numbers, strings, lists and dictionaries.
    """

    step: int
    weights: dict[str, Tensor]
    state: dict[str, Any]


def save_checkpoint(
    folder: Path,
    step: int,
    weights: Mapping[str, Tensor],
    state: Mapping[str, Any],
    *,
    keep: int = 2,
    best: int | None = None,
) -> Path:
    """Save a checkpoint atomically, then remove old ones.

    Args:
        folder: Folder of the checkpoints of a run.
        step: Number of training steps done.
        weights: State dict of the trained module, on any device.
        state: Everything else that resuming needs, as plain types.
        keep: Number of checkpoints to keep, including this one.
        best: Step of a checkpoint that is kept beside them, however old it is.

    Returns:
        Path of the checkpoint.

    Raises:
        ValueError: ``keep`` is less than 1.
        StorageError: The checkpoint could not be written. Earlier ones are left unchanged.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    final = folder / _name(step)
    partial = folder / f".{final.name}.part"
    _remove_hidden(folder)
    try:
        partial.mkdir(parents=True)
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        files = {_WEIGHTS: save(plain), _STATE: buffer.getvalue()}
        for name, content in files.items():
            write_atomically(partial / name, content)
        sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        manifest = json.dumps({"step": step, "sha256": sums})
        write_atomically(partial / _MANIFEST, manifest.encode())
        if final.is_dir():
            _hide(final)
        partial.replace(final)
        sync_folder(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise StorageError(f"cannot write {final}: {reason(error)}") from error
    except StorageError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    earlier = [
        path
        for path in _candidates(folder)
        if _step(path) < step and _step(path) != best and _is_complete(path)
    ]
    for old in earlier[: max(0, len(earlier) - keep + 1)]:
        with suppress(OSError):  # An old checkpoint too many does no harm.
            _hide(old)
    _remove_hidden(folder)
    return final


def load_checkpoint(folder: Path, *, step: int | None = None) -> Checkpoint | None:
    """Load the newest undamaged checkpoint, or that of a given step.

    No code stored in a file is executed: weights are safetensors, and the state is unpickled with
    ``weights_only=True``.

    Args:
        folder: Folder of the checkpoints of a run.
        step: Step of the checkpoint to load; None for the newest one.

    Returns:
        The checkpoint, on the CPU; None if the folder has none.

    Raises:
        RunFolderError: The folder has checkpoints, but all of them are damaged, or the one of the
            given step is missing or damaged.
    """
    if step is not None:
        path = folder / _name(step)
        try:
            return _load(path)
        except Exception:  # A damaged file can make its parser raise anything.
            raise RunFolderError(f"{path} is missing or damaged") from None
    damaged = []
    for path in reversed(_candidates(folder)):
        try:
            return _load(path)
        except Exception:  # A damaged file can make its parser raise anything.
            damaged.append(path.name)
            _LOG.warning("%s is damaged and is skipped", path)
    if damaged:
        raise RunFolderError(
            f"all checkpoints in {folder} are damaged ({', '.join(damaged)}); remove the run "
            "folder to start over"
        )
    return None


def has_checkpoint(folder: Path) -> bool:
    """Return whether a folder has a checkpoint, without reading it.

    Args:
        folder: Folder of the checkpoints of a run.
    """
    return last_step(folder) is not None


def last_step(folder: Path) -> int | None:
    """Return the step of the newest checkpoint, without reading it; None if there is none.

    Args:
        folder: Folder of the checkpoints of a run.
    """
    return max((_step(path) for path in _candidates(folder) if _is_complete(path)), default=None)


def _name(step: int) -> str:
    return f"step-{step:09d}"


def _step(path: Path) -> int:
    """Return the step in the name of a checkpoint, or -1 for another name."""
    number = path.name.removeprefix("step-")
    is_step = number.isascii() and number.isdigit() and path.name == _name(int(number))
    return int(number) if is_step else -1


def _candidates(folder: Path) -> list[Path]:
    """Return the folders that are named like a checkpoint, oldest first."""
    paths = [path for path in folder.glob("step-*") if _step(path) >= 0 and path.is_dir()]
    return sorted(paths, key=_step)


def _is_complete(path: Path) -> bool:
    """Whether the files of a checkpoint are there; their content is checked on loading only."""
    return all((path / name).is_file() for name in (_MANIFEST, _WEIGHTS, _STATE))


def _hide(path: Path) -> None:
    """Rename a checkpoint, so that it is gone at once even if the process is killed meanwhile."""
    path.replace(path.with_name(f".{path.name}.old.part"))


def _remove_hidden(folder: Path) -> None:
    """Remove hidden checkpoints and those that a killed process has not finished."""
    for path in folder.glob(".step-*.part"):
        shutil.rmtree(path, ignore_errors=True)


def _load(path: Path) -> Checkpoint:
    manifest = json.loads((path / _MANIFEST).read_text())
    for name, expected in manifest["sha256"].items():
        with (path / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                raise RunFolderError(f"{path / name} does not match its checksum")
    step = int(manifest["step"])
    if path.name != _name(step):
        raise RunFolderError(f"{path} must hold the checkpoint of its step, but holds step {step}")
    state = torch.load(path / _STATE, map_location="cpu", weights_only=True)
    return Checkpoint(step, load_file(path / _WEIGHTS), state)
