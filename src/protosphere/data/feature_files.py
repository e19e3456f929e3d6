"""Read and write features and labels: ``.npz``, ``.safetensors`` and ``.pt``, never unpickled."""

import io
import pickle
import shutil
import stat
import struct
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
# Larger compressed members of an .npz file are decompressed to a temporary file, not to memory.
_MAX_BYTES_IN_MEMORY = 1 << 24


class FeatureFileError(ValueError):
    """A file of features is missing, damaged or lacks an array."""


@dataclass(frozen=True)
class FeatureFile:
    """Content of a file of features. Large arrays are memory-mapped and read when they are used.

    Attributes:
        features: Features, floating point of shape (samples, dim).
        labels: Class indices, integers of shape (samples,).
        prototypes: Prototypes of shape (classes, dim), or None.
        bias: Bias of a linear classifier of shape (classes,), or None.
        class_names: Name of each class, or None (``.npz`` and ``.pt`` only).
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
        path: An ``.npz`` file (memory-mapped unless compressed), a ``.safetensors`` file, or a
            ``.pt`` file with a dictionary of tensors. Nothing in it is executed.
        features: Key of the features.
        labels: Key of the labels. None makes labels optional: without them ``labels`` is empty.
        prototypes: Key of the prototypes. None reads ``"prototypes"`` if the file has this key.
        bias: Key of the bias. None reads ``"bias"`` if the file has this key.
        class_names: Key of the class names. None reads ``"class_names"`` if the file has this key.

    Returns:
        The arrays: NumPy arrays from ``.npz``, tensors from the other formats.

    Raises:
        FeatureFileError: The file is missing, damaged or in another format, or lacks a key.
    """
    path = Path(path)
    read = _find_reader(path)
    given_keys = {
        "features": features,
        "labels": labels,
        "prototypes": prototypes,
        "bias": bias,
        "class_names": class_names,
    }
    keys = {name: key or name for name, key in given_keys.items()}
    try:
        present, arrays = read(path, list(keys.values()))
    except FeatureFileError:
        raise
    except PermissionError:
        raise FeatureFileError(f"{path.name} must be readable; permission was denied") from None
    except Exception as error:  # Whatever a damaged or hostile file makes its parser raise.
        raise FeatureFileError(
            f"{path.name} must be a {path.suffix.lower()} file of plain arrays; "
            "it is damaged or in another format"
        ) from error
    for name, key in keys.items():
        if key not in arrays and given_keys[name] is not None:
            listing = ", ".join(present) or "none"
            raise FeatureFileError(
                f"{path.name} must have {name} under the key {key!r}; its keys are {listing}"
            )
    content = {name: arrays.get(key) for name, key in keys.items()}
    names = content.pop("class_names")
    for name, array in content.items():
        if isinstance(array, list | tuple):
            raise FeatureFileError(f"{keys[name]!r} in {path.name} must be a tensor, got a list")
    if content["labels"] is None:
        content["labels"] = np.empty(0, np.int64)
    class_list = None if names is None else _class_names(path, names)
    return FeatureFile(**content, class_names=class_list)  # type: ignore[arg-type]


def write_features(path: str | Path, content: FeatureFile) -> None:
    """Write an ``.npz`` file for :func:`read_features`, completely or not at all.

    Args:
        path: Path of the file. An existing file is replaced.
        content: Arrays to write.
    """
    names = ("features", "labels", "prototypes", "bias")
    arrays = {
        name: torch.as_tensor(array).cpu().numpy()
        for name in names
        if (array := getattr(content, name)) is not None
    }
    if content.class_names is not None:
        arrays["class_names"] = np.array(content.class_names)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write_atomically(Path(path), buffer.getvalue())


# Reads some keys of a file; returns all keys in it and the arrays found.
Reader = Callable[[Path, Sequence[str]], tuple[list[str], dict[str, Any]]]


def _find_reader(path: Path) -> Reader:
    """Return the reader of this file's format, or raise FeatureFileError."""
    readers: dict[str, Reader] = {
        ".npz": _read_npz,
        ".safetensors": _read_safetensors,
        ".pt": _read_pt,
        ".pth": _read_pt,
    }
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise FeatureFileError(f"{path} must be a file; it does not exist") from None
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise FeatureFileError(f"{path} must be a readable file: {reason}") from None
    if not stat.S_ISREG(mode):
        raise FeatureFileError(f"{path} must be a regular file; it is a folder or a device")
    if path.suffix.lower() not in readers:
        suffix = path.suffix or "no suffix"
        raise FeatureFileError(
            f"{path.name} must be an .npz, .safetensors or .pt file, got {suffix}"
        )
    if path.stat().st_size == 0:
        raise FeatureFileError(f"{path.name} must have features and labels; it is empty")
    return readers[path.suffix.lower()]


def _class_names(path: Path, names: Any) -> list[str]:
    values = names.tolist() if isinstance(names, np.ndarray) and names.ndim == 1 else names
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise FeatureFileError(f"class names in {path.name} must be a list of strings")
    return list(values)


def _read_npz(path: Path, wanted: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        return list(members), {
            key: _read_member(path, archive, members[key]) for key in wanted if key in members
        }


def _read_member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Memory-map one array of an .npz file, from a temporary file if it is compressed."""
    with archive.open(member) as stream:
        try:
            version = npy.read_magic(stream)
            read_header = (
                npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            )
            shape, fortran, dtype = read_header(stream)
        except ValueError as error:
            raise FeatureFileError(
                f"{member.filename} in {path.name} must be a NumPy array"
            ) from error
        if dtype.hasobject:
            raise FeatureFileError(
                f"{member.filename} in {path.name} must be an array of numbers or strings; "
                "it has pickled objects, which are not read (convert names with astype(str))"
            )
        header = stream.tell()
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if header + size != member.file_size:
            raise FeatureFileError(
                f"{member.filename} in {path.name} must have {size} bytes of data; it is damaged"
            )
        order: Literal["F", "C"] = "F" if fortran else "C"
        if member.compress_type != zipfile.ZIP_STORED or size == 0:
            if size <= _MAX_BYTES_IN_MEMORY:
                return np.frombuffer(stream.read(), dtype=dtype).reshape(shape, order=order)
            with tempfile.TemporaryFile() as decompressed:
                shutil.copyfileobj(stream, decompressed, 1 << 20)
                decompressed.flush()
                copy: np.ndarray = np.memmap(
                    decompressed, dtype=dtype, mode="r", shape=shape, order=order
                )
                return copy
    with path.open("rb") as file:
        # The zip header of a member has 30 bytes, of which the last four are the lengths of its
        # name and extra field, which come before the data.
        file.seek(member.header_offset + 26)
        name_length, extra_length = struct.unpack("<HH", file.read(4))
    start = member.header_offset + 30 + name_length + extra_length
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
            f"{path.name} must be a zip archive as torch.save writes it; "
            "it is a plain pickle or damaged"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise FeatureFileError(
            f"{path.name} must have only tensors; it is damaged or has other objects, "
            "which are not read"
        ) from error
    if not isinstance(content, dict):
        raise FeatureFileError(
            f"{path.name} must be a dictionary of tensors, got {type(content).__name__}"
        )
    found = {key: content[key] for key in wanted if content.get(key) is not None}
    for key, value in found.items():
        dense = (
            isinstance(value, Tensor) and value.layout == torch.strided and not value.is_quantized
        )
        if dense and value.device.type == "cpu":
            found[key] = value.detach().resolve_conj().resolve_neg()
        elif not isinstance(value, list | tuple):
            raise FeatureFileError(f"{key!r} in {path.name} must be a dense tensor on the CPU")
    return [str(key) for key in content], found
