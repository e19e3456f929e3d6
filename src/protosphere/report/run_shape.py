"""Number of classes, dimension and class names of a run, from whatever its folder has."""

from collections.abc import Mapping, Sequence
from typing import Any

from protosphere.report.curves import shorten
from protosphere.report.plotly_text import plain
from protosphere.report.sources import RunData


def num_classes(run: RunData) -> int | None:
    """Return the number of classes of a run; None if it is not known.

    Args:
        run: The run.
    """
    if run.class_names:
        return len(run.class_names)
    means = run.arrays.get("class_means")
    if means is not None and means.ndim == 2:
        return int(means.shape[0])
    counts = run.data.get("class_counts")
    return len(counts) if isinstance(counts, list | tuple) and counts else _setting(run, "classes")


def feature_dim(run: RunData) -> int | None:
    """Return the dimension of the features of a run; None if it is not known.

    Args:
        run: The run.
    """
    means = run.arrays.get("class_means")
    if means is not None and means.ndim == 2:
        return int(means.shape[1])
    return _setting(run, "dim")


def names_of_classes(run: RunData, count: int) -> tuple[str, ...]:
    """Return a name for each class, its number if names are missing.

    Args:
        run: The run.
        count: Number of classes.
    """
    if len(run.class_names) == count:
        return run.class_names
    return tuple(f"class {index}" for index in range(count))


def unique_labels(names: Sequence[str], *, length: int = 28) -> list[str]:
    """Return names as plotly displays them, shortened and different from each other.

    An axis of categories has one place per text, so that equal names would be one class.

    Args:
        names: Class names.
        length: Largest number of characters of a name.

    >>> unique_labels(["ant", "bee", "ant"])
    ['ant', 'bee', 'ant (2)']
    """
    labels: dict[str, None] = {}
    for index, name in enumerate(names):
        label = plain(shorten(name.strip(), length)) or f"class {index}"
        while label in labels:
            label = f"{label} ({index})"
        labels[label] = None
    return list(labels)


def _setting(run: RunData, key: str) -> int | None:
    """A number that the benchmark of convergence has recorded."""
    for name in ("convergence", "convergence_curves"):
        settings: Any = run.results.get(name, {}).get("settings", {})
        value = settings.get(key) if isinstance(settings, Mapping) else None
        if isinstance(value, int) and value > 0:
            return value
    return None
