"""Pictures of the paper's figures: curves of convergence, and phase diagrams."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from protosphere.runs.results import read_result
from protosphere.studies.convergence import CurveRow, run_convergence
from protosphere.studies.plots import create_figure, plot_convergence, write_figure
from protosphere.studies.reproduce import Number, Reproduction
from protosphere.studies.reproduce_readings import RunReader


def draw_curves(path: Path, result: Reproduction, reader: RunReader) -> None:
    """Draw the metrics of Figure 2 over the runs.

    Args:
        path: File to write or replace.
        result: The numbers of the figure.
        reader: The runs.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: No run is complete.
        StorageError: The file could not be written.
    """
    planned = {run.folder.name: run for run in reader.runs.values() if run.is_complete}
    folders = {
        number.row: planned[number.runs[0]].folder
        for number in result.numbers
        if number.runs[0] in planned
    }
    if not folders:
        raise ValueError("a picture needs a complete run, and there is none")
    logs = {name: reader.log(planned[folder.name].run) for name, folder in folders.items()}
    rows = {name: run_convergence(log, baseline=logs.get("ce")) for name, log in logs.items()}
    curves = {
        name: read_result(folder / "benchmarks" / "convergence_curves.json", CurveRow).rows
        for name, folder in folders.items()
    }
    plot_convergence(path, curves, rows)


def draw_phase_diagram(path: Path, result: Reproduction, reader: RunReader) -> None:  # noqa: ARG001
    """Draw the accuracy of Figure 3 by temperature and batch size, one panel per loss.

    Args:
        path: File to write or replace.
        result: The numbers of the figure; those of runs that are missing are left empty.
        reader: The runs, which this picture has no use for.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: No run is complete.
        StorageError: The file could not be written.
    """
    numbers = [number for number in result.numbers if isinstance(number.value, float)]
    if not numbers:
        raise ValueError("a picture needs a complete run, and there is none")
    values = [float(number.value) for number in numbers if isinstance(number.value, float)]
    losses = list(dict.fromkeys(number.row.split()[0] for number in result.numbers))
    figure, panels = create_figure(len(losses))
    for axes, loss in zip(panels, losses, strict=False):
        own = [number for number in result.numbers if number.row.split()[0] == loss]
        columns = list(dict.fromkeys(number.column for number in own))
        sizes = list(dict.fromkeys(number.row.split()[1] for number in own))
        image = axes.imshow(
            _grid(own, sizes, columns),
            origin="lower",
            aspect="auto",
            vmin=min(values),
            vmax=max(values),
        )
        axes.set_title(loss, fontsize=9)
        axes.set_xlabel("temperature", fontsize=8)
        axes.set_ylabel("batch size", fontsize=8)
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(sizes)), sizes)
        figure.colorbar(image, ax=axes, label="test accuracy in %")
    write_figure(path, figure)


def _grid(
    numbers: Sequence[Number], sizes: Sequence[str], columns: Sequence[str]
) -> list[list[float]]:
    """Return the accuracies by batch size and temperature; those that are not known are NaN."""
    known = {
        (number.row.split()[1], number.column): number.value
        for number in numbers
        if isinstance(number.value, float)
    }
    return [[known.get((size, column), math.nan) for column in columns] for size in sizes]


# The targets that have a picture.
PICTURES: Mapping[str, Callable[[Path, Reproduction, RunReader], None]] = {
    "figure2": draw_curves,
    "figure3-cifar10": draw_phase_diagram,
    "figure3-cifar100": draw_phase_diagram,
}
