"""Draw the phase diagram of a sweep as a web page, with plotly."""

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

_COLORS = "Viridis"
_HEIGHT, _WIDTH = 520, 760


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


def _best_index(record: SweepRecord, panel: Panel) -> int:
    best = record.best
    assert best is not None
    return panel.trials.index(best)
