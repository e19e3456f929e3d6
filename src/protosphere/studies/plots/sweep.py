"""Figures of sweeps: the metric over the settings that were varied."""

from typing import TYPE_CHECKING, Any

from protosphere.report.colors import NEUTRAL, PALETTE
from protosphere.report.phase_diagram import Panel, create_diagram, worst_good_value
from protosphere.runs.sweeps import SweepRecord
from protosphere.studies.plots.figures import create_figure, import_matplotlib, styled
from protosphere.studies.plots.looks import label, labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BEST = "#d62728"


@styled
def plot_sweep(record: SweepRecord) -> "Figure":
    """Draw the phase diagram of a sweep.

    Trials are points, the best one is a star, and the line encloses what is as good as the best.

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
        figure.colorbar(drawn[0], ax=all_axes, label=record.metric.replace("_", " "), **where)
    figure.suptitle(
        f"{label(record.name, 40)}: {record.metric.replace('_', ' ')} on validation images\n"
        "Star: best trial. Line: as good as the best.",
        fontsize=10,
    )
    return figure


def _draw_panel(axes: Any, record: SweepRecord, panel: Panel) -> Any:
    """Draw one panel, and return what a color bar is for; None for a panel of one setting."""
    points = None
    xs, name = panel.points[:, 0], record.metric.replace("_", " ")
    axes.set_xscale("log" if panel.axes[0].is_log else "linear")
    assert record.best is not None
    best = panel.trials.index(record.best)
    if len(panel.axes) == 1:
        along = xs.argsort()
        axes.plot(xs[along], panel.values[along], marker="o", color=PALETTE[0])
        axes.axhline(worst_good_value(record), color=NEUTRAL, linestyle="--", linewidth=1.0)
        axes.set_ylabel(name)
        axes.plot(xs[best], panel.values[best], "*", color=_BEST, markersize=12)
    else:
        ys = panel.points[:, 1]
        axes.grid(visible=False)
        axes.set_yscale("log" if panel.axes[1].is_log else "linear")
        low, high = float(panel.values.min()), float(panel.values.max())
        if panel.surface is not None and low < high:
            axes.contourf(*panel.grid, panel.surface, levels=15, vmin=low, vmax=high)
            axes.contour(
                *panel.grid, panel.surface, levels=[worst_good_value(record)], colors=_BEST
            )
        # The best of several trials at one place is drawn last.
        order = sorted(range(len(xs)), key=lambda i: record.rank(panel.trials[i]), reverse=True)
        points = axes.scatter(
            xs[order], ys[order], c=panel.values[order], vmin=low, vmax=high, edgecolors="white",
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
        drawn.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        drawn.set_major_formatter(ticker.FormatStrFormatter("%g"))
        drawn.set_minor_locator(ticker.NullLocator())
    if axis.names is not None:
        drawn.set_ticks(range(len(axis.names)), labels(axis.names, 20))
    elif axis.ticks:
        drawn.set_ticks(axis.ticks, [f"{value:g}" for value in axis.ticks])
