"""Pictures of benchmarks: curves of convergence and reliability diagrams, with matplotlib."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protosphere.storage import write_atomically
from protosphere.studies.calibration import ReliabilityRow
from protosphere.studies.convergence import (
    CONVERGENCE_METRICS,
    ConvergenceRow,
    CurveRow,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOT_SUFFIXES = (".png", ".svg", ".pdf")
_COLUMNS = 3


def import_matplotlib() -> Any:
    """Import matplotlib, without a window system.

    Raises:
        ImportError: It is not installed.
    """
    try:
        import matplotlib.figure  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install matplotlib") from error
    return matplotlib


def plot_convergence(
    path: Path,
    curves: Mapping[str, Sequence[CurveRow]],
    rows: Mapping[str, Sequence[ConvergenceRow]],
) -> None:
    """Draw the metrics of runs over the percentage of the run, one panel per metric.

    A dashed line is 95 % of neural collapse, a dotted one the last value of the baseline; a circle
    is where the moving average enters the threshold to stay.

    Args:
        path: File to write or replace.
        curves: Logged points by the name of the run.
        rows: When metrics converge, by the name of the run.

    Raises:
        ImportError: matplotlib is not installed.
        StorageError: The file could not be written.
    """
    figure, panels = create_figure(len(CONVERGENCE_METRICS))
    for axes, metric in zip(panels, CONVERGENCE_METRICS, strict=False):
        axes.set_title(metric.replace("_", " "), fontsize=9)
        axes.set_xlabel("% of the run", fontsize=8)
        for name, points in curves.items():
            row = next(row for row in rows[name] if row.metric == metric)
            _draw_curve(axes, name, [point for point in points if point.metric == metric], row)
    lines = {
        label: line
        for axes in panels
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    panels[-1].legend(list(lines.values()), list(lines), loc="center", fontsize=8)
    write_figure(path, figure)


def _draw_curve(axes: Any, name: str, points: Sequence[CurveRow], row: ConvergenceRow) -> None:
    style = {"linewidth": 0.8, "zorder": 0}
    axes.axhline(row.threshold, color="black", linestyle="--", label="95 % of collapse", **style)
    if row.baseline_final is not None:
        text = "last value of the baseline"
        axes.axhline(row.baseline_final, color="gray", linestyle=":", label=text, **style)
    if not points:
        return
    length = points[-1].epoch
    times = [100 * point.epoch / length for point in points]
    averages = [point.moving_average for point in points]
    (line,) = axes.plot(times, averages, label=name, linewidth=1.2)
    axes.plot(times, [point.value for point in points], color=line.get_color(), alpha=0.3)
    reached = row.percent_to_collapse
    if isinstance(reached, float):
        at = min(range(len(times)), key=[abs(time - reached) for time in times].__getitem__)
        axes.plot(times[at], averages[at], "o", color=line.get_color(), fillstyle="none")


def plot_reliability(path: Path, diagrams: Mapping[str, Sequence[ReliabilityRow]]) -> None:
    """Draw reliability diagrams: accuracy over confidence, before and after temperature scaling.

    Args:
        path: File to write or replace.
        diagrams: Bins of one classifier, of both states, by its title.

    Raises:
        ImportError: matplotlib is not installed.
        StorageError: The file could not be written.
    """
    figure, panels = create_figure(len(diagrams))
    for axes, (title, rows) in zip(panels, diagrams.items(), strict=False):
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("confidence", fontsize=8)
        axes.set_ylabel("accuracy", fontsize=8)
        axes.plot([0, 1], [0, 1], color="gray", linestyle=":", linewidth=0.8)
        total = {
            state: sum(row.num_samples for row in rows if row.state == state)
            for state in ("before", "after")
        }
        for state in ("before", "after"):
            filled = [row for row in rows if row.state == state and row.num_samples]
            (line,) = axes.plot(
                [row.confidence for row in filled],
                [row.accuracy for row in filled],
                marker=".",
                linewidth=1.0,
                label=state,
            )
            # The area of a point is the fraction of the images in its bin.
            axes.scatter(
                [row.confidence for row in filled],
                [row.accuracy for row in filled],
                s=[400 * row.num_samples / total[state] for row in filled],
                color=line.get_color(),
                alpha=0.3,
                linewidths=0,
            )
        axes.legend(fontsize=8)
    write_figure(path, figure)


def create_figure(num_axes: int) -> tuple["Figure", list[Any]]:
    """Create a figure with at least as many panels, those without content empty.

    Args:
        num_axes: Number of panels with content.

    Returns:
        The figure, and the axes of all panels.

    Raises:
        ImportError: matplotlib is not installed.
    """
    num_rows = -(-num_axes // _COLUMNS)
    figure = import_matplotlib().figure.Figure(
        figsize=(4 * _COLUMNS, 3 * num_rows), layout="constrained"
    )
    panels = list(figure.subplots(num_rows, _COLUMNS, squeeze=False).flat)
    for axes in panels[num_axes:]:
        axes.axis("off")
    for axes in panels:
        axes.tick_params(labelsize=7)
    return figure, panels


def write_figure(path: Path, figure: "Figure") -> None:
    """Write a figure in the format of the file's suffix.

    Args:
        path: File to write or replace.
        figure: The figure.

    Raises:
        StorageError: The file could not be written.
    """
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:], dpi=150)
    write_atomically(path, content.getvalue())
