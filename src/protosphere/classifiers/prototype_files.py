"""The file format of a saved prototype classifier: safetensors, without executable content."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protosphere.classifiers.class_means import ClassMeans
from protosphere.classifiers.class_scatter import ClassScatter
from protosphere.classifiers.class_table import ClassTable, name_classes

# Without whitening files have the first format, which earlier versions can read.
_PLAIN_FORMAT = "protosphere prototypes 1"
_WHITENED_FORMAT = "protosphere prototypes 2"
_CHECKSUM = "sha256"


@dataclass(frozen=True)
class PrototypeFile:
    """The content of a saved classifier.

    Attributes:
        temperature: Temperature of the probabilities.
        table: Classes, statistics and options; with a scatter the classifier whitens.
        feature_names: Name of each feature, or None if they have no names.
    """

    temperature: float
    table: ClassTable
    feature_names: NDArray[np.object_] | None = None

    def to_bytes(self) -> bytes:
        """Return the content of the file.

        Raises:
            ValueError: A class name is neither a string nor a number.
        """
        from safetensors.numpy import save  # noqa: PLC0415

        # An array of objects may hold NumPy's numbers.
        names = [
            name.item() if isinstance(name, np.generic) else name
            for name in self.table.names.tolist()
        ]
        for name in names:
            if not isinstance(name, str | int | float):
                raise ValueError(
                    f"class names must be strings or numbers to be saved, got {type(name).__name__}"
                )
        metadata = {
            "format": _PLAIN_FORMAT,
            "rule": self.table.rule,
            "temperature": repr(float(self.temperature)),
            "classes": json.dumps(names),
            "dtype": self.table.names.dtype.str,
        }
        if self.feature_names is not None:
            metadata["feature_names"] = json.dumps(self.feature_names.tolist())
        means, scatter = self.table.means, self.table.scatter
        arrays = {"sums": means.sums.numpy(), "weights": means.weights.numpy()}
        if scatter is not None:
            arrays["within"] = scatter.within.numpy()
            metadata["format"] = _WHITENED_FORMAT
            shrinkage = self.table.shrinkage
            number = shrinkage if isinstance(shrinkage, str) else float(shrinkage)
            metadata["shrinkage"] = json.dumps(number)
            metadata["dropped_degrees"] = repr(scatter.dropped_degrees)
        metadata[_CHECKSUM] = _compute_checksum(metadata, arrays)
        return save(arrays, metadata=metadata)


def read_prototypes(path: Path | str) -> PrototypeFile:
    """Read a saved classifier.

    Args:
        path: The file.

    Raises:
        ValueError: The file does not exist, is damaged or is not a saved classifier.
    """
    if Path(path).is_dir():
        raise ValueError(f"{path} is a folder, not a saved PrototypeClassifier")
    try:
        return _parse(path)
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except Exception as error:  # Parsers raise many types for a damaged or foreign file.
        raise ValueError(f"{path} is damaged or not a saved PrototypeClassifier") from error


def _parse(path: Path | str) -> PrototypeFile:
    from safetensors import safe_open  # noqa: PLC0415

    with safe_open(str(path), framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    checksum = metadata.pop(_CHECKSUM, None)  # Files of version 0.2 and earlier have none.
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    if checksum not in (None, _compute_checksum(metadata, arrays)):
        raise ValueError("the checksum does not match")
    dtype = np.dtype(metadata["dtype"])
    classes = np.array(
        json.loads(metadata["classes"]), dtype=object if dtype.kind == "O" else dtype
    )
    means = ClassMeans(tensors["weights"], tensors["sums"])
    if means.sums.ndim != 2 or means.weights.shape != means.sums.shape[:1]:
        raise ValueError("the arrays have inconsistent shapes")
    # Files of version 0.2 and earlier have no names of features.
    feature_names = None
    if "feature_names" in metadata:
        feature_names = np.array(json.loads(metadata["feature_names"]), dtype=object)
        if feature_names.shape != means.sums.shape[1:]:
            raise ValueError("the names of the features do not match")
    temperature, options = float(metadata["temperature"]), {"rule": metadata["rule"]}
    if metadata["format"] == _PLAIN_FORMAT:
        table = name_classes(means, classes, **options)
        return PrototypeFile(temperature, table, feature_names)
    if metadata["format"] != _WHITENED_FORMAT:
        raise ValueError(f"unknown format {metadata['format']!r}")
    within = tensors["within"]
    if within.shape != means.sums.shape[1:] * 2:
        raise ValueError("the arrays have inconsistent shapes")
    scatter = ClassScatter(means, within, float(metadata["dropped_degrees"]))
    shrinkage = json.loads(metadata["shrinkage"])
    table = name_classes(scatter, classes, shrinkage=shrinkage, **options)
    return PrototypeFile(temperature, table, feature_names)


def _compute_checksum(metadata: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
