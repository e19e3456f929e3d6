"""Files of features and labels, ``.npz``, ``.safetensors``, ``.pt``: mapped where possible, never unpickled."""

import pickle
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

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
    labels: str = "labels",
    prototypes: str = "prototypes",
    bias: str = "bias",
    class_names: str = "class_names",
) -> FeatureFile:
    """Open a file of features.

    Args:
        path: an ``.npz`` (uncompressed ones are mapped), ``.safetensors``, or a ``.pt`` that holds a dictionary of
            tensors. Nothing in it is executed.
        features: the key of the features.
        labels: the key of the labels.
        prototypes: the key of the prototypes; without such a key there are none.
        bias: the key of the head's bias, likewise.
        class_names: the key of the names of the classes, likewise.

    Returns:
        The arrays; those of ``.npz`` as NumPy's, the others as tensors.

    Raises:
        FeatureFileError: the file is missing, damaged, of another kind, or lacks features or labels.
    """
    path = Path(path)
    if not path.is_file():
        raise FeatureFileError(f"{path} must be a file; there is none")
    readers: dict[str, Callable[[Path, Sequence[str]], tuple[list[str], dict[str, Array]]]] = {
        ".npz": _read_npz,
        ".safetensors": _read_safetensors,
        ".pt": _read_pt,
        ".pth": _read_pt,
    }
    if path.suffix not in readers:
        raise FeatureFileError(
            f"{path.name} must end in .npz, .safetensors or .pt; it ends in {path.suffix or 'nothing'}"
        )
    if path.stat().st_size == 0:
        raise FeatureFileError(f"{path.name} must hold features and labels; it is empty")
    present, arrays = readers[path.suffix](path, (features, labels, prototypes, bias, class_names))
    for what, key in (("features", features), ("labels", labels)):
        if key not in arrays:
            raise FeatureFileError(
                f"{path.name} must hold {what} under the key {key!r}; its keys are {', '.join(present) or 'none'}"
            )
    names = arrays.get(class_names)
    return FeatureFile(
        features=arrays[features],
        labels=arrays[labels],
        prototypes=arrays.get(prototypes),
        bias=arrays.get(bias),
        class_names=_names(path, names) if isinstance(names, np.ndarray) else None,
    )


def _names(path: Path, names: np.ndarray) -> list[str]:
    if names.ndim != 1 or names.dtype.kind != "U":
        raise FeatureFileError(
            f"class names in {path.name} must be a list of texts; got {names.dtype} of {names.shape}"
        )
    return [str(name) for name in names]


def _read_npz(path: Path, wanted: Sequence[str]) -> tuple[list[str], dict[str, Array]]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            arrays: dict[str, Array] = {
                key: _read_member(path, archive, members[key]) for key in wanted if key in members
            }
    except (zipfile.BadZipFile, EOFError, OSError, RuntimeError) as error:
        raise FeatureFileError(f"{path.name} must be an .npz archive; it is damaged or none ({error})") from error
    return list(members), arrays


def _read_member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """One array of an .npz, mapped from the file itself, or from a temporary copy if it is compressed."""
    with archive.open(member) as stream:
        try:
            version = npy.read_magic(stream)
            read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read_header(stream)
        except ValueError as error:
            raise FeatureFileError(f"{member.filename} in {path.name} must be an array; it is none") from error
        if dtype.hasobject:
            raise FeatureFileError(
                f"{member.filename} in {path.name} must hold numbers; it holds pickled objects, not read"
            )
        header = stream.tell()
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if header + size != member.file_size:
            raise FeatureFileError(f"{member.filename} in {path.name} must hold {size} bytes of numbers; it is damaged")
        order: Literal["F", "C"] = "F" if fortran else "C"
        if member.compress_type != zipfile.ZIP_STORED or size == 0:
            if size <= _UNPACKED_IN_MEMORY:
                return np.frombuffer(stream.read(), dtype=dtype).reshape(shape, order=order)
            with tempfile.TemporaryFile() as unpacked:
                shutil.copyfileobj(stream, unpacked, 1 << 20)
                unpacked.flush()
                copy: np.ndarray = np.memmap(unpacked, dtype=dtype, mode="r", shape=shape, order=order)
                return copy
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)  # The lengths of name and extra field stand before them.
        lengths = file.read(4)
    start = member.header_offset + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
    mapped: np.ndarray = np.memmap(path, dtype=dtype, mode="r", offset=start + header, shape=shape, order=order)
    return mapped


def _read_safetensors(path: Path, wanted: Sequence[str]) -> tuple[list[str], dict[str, Array]]:
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415

    try:
        with safe_open(path, framework="pt") as file:
            keys = list(file.keys())
            return keys, {key: file.get_tensor(key) for key in wanted if key in keys}
    except (SafetensorError, OSError) as error:
        raise FeatureFileError(f"{path.name} must be a safetensors file; it is damaged or none ({error})") from error


def _read_pt(path: Path, wanted: Sequence[str]) -> tuple[list[str], dict[str, Array]]:
    if not zipfile.is_zipfile(path):
        raise FeatureFileError(
            f"{path.name} must be an archive as torch.save writes it; it is a bare pickle or damaged"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError, OSError) as error:
        raise FeatureFileError(
            f"{path.name} must hold tensors and nothing else; it is damaged or holds objects, which are not read"
        ) from error
    if not isinstance(content, dict):
        raise FeatureFileError(
            f"{path.name} must hold a dictionary of tensors; it holds {_article(type(content).__name__)}"
        )
    arrays: dict[str, Array] = {}
    for key in wanted:
        if key in content:
            if not isinstance(content[key], Tensor) or content[key].layout != torch.strided:
                raise FeatureFileError(f"{key!r} in {path.name} must be a dense tensor; it is none")
            arrays[key] = content[key].detach()
    return [str(key) for key in content], arrays


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
