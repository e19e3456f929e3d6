"""Checkpoints: weights as safetensors, the rest as plain types; whole or not there, checked on loading, two kept."""

import hashlib
import io
import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from protosphere.runs.folder import RunFolderError
from protosphere.storage.atomic import reason, sync_folder, write_atomically
from protosphere.storage.errors import StorageError

_KEPT = 2
_LOG = logging.getLogger("protosphere")


class Checkpoint(NamedTuple):
    """What was saved.

    Attributes:
        step: after which it was saved.
        weights: by name.
        state: of the optimizer, the random numbers and the like: tensors, numbers, texts, lists and dictionaries.
    """

    step: int
    weights: dict[str, Tensor]
    state: dict[str, Any]


def save_checkpoint(
    folder: Path, step: int, weights: Mapping[str, Tensor], state: Mapping[str, Any]
) -> Path:
    """Save a checkpoint; it appears whole, or not at all. Older ones but the last go.

    Args:
        folder: of the run's checkpoints.
        step: after which it is saved.
        weights: by name, on any device.
        state: whatever resuming needs, of plain types.

    Returns:
        Where it is.

    Raises:
        StorageError: it could not be written; earlier checkpoints are as they were.
    """
    final = folder / _name(step)
    part = folder / f".{final.name}.part"
    for stale in folder.glob(".step-*.part"):  # Of processes that died while they saved.
        shutil.rmtree(stale, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        files = {"weights.safetensors": save(plain), "state.pt": buffer.getvalue()}
        for name, content in files.items():
            write_atomically(part / name, content)
        sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        write_atomically(
            part / "checkpoint.json", json.dumps({"step": step, "sha256": sums}).encode()
        )
        if final.exists():
            shutil.rmtree(final)
        part.replace(final)
        sync_folder(folder)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise StorageError(f"cannot write {final}: {reason(error)}") from error
    except StorageError:
        shutil.rmtree(part, ignore_errors=True)
        raise
    for old in _steps(folder)[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None if none was ever saved.

    Nothing in it is executed: weights are safetensors, the rest is read as plain types only.

    Raises:
        RunFolderError: there are checkpoints, and none of them is whole.
    """
    problems = []
    for path in reversed(_steps(folder)):
        try:
            return _load(path)
        except Exception:  # Whatever a damaged file makes its parser raise.
            problems.append(path.name)
            _LOG.warning("%s is damaged and is passed over", path)
    if problems:
        raise RunFolderError(
            f"{folder} must hold a checkpoint that is whole; all are damaged ({', '.join(problems)}); start anew"
        )
    return None


def _name(step: int) -> str:
    return f"step-{step:09d}"


def _steps(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def _load(path: Path) -> Checkpoint:
    manifest = json.loads((path / "checkpoint.json").read_text())
    for name, expected in manifest["sha256"].items():
        with (path / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                raise RunFolderError(f"{name} in {path} must be what was written; it has changed")
    if path.name != _name(int(manifest["step"])):
        raise RunFolderError(
            f"{path} must be of the step that it names; it is of {manifest['step']}"
        )
    state = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
    return Checkpoint(int(manifest["step"]), load_file(path / "weights.safetensors"), state)
