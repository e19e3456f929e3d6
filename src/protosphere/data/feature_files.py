"""Files of features and labels, ``.npz``, ``.safetensors``, ``.pt``: mapped where possible, never unpickled."""

import io
import pickle
import shutil
import stat
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from protosphere.storage import write_atomically

Array = np.ndarray | Tensor
# A member of an .npz that is compressed is unpacked to a temporary file, not to memory, from this size on.
_UNPACKED_IN_MEMORY = 1 << 24


class FeatureFileError(ValueError):
    """A file cannot be used; the sentence says why."""


@dataclass(frozen=True)
class FeatureFile:
    """What a file holds. Large arrays are memory-mapped: they are read when they are used.

    Attributes:
        features: (samples, dim), floating.
        labels: (samples,), whole numbers.
        prototypes: (classes, dim), where the file has them.
        bias: (classes,), where the file has one.
        class_names: one a class, where the file has them (``.npz`` only).
    """

    features: Array
    labels: Array
    prototypes: Array | None = None
    bias: Array | None = None
    class_names: Sequence[str] | None = None


def read_features(
    path: str | Path,
    *,
    features: str = "features",
    labels: str | None = "labels",
    prototypes: str | None = None,
    bias: str | None = None,
    class_names: str | None = None,
) -> FeatureFile:
    """Open a file of features.

    Args:
        path: an ``.npz`` (uncompressed ones are mapped), ``.safetensors``, or a ``.pt`` that holds a dictionary of
            tensors. Nothing in it is executed.
        features: the key of the features.
        labels: the key of the labels; with None the file need not have any, and there are none then.
        prototypes: the key of the prototypes; without it ``"prototypes"``, if the file has it.
        bias: the key of the head's bias, likewise.
        class_names: the key of the names of the classes, likewise.

    Returns:
        The arrays; those of ``.npz`` as NumPy's, the others as tensors.

    Raises:
        FeatureFileError: the file is missing, damaged, of another kind, or lacks what was asked for.
    """
    path = Path(path)
    read = _reader(path)
    keys = {
        "features": features,
        "labels": labels,
        "prototypes": prototypes,
        "bias": bias,
        "class_names": class_names,
    }
    asked = {what: key or what for what, key in keys.items()}
    try:
        present, arrays = read(path, list(asked.values()))
    except FeatureFileError:
        raise
    except PermissionError:
        raise FeatureFileError(f"{path.name} must be readable; permission was denied") from None
    except Exception as error:  # Whatever a damaged or hostile file makes its parser raise.
        kind = path.suffix.lower()
        raise FeatureFileError(
            f"{path.name} must be a {kind} file of plain numbers; it is damaged or none"
        ) from error
    for what, key in asked.items():
        if key not in arrays and keys[what] is not None:
            listing = ", ".join(present) or "none"
            raise FeatureFileError(
                f"{path.name} must hold {what} under the key {key!r}; its keys are {listing}"
            )
    found = {what: arrays.get(key) for what, key in asked.items()}
    names = found.pop("class_names")
    for what, part in found.items():
        if isinstance(part, list | tuple):
            raise FeatureFileError(f"{asked[what]!r} in {path.name} must be a tensor; it is a list")
    if found["labels"] is None:
        found["labels"] = np.empty(0, np.int64)
    return FeatureFile(**found, class_names=None if names is None else _names(path, names))  # type: ignore[arg-type]


def write_features(path: str | Path, content: FeatureFile) -> None:
    """Write an ``.npz`` that :func:`read_features` opens, whole or not at all."""
    parts = {name: getattr(content, name) for name in ("features", "labels", "prototypes", "bias")}
    arrays = {
        name: torch.as_tensor(part).cpu().numpy()
        for name, part in parts.items()
        if part is not None
    }
    if content.class_names is not None:
        arrays["class_names"] = np.array(content.class_names)
    room = io.BytesIO()
    np.savez(room, **arrays)  # type: ignore[arg-type]
    write_atomically(Path(path), room.getvalue())


Reader = Callable[[Path, Sequence[str]], tuple[list[str], dict[str, Any]]]


def _reader(path: Path) -> Reader:
    """What can read this file. Raises FeatureFileError unless it is one."""
    readers: dict[str, Reader] = {
        ".npz": _read_npz,
        ".safetensors": _read_safetensors,
        ".pt": _read_pt,
        ".pth": _read_pt,
    }
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise FeatureFileError(f"{path} must be a file; there is none") from None
    except OSError as error:
        reason = (error.strerror or "it cannot").lower()
        raise FeatureFileError(f"{path} must be a file that can be read; {reason}") from None
    if not stat.S_ISREG(mode):
        raise FeatureFileError(f"{path} must be a file; it is a folder or a device")
    if path.suffix.lower() not in readers:
        ending = path.suffix or "nothing"
        raise FeatureFileError(
            f"{path.name} must end in .npz, .safetensors or .pt; it ends in {ending}"
        )
    if path.stat().st_size == 0:
        raise FeatureFileError(f"{path.name} must hold features and labels; it is empty")
    return readers[path.suffix.lower()]


def _names(path: Path, names: Any) -> list[str]:
    texts = names.tolist() if isinstance(names, np.ndarray) and names.ndim == 1 else names
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise FeatureFileError(f"class names in {path.name} must be a list of texts; they are none")
    return list(texts)


def _read_npz(path: Path, wanted: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        return list(members), {
            key: _read_member(path, archive, members[key]) for key in wanted if key in members
        }


def _read_member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """One array of an .npz, mapped from the file itself, or from a temporary copy if it is compressed."""
    with archive.open(member) as stream:
        try:
            version = npy.read_magic(stream)
            read_header = (
                npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            )
            shape, fortran, dtype = read_header(stream)
        except ValueError as error:
            raise FeatureFileError(
                f"{member.filename} in {path.name} must be an array; it is none"
            ) from error
        if dtype.hasobject:
            raise FeatureFileError(
                f"{member.filename} in {path.name} must hold numbers; it holds pickled objects, not read"
            )
        header = stream.tell()
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if header + size != member.file_size:
            raise FeatureFileError(
                f"{member.filename} in {path.name} must hold {size} bytes of numbers; it is damaged"
            )
        order: Literal["F", "C"] = "F" if fortran else "C"
        if member.compress_type != zipfile.ZIP_STORED or size == 0:
            if size <= _UNPACKED_IN_MEMORY:
                return np.frombuffer(stream.read(), dtype=dtype).reshape(shape, order=order)
            with tempfile.TemporaryFile() as unpacked:
                shutil.copyfileobj(stream, unpacked, 1 << 20)
                unpacked.flush()
                copy: np.ndarray = np.memmap(
                    unpacked, dtype=dtype, mode="r", shape=shape, order=order
                )
                return copy
    with path.open("rb") as file:
        file.seek(
            member.header_offset + 26
        )  # The lengths of name and extra field stand before them.
        lengths = file.read(4)
    start = (
        member.header_offset
        + 30
        + int.from_bytes(lengths[:2], "little")
        + int.from_bytes(lengths[2:], "little")
    )
    mapped: np.ndarray = np.memmap(
        path, dtype=dtype, mode="r", offset=start + header, shape=shape, order=order
    )
    return mapped


def _read_safetensors(path: Path, wanted: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    from safetensors import safe_open  # noqa: PLC0415

    with safe_open(path, framework="pt") as file:
        keys = list(file.keys())
        return keys, {key: file.get_tensor(key) for key in wanted if key in keys}


def _read_pt(path: Path, wanted: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    if not zipfile.is_zipfile(path):
        raise FeatureFileError(
            f"{path.name} must be an archive as torch.save writes it; it is a bare pickle or damaged"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        problem = "it is damaged or holds objects, which are not read"
        raise FeatureFileError(
            f"{path.name} must hold tensors and nothing else; {problem}"
        ) from error
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise FeatureFileError(
            f"{path.name} must hold a dictionary of tensors; it holds another thing, {kind}"
        )
    found = {key: content[key] for key in wanted if content.get(key) is not None}
    for key, value in found.items():
        dense = (
            isinstance(value, Tensor) and value.layout == torch.strided and not value.is_quantized
        )
        if dense and value.device.type == "cpu":
            found[key] = value.detach().resolve_conj().resolve_neg()
        elif not isinstance(value, list | tuple):
            raise FeatureFileError(f"{key!r} in {path.name} must be a dense tensor; it is none")
    return [str(key) for key in content], found
