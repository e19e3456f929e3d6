"""Arrays of a run that figures of classes and geometry need, if it has them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from protosphere.report.content import Choice, Figure, Note
from protosphere.report.curves import Method
from protosphere.report.sources import RunData
from protosphere.runs.arrays import ARRAYS_FILE

# Each shape in classes (K), dimensions (d), points (n) and numbers.
_SHAPES: Mapping[str, tuple[str | int, ...]] = {
    "class_means": ("K", "d"),
    "prototypes": ("K", "d"),
    "class_cosines": ("K", "K"),
    "prototype_cosines": ("K", "K"),
    "class_accuracy": ("K",),
    "class_confidence": ("K",),
    "confusion": ("K", "K"),
    "means_3d": ("K", 3),
    "prototypes_3d": ("K", 3),
    "samples_3d": ("n", 3),
    "sample_labels": ("n",),
}
# What the sections on geometry and on classes need.
GEOMETRY_ARRAYS = ("class_means", "class_cosines", "prototype_cosines")
CLASS_ARRAYS = ("confusion", "class_confidence")
# With more runs than this, one run of each method is shown in menus.
_MAX_RUNS = 20


def find_arrays(run: RunData, names: Iterable[str]) -> dict[str, NDArray[Any]] | None:
    """Return arrays of a run; None if one is missing or its shape does not fit the others.

    Args:
        run: The run.
        names: Names of the arrays.
    """
    found: dict[str, NDArray[Any]] = {}
    sizes: dict[str | int, int] = {"K": len(run.class_names)} if run.class_names else {}
    for name in names:
        array = run.arrays.get(name)
        shape = _SHAPES[name]
        if array is None or array.ndim != len(shape) or array.dtype.kind not in "fiu":
            return None
        for letter, size in zip(shape, array.shape, strict=True):
            if size != (letter if isinstance(letter, int) else sizes.setdefault(letter, size)):
                return None
        found[name] = array
    return found if sizes.get("K", 2) >= 2 else None


def choose_runs(methods: Sequence[Method], names: Iterable[str]) -> list[RunData]:
    """Return the runs that menus offer: those with arrays, one per method if there are many.

    Args:
        methods: The methods.
        names: Names of the arrays that are needed.
    """
    needed = tuple(names)
    groups = [
        [run for run in method.runs if find_arrays(run, needed) is not None] for method in methods
    ]
    if sum(map(len, groups)) > _MAX_RUNS:
        groups = [group[:1] for group in groups]
    return [run for group in groups for run in group]


def describe_choice(methods: Sequence[Method], chosen: Sequence[RunData]) -> str:
    """Return a sentence for the introduction if menus do not offer all runs with arrays.

    Args:
        methods: The methods.
        chosen: The runs of :func:`choose_runs`.
    """
    num_chosen = {method.name: 0 for method in methods}
    for run in chosen:
        num_chosen[run.method] += 1
    is_partial = any(
        num_chosen[method.name] == 1 and sum(bool(run.arrays) for run in method.runs) > 1
        for method in methods
    )
    return " Menus offer one run of each method." if is_partial else ""


def menu_of_runs(name: str, runs: Sequence[RunData], figures: Sequence[Figure]) -> Choice | Figure:
    """Return a menu that selects the figure of a run, or the figure itself if there is only one.

    Args:
        name: Identifier of the menu.
        runs: The runs.
        figures: The figure of each run.
    """
    if len(figures) == 1:
        return figures[0]
    return Choice(name, "Run", tuple(zip((run.name for run in runs), figures, strict=True)))


def lack_alike(runs: Iterable[RunData]) -> bool:
    """Return whether the runs without arrays of geometry are those without arrays of classes.

    One note is enough for them, if another run has the arrays.

    Args:
        runs: All runs.
    """
    found = [
        [find_arrays(run, names) is not None for names in (GEOMETRY_ARRAYS, CLASS_ARRAYS)]
        for run in runs
    ]
    return all(geometry == classes for geometry, classes in found) and any(map(any, found))


def describe_missing(runs: Iterable[RunData], names: Iterable[str], what: str) -> Note | None:
    """Return a note on the runs that do not have the arrays; None if all of them have.

    Args:
        runs: All runs.
        names: Names of the arrays that are needed.
        what: What is not shown of these runs.
    """
    needed = tuple(names)
    missing = [run.name for run in runs if find_arrays(run, needed) is None]
    if not missing:
        return None
    shown = ", ".join(missing[:8])
    if len(missing) > 8:
        shown += f" and {len(missing) - 8} more"
    return Note(
        f"{what} of {shown}: {ARRAYS_FILE} is missing in the run folder or does not fit its "
        "classes. protosphere train writes the file at each evaluation; it can be copied from "
        "the machine that trained the run.",
        kind="missing",
    )
