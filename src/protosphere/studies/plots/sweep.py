"""Figures of sweeps: the metric over the settings that were varied."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from protosphere.report.colors import NEUTRAL, PALETTE
from protosphere.report.metric_text import is_percentage
from protosphere.report.phase_diagram import Panel, create_diagram, log_ticks, worst_good_value
from protosphere.runs.sweeps import SweepRecord
from protosphere.studies.plots.figures import create_figure, import_matplotlib, styled
from protosphere.studies.plots.looks import label, labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BEST = "#d62728"


@styled
def plot_sweep(record: SweepRecord) -> "Figure":
    """Draw the phase diagram of a sweep.

    Trials are points, the best one is a star, and a line separates what is as good as the best.

    Args:
        record: The record of the sweep.

    Returns:
        The figure, one panel for each setting or pair of settings.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: No trial is complete.
    """
    diagram = create_diagram(record)
    if not diagram:
        raise ValueError("a figure needs a complete trial, and there is none")
    figure, all_axes = create_figure(
        len(diagram), size=(5.0, 4.0) if len(diagram) == 1 else (4.2, 3.2)
    )
    drawn = [
        _draw_panel(axes, record, panel) for axes, panel in zip(all_axes, diagram, strict=True)
    ]
    if drawn[0] is not None:
        # One bar for all panels: they have the same trials.
        where: dict[str, Any] = {}
        if len(diagram) > 1:
            where = {"location": "bottom", "shrink": 0.5, "aspect": 40}
        figure.colorbar(drawn[0], ax=all_axes, label=_metric(record), **where)
    figure.suptitle(
        f"{label(record.name, 40)}: {record.metric.replace('_', ' ')} on validation images\n"
        f"Star: best trial. {_describe_line(record, diagram)}",
        fontsize=10,
    )
    return figure


def _metric(record: SweepRecord) -> str:
    return record.metric.replace("_", " ") + (" in %" if is_percentage(record.metric) else "")


def _describe_line(record: SweepRecord, diagram: Sequence[Panel]) -> str:
    if len(diagram[0].axes) == 1:
        side = "Above" if record.direction == "maximize" else "Below"
        return f"{side} the line: as good as the best."
    if any(panel.surface is not None for panel in diagram):
        return "On its side of the red line: as good as the best."
    return ""


def _draw_panel(axes: Any, record: SweepRecord, panel: Panel) -> Any:
    """Draw one panel, and return what a color bar is for; None for a panel of one setting."""
    points = None
    xs = panel.points[:, 0]
    scale = 100 if is_percentage(record.metric) else 1
    values, limit = scale * panel.values, scale * (worst_good_value(record) or 0.0)
    axes.set_xscale("log" if panel.axes[0].is_log else "linear")
    assert record.best is not None
    best = panel.trials.index(record.best)
    if len(panel.axes) == 1:
        along = xs.argsort()
        axes.plot(xs[along], values[along], marker="o", color=PALETTE[0])
        axes.axhline(limit, color=NEUTRAL, linestyle="--", linewidth=1.0)
        axes.set_ylabel(_metric(record))
        axes.plot(xs[best], values[best], "*", color=_BEST, markersize=12)
    else:
        ys = panel.points[:, 1]
        axes.grid(visible=False)
        axes.set_yscale("log" if panel.axes[1].is_log else "linear")
        low, high = float(values.min()), float(values.max())
        if panel.surface is not None and low < high:
            surface = scale * panel.surface
            axes.contourf(*panel.grid, surface, levels=15, vmin=low, vmax=high)
            axes.contour(*panel.grid, surface, levels=[limit], colors=_BEST)
        # The best of several trials at one place is drawn last.
        order = sorted(range(len(xs)), key=lambda i: record.rank(panel.trials[i]), reverse=True)
        points = axes.scatter(
            xs[order], ys[order], c=values[order], vmin=low, vmax=high, edgecolors="white",
            s=30, zorder=3,
        )  # fmt: skip
        axes.plot(
            xs[best], ys[best], "*", color=_BEST, markersize=13, markeredgecolor="white", zorder=4
        )
        axes.use_sticky_edges = False
        axes.margins(0.05)
        _style_axis(axes.yaxis, panel, 1)
    _style_axis(axes.xaxis, panel, 0)
    return points


def _style_axis(drawn: Any, panel: Panel, index: int) -> None:
    ticker, axis = import_matplotlib().ticker, panel.axes[index]
    drawn.set_label_text(label(axis.key, 40))
    if axis.is_log:
        drawn.set_minor_locator(ticker.NullLocator())
    ticks = axis.ticks or (log_ticks(panel.points[:, index]) if axis.is_log else ())
    if axis.names is not None:
        drawn.set_ticks(range(len(axis.names)), labels(axis.names, 20))
    elif ticks:
        drawn.set_ticks(ticks, [f"{value:g}" for value in ticks])
