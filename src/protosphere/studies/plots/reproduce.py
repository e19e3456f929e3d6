"""Figures of what is reproduced: curves, phase diagrams, our numbers beside the paper's."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from protosphere.metrics.convergence import moving_average
from protosphere.report.colors import PALETTE
from protosphere.runs import RunFolder
from protosphere.runs.results import read_result
from protosphere.studies.convergence import CurveRow, run_convergence
from protosphere.studies.plots.bars import draw_paper
from protosphere.studies.plots.convergence import plot_convergence
from protosphere.studies.plots.figures import create_figure, draw_legend, styled
from protosphere.studies.plots.looks import label, labels
from protosphere.studies.reproduce import Number, Reproduction
from protosphere.studies.reproduce_readings import RunReader

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_reproduction(result: Reproduction, reader: RunReader) -> "Figure":
    """Draw a table or a figure of the paper from our runs.

    Args:
        result: The numbers.
        reader: The runs.

    Returns:
        The figure: curves for Figure 2, phase diagrams for Figure 3, and for a table our numbers
        beside the paper's.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: No run is complete.
    """
    return _FIGURES.get(result.target, plot_table)(result, reader)


def plot_curves(result: Reproduction, reader: RunReader) -> "Figure":
    """Draw the columns of Figure 2 over the runs.

    Args:
        result: The numbers of the figure; each of its columns has a panel.
        reader: The runs.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: No run is complete.
    """
    planned = {run.folder.name: run for run in reader.runs.values() if run.is_complete}
    folders = {
        number.row: planned[number.runs[0]].folder
        for number in result.numbers
        if number.runs[0] in planned
    }
    if not folders:
        raise ValueError(_NOTHING)
    logs = {name: reader.log(planned[folder.name].run) for name, folder in folders.items()}
    rows = {name: run_convergence(log, baseline=logs.get("ce")) for name, log in logs.items()}
    curves = {
        name: (
            *read_result(folder / "benchmarks" / "convergence_curves.json", CurveRow).rows,
            *_accuracy_curve(folder, logs[name].length),
        )
        for name, folder in folders.items()
    }
    columns = list(dict.fromkeys(number.column for number in result.numbers))
    return plot_convergence(curves, rows, metrics=columns)


def _accuracy_curve(folder: Path, length: int) -> list[CurveRow]:
    """Return the accuracy on the training images in percent, with its moving average."""
    records = [one for one in RunFolder(folder).records() if one.get("kind") == "evaluation"]
    series = [(one["epoch"], 100 * one[_ACCURACY]) for one in records if _ACCURACY in one]
    averages = moving_average(series, length=length) if series else []
    return [
        CurveRow(_ACCURACY, float(epoch), float(value), float(average))
        for (epoch, value), (_, average) in zip(series, averages, strict=True)
    ]


@styled
def plot_phase_diagrams(result: Reproduction, reader: RunReader) -> "Figure":  # noqa: ARG001
    """Draw the accuracy of Figure 3 by temperature and batch size, one panel per loss.

    Args:
        result: The numbers of the figure; those of runs that are missing are left empty.
        reader: The runs, which this figure has no use for.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: No run is complete.
    """
    values = [float(number.value) for number in result.numbers if isinstance(number.value, float)]
    if not values:
        raise ValueError(_NOTHING)
    losses = list(dict.fromkeys(number.row.split()[0] for number in result.numbers))
    figure, panels = create_figure(len(losses))
    for axes, loss in zip(panels, losses, strict=True):
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
        axes.grid(visible=False)
        axes.set_title(loss)
        axes.set_xlabel("temperature")
        axes.set_ylabel("batch size")
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(sizes)), sizes)
    figure.colorbar(image, ax=panels, label="test accuracy in %")
    return figure


@styled
def plot_table(result: Reproduction, reader: RunReader) -> "Figure":  # noqa: ARG001
    """Draw the numbers of a table beside the paper's, one panel per column.

    Args:
        result: The numbers.
        reader: The runs, which this figure has no use for.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: No run is complete.
    """
    if not any(isinstance(number.value, float | int) for number in result.numbers):
        raise ValueError(_NOTHING)
    rows = list(dict.fromkeys(number.row for number in result.numbers))
    columns = list(dict.fromkeys(number.column for number in result.numbers))
    figure, panels = create_figure(len(columns), columns=4, size=(3.4, 1.2 + 0.25 * len(rows)))
    for axes, column in zip(panels, columns, strict=True):
        own = {number.row: number for number in result.numbers if number.column == column}
        ours = [(own[row].value, place) for place, row in enumerate(rows) if row in own]
        known = [(value, place) for value, place in ours if isinstance(value, float | int)]
        axes.plot(*_points(known), "o", color=PALETTE[0], label="ours")
        paper = [(own[row].paper, place) for place, row in enumerate(rows) if row in own]
        draw_paper(axes, [(value, place) for value, place in paper if value is not None])
        axes.set_yticks(range(len(rows)), labels(rows))
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_title(label(column.replace("_", " ")))
    epochs = ", ".join(map(str, sorted({number.epochs for number in result.numbers})))
    planned = ", ".join(map(str, sorted({number.paper_epochs for number in result.numbers})))
    figure.suptitle(
        f"{label(result.title, 100)}\nours: {epochs} epochs, the paper: {planned} epochs",
        fontsize=10,
    )
    draw_legend(figure, panels)
    return figure


def _points(pairs: Sequence[tuple[float, int]]) -> tuple[list[float], list[int]]:
    return [x for x, _ in pairs], [y for _, y in pairs]


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


_ACCURACY = "train_accuracy"
_NOTHING = "a figure needs a complete run, and there is none"
_FIGURES: Mapping[str, Callable[[Reproduction, RunReader], "Figure"]] = {
    "figure2": plot_curves,
    "figure3-cifar10": plot_phase_diagrams,
    "figure3-cifar100": plot_phase_diagrams,
}
