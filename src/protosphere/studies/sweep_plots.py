"""Draw the phase diagram of a sweep: as a web page with plotly, as a picture with matplotlib."""

import math
from html import escape
from pathlib import Path
from typing import Any

from protosphere.report.phase_diagram import (
    Panel,
    create_diagram,
    describe_region,
    describe_trial,
    worst_good_value,
)
from protosphere.runs.sweeps import SweepRecord
from protosphere.storage import write_atomically
from protosphere.studies.plots import import_matplotlib, write_figure

_COLORS = "Viridis"
_HEIGHT, _WIDTH = 520, 760
# Panels of a picture beside each other.
_COLUMNS = 3


def write_page(path: Path, record: SweepRecord) -> bool:
    """Write the phase diagram as a web page that needs no network.

    Args:
        path: File to write or replace.
        record: The record of the sweep.

    Returns:
        Whether it was written: it needs plotly, and a complete trial.

    Raises:
        StorageError: The file could not be written.
    """
    try:
        import plotly.graph_objects as go  # noqa: PLC0415
        from plotly.offline import get_plotlyjs  # noqa: PLC0415
    except ImportError:
        return False
    panels = create_diagram(record)
    figures = [
        _create_page_figure(go, record, panel).to_html(full_html=False, include_plotlyjs=False)
        for panel in panels
    ]
    title = escape(f"Sweep of {record.name}")
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        "<style>body{font-family:sans-serif;margin:2em}</style>"
        f"<script>{get_plotlyjs()}</script></head><body><h1>{title}</h1>"
        f"<p>{escape(describe_region(record))}</p>{''.join(figures)}</body></html>"
    )
    if panels:
        write_atomically(path, page.encode())
    return bool(panels)


def _create_page_figure(go: Any, record: SweepRecord, panel: Panel) -> Any:
    figure = go.Figure()
    xs = panel.points[:, 0].tolist()
    text = [describe_trial(record, trial) for trial in panel.trials]
    limit = worst_good_value(record)
    if len(panel.axes) == 1:
        order = sorted(range(len(xs)), key=xs.__getitem__)
        figure.add_scatter(
            x=[xs[i] for i in order],
            y=[float(panel.values[i]) for i in order],
            text=[text[i] for i in order],
            hoverinfo="text",
            mode="lines+markers",
            name="trials",
        )
        figure.add_hline(y=limit, line_dash="dot", annotation_text="as good as the best")
        figure.update_yaxes(title=record.metric.replace("_", " "))
    else:
        ys = panel.points[:, 1].tolist()
        if panel.surface is not None:
            x, y = (axis.tolist() for axis in panel.grid)
            z = [[None if math.isnan(v) else v for v in row] for row in panel.surface.tolist()]
            figure.add_contour(
                x=x, y=y, z=z, colorscale=_COLORS, ncontours=15, hoverinfo="skip",
                colorbar={"title": record.metric.replace("_", " ")},
            )  # fmt: skip
            figure.add_contour(
                x=x, y=y, z=z, showscale=False, hoverinfo="skip", name="best region",
                contours={"type": "constraint", "operation": "=", "value": limit},
                line={"color": "red", "width": 2},
            )  # fmt: skip
        figure.add_scatter(
            x=xs, y=ys, text=text, hoverinfo="text", mode="markers", name="trials",
            marker={
                "color": panel.values.tolist(), "colorscale": _COLORS, "size": 10,
                "showscale": panel.surface is None,
                "line": {"color": "white", "width": 1},
            },
        )  # fmt: skip
        _style_page_axis(figure.update_yaxes, panel, 1)
    best = _best_index(record, panel)
    figure.add_scatter(
        x=[xs[best]],
        y=[float(panel.values[best]) if len(panel.axes) == 1 else float(panel.points[best, 1])],
        text=[text[best]],
        hoverinfo="text",
        mode="markers",
        name="best",
        marker={"symbol": "star", "size": 18, "color": "red"},
    )
    _style_page_axis(figure.update_xaxes, panel, 0)
    figure.update_layout(width=_WIDTH, height=_HEIGHT, template="simple_white", showlegend=False)
    return figure


def _style_page_axis(update: Any, panel: Panel, index: int) -> None:
    axis = panel.axes[index]
    update(title=axis.key, type="log" if axis.is_log else "linear")
    if axis.names is not None:
        update(tickvals=list(range(len(axis.names))), ticktext=[escape(one) for one in axis.names])
    elif axis.ticks:
        update(tickvals=list(axis.ticks), ticktext=[f"{value:g}" for value in axis.ticks])


def plot_sweep(path: Path, record: SweepRecord) -> None:
    """Draw the phase diagram of a sweep with matplotlib.

    Trials are points, the best one is a star, and the line encloses what is as good as the best.

    Args:
        path: File to write or replace.
        record: The record of the sweep.

    Raises:
        ImportError: matplotlib is not installed.
        StorageError: The file could not be written.
    """
    panels = create_diagram(record)
    columns = min(_COLUMNS, max(1, len(panels)))
    rows = max(1, -(-len(panels) // columns))
    figure = import_matplotlib().figure.Figure(
        figsize=(5 * columns, 4 * rows), layout="constrained"
    )
    all_axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in all_axes[len(panels) :]:
        axes.axis("off")
    for axes, panel in zip(all_axes, panels, strict=False):
        _draw_panel(figure, axes, record, panel)
    write_figure(path, figure)


def _draw_panel(figure: Any, axes: Any, record: SweepRecord, panel: Panel) -> None:
    xs, label = panel.points[:, 0], record.metric.replace("_", " ")
    axes.set_xscale("log" if panel.axes[0].is_log else "linear")
    best = _best_index(record, panel)
    if len(panel.axes) == 1:
        along = xs.argsort()
        axes.plot(xs[along], panel.values[along], marker="o", linewidth=1.0)
        axes.axhline(worst_good_value(record), color="gray", linestyle=":", linewidth=0.8)
        axes.set_ylabel(label, fontsize=8)
        axes.plot(xs[best], panel.values[best], "*", color="red", markersize=12)
    else:
        ys = panel.points[:, 1]
        axes.set_yscale("log" if panel.axes[1].is_log else "linear")
        low, high = float(panel.values.min()), float(panel.values.max())
        if panel.surface is not None and low < high:
            axes.contourf(*panel.grid, panel.surface, levels=15, vmin=low, vmax=high)
            axes.contour(
                *panel.grid, panel.surface, levels=[worst_good_value(record)], colors="red"
            )
        # The best of several trials at one place is drawn last.
        order = sorted(range(len(xs)), key=lambda i: record.rank(panel.trials[i]), reverse=True)
        points = axes.scatter(
            xs[order], ys[order], c=panel.values[order], vmin=low, vmax=high, edgecolors="white",
            s=30, zorder=3,
        )  # fmt: skip
        axes.plot(xs[best], ys[best], "*", color="red", markersize=12, zorder=4)
        axes.use_sticky_edges = False
        axes.margins(0.05)
        figure.colorbar(points, ax=axes).set_label(label, fontsize=8)
        _style_axis(axes.yaxis, panel, 1)
    _style_axis(axes.xaxis, panel, 0)


def _style_axis(drawn: Any, panel: Panel, index: int) -> None:
    ticker, axis = import_matplotlib().ticker, panel.axes[index]
    drawn.set_label_text(axis.key, fontsize=8)
    if axis.is_log:
        drawn.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        drawn.set_major_formatter(ticker.FormatStrFormatter("%g"))
        drawn.set_minor_locator(ticker.NullLocator())
    if axis.names is not None:
        drawn.set_ticks(range(len(axis.names)), axis.names)
    elif axis.ticks:
        drawn.set_ticks(axis.ticks, [f"{value:g}" for value in axis.ticks])


def _best_index(record: SweepRecord, panel: Panel) -> int:
    best = record.best
    assert best is not None
    return panel.trials.index(best)
