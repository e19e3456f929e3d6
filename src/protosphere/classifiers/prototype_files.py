"""The file format of a saved prototype classifier: safetensors, without executable content."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FORMAT = "protosphere prototypes 1"


@dataclass(frozen=True)
class PrototypeFile:
    """The content of a saved classifier.

    Attributes:
        rule: Decision rule, ``"cosine"`` or ``"nearest"``.
        temperature: Temperature of the probabilities.
        classes: Sorted class names.
        weights: Total sample weight of each class.
        sums: Weighted sum of the unit features of each class.
    """

    rule: str
    temperature: float
    classes: NDArray[Any]
    weights: NDArray[np.float64]
    sums: NDArray[np.float64]

    def to_bytes(self) -> bytes:
        """Return the content of the file.

        Raises:
            ValueError: A class name is neither a string nor a number.
        """
        from safetensors.numpy import save  # noqa: PLC0415

        names = self.classes.tolist()
        for name in names:
            if not isinstance(name, str | int | float):
                raise ValueError(
                    f"class names must be strings or numbers to be saved, got {type(name).__name__}"
                )
        metadata = {
            "format": _FORMAT,
            "rule": self.rule,
            "temperature": repr(float(self.temperature)),
            "classes": json.dumps(names),
            "dtype": self.classes.dtype.str,
        }
        return save({"sums": self.sums, "weights": self.weights}, metadata=metadata)


def read_prototypes(path: Path | str) -> PrototypeFile:
    """Read a saved classifier.

    Args:
        path: The file.

    Raises:
        ValueError: The file does not exist, is damaged or is not a saved classifier.
    """
    try:
        return _parse(path)
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except Exception as error:  # Parsers raise many types for a damaged or foreign file.
        raise ValueError(f"{path} is damaged or not a saved PrototypeClassifier") from error


def _parse(path: Path | str) -> PrototypeFile:
    from safetensors import safe_open  # noqa: PLC0415

    with safe_open(str(path), framework="numpy") as file:
        metadata = file.metadata() or {}
        sums, weights = file.get_tensor("sums"), file.get_tensor("weights")
    if metadata["format"] != _FORMAT:
        raise ValueError(f"unknown format {metadata['format']!r}")
    dtype = np.dtype(metadata["dtype"])
    classes = np.array(
        json.loads(metadata["classes"]), dtype=object if dtype.kind == "O" else dtype
    )
    if sums.ndim != 2 or not classes.shape == weights.shape == sums.shape[:1]:
        raise ValueError("the arrays have inconsistent shapes")
    return PrototypeFile(
        metadata["rule"], float(metadata["temperature"]), classes, weights=weights, sums=sums
    )
