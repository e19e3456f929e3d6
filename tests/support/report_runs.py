"""Runs as reports read them, with known geometry, accuracy and curves; nothing here is trained."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protosphere.report.content import Choice, Figure, Section
from protosphere.report.sources import RunData


def simplex(num_classes: int) -> NDArray[np.float64]:
    """The vertices of a simplex as unit vectors, shape (K, K)."""
    vertices = np.eye(num_classes) - 1 / num_classes
    return vertices / np.linalg.norm(vertices, axis=1, keepdims=True)


def geometry_arrays(
    means: NDArray[np.float64], confusion: NDArray[Any] | None = None, num_samples: int = 40
) -> dict[str, NDArray[Any]]:
    """The arrays of an evaluation whose prototypes are its class means, all of unit norm."""
    num_classes = len(means)
    center = means.mean(0)
    directions = (means - center) / np.linalg.norm(means - center, axis=1, keepdims=True)
    axes = np.linalg.svd(means - center, full_matrices=False)[2][:3].T
    axes = np.pad(axes, ((0, 0), (0, 3 - axes.shape[1])))
    labels = np.arange(num_samples) % num_classes
    if confusion is None:
        confusion = np.eye(num_classes) * 8 + 1
    with np.errstate(invalid="ignore"):
        accuracy = confusion.diagonal() / confusion.sum(1)
    floats = {
        "class_means": means,
        "prototypes": means,
        "class_cosines": directions @ directions.T,
        "prototype_cosines": means @ means.T,
        "class_accuracy": accuracy,
        "class_confidence": accuracy,
        "means_3d": (means - center) @ axes,
        "prototypes_3d": (means - center) @ axes,
        "samples_3d": (means[labels] - center) @ axes,
    }
    integers = {"confusion": confusion, "sample_labels": labels}
    return {name: np.asarray(value, np.float32) for name, value in floats.items()} | {
        name: np.asarray(value, np.int32) for name, value in integers.items()
    }


def create_run(
    name: str = "nonl",
    *,
    num_classes: int = 10,
    arrays: Mapping[str, NDArray[Any]] | None = None,
    records: Sequence[Mapping[str, Any]] = (),
    **fields: Any,
) -> RunData:
    """A complete run; without arrays it has those of a simplex."""
    if arrays is None:
        arrays = geometry_arrays(simplex(num_classes))
    values: dict[str, Any] = {
        "method": name,
        "seed": 42,
        "state": "complete",
        "recipe": {"schedule": {"epochs": 20}},
        "class_names": tuple(f"c{index}" for index in range(num_classes)),
    }
    return RunData(
        name, Path("runs") / name, arrays=arrays, records=tuple(records), **values | fields
    )


def evaluations(values: Mapping[str, Sequence[float]], *, every: int = 1) -> list[dict[str, Any]]:
    """Records of evaluations with the values of metrics, after each ``every`` epochs."""
    length = len(next(iter(values.values())))
    return [
        {
            "kind": "evaluation",
            "step": every * (index + 1),
            "epoch": every * (index + 1),
            "split": "test",
            **{name: series[index] for name, series in values.items()},
        }
        for index in range(length)
    ]


def blocks_of(section: Section | None) -> list[Any]:
    """The blocks of a section that must be there."""
    assert section is not None
    return list(section.blocks)


def find_figure(section: Section | None, name: str) -> Figure:
    """The figure of a section, also inside of a menu."""
    for block in blocks_of(section):
        if isinstance(block, Figure) and block.name == name:
            return block
        if isinstance(block, Choice):
            for _, figure in block.options:
                if figure.name == name:
                    return figure
    raise AssertionError(f"{section.name} has no figure {name}")


def decode(values: Any) -> NDArray[Any]:
    """Numbers of a trace, from a list or plotly's binary form."""
    if isinstance(values, list):
        return np.array(values, np.float64)
    from base64 import b64decode

    array = np.frombuffer(b64decode(values["bdata"]), "<" + values["dtype"])
    return (
        array.reshape([int(size) for size in values["shape"].split(",")])
        if "shape" in values
        else array
    )
