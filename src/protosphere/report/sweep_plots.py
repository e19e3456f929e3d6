"""The phase diagram of a sweep as figures: one setting as a curve, two as a surface."""

import math
from collections.abc import Sequence
from typing import Any

from protosphere.report.colors import BAD, NEUTRAL
from protosphere.report.content import Figure
from protosphere.report.curves import shorten
from protosphere.report.metric_text import is_percentage
from protosphere.report.phase_diagram import (
    Axis,
    Panel,
    create_diagram,
    describe_trial,
    log_ticks,
    worst_good_value,
)
from protosphere.report.plotly_text import plain
from protosphere.runs.sweeps import SweepRecord, SweepTrial

_COLORS = "Viridis"
# Symbols of trials without a value.
_OTHERS = {"failed": "x-thin-open", "pruned": "circle-open", "running": "hourglass-open"}


def draw_diagram(name: str, record: SweepRecord) -> list[tuple[str, Figure]]:
    """Return the phase diagram: a figure for one setting or two, one per pair of more settings.

    Args:
        name: Identifier of the first figure, and beginning of the others'.
        record: The record of the sweep.

    Returns:
        The settings of each figure, as plain text, and the figure; empty without a complete trial.
    """
    return [
        (
            " and ".join(axis.key for axis in panel.axes),
            _draw_panel(f"{name}-{index}", record, panel),
        )
        for index, panel in enumerate(create_diagram(record))
    ]


def _draw_panel(name: str, record: SweepRecord, panel: Panel) -> Figure:
    scale = 100 if is_percentage(record.metric) else 1
    metric = record.metric.replace("_", " ") + (" (%)" if scale == 100 else "")
    is_curve = len(panel.axes) == 1
    traces = (
        _draw_curve(record, panel, scale) if is_curve else _draw_plane(record, panel, scale, metric)
    )
    traces.append(_draw_best(record, panel, scale))
    layout: dict[str, Any] = {
        "xaxis": _style_axis(panel.axes[0], panel.points[:, 0]),
        "yaxis": {"title": {"text": plain(metric)}}
        if is_curve
        else _style_axis(panel.axes[1], panel.points[:, 1]),
        "hovermode": "closest",
        "showlegend": True,
    }
    if is_curve and (limit := worst_good_value(record)) is not None:
        layout["shapes"] = [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": scale * limit,
                "y1": scale * limit,
                "line": {"color": NEUTRAL, "width": 1.5, "dash": "dot"},
            }
        ]
    keys = " and ".join(axis.key for axis in panel.axes)
    return Figure(
        name,
        f"Validation {record.metric.replace('_', ' ')} over {keys}",
        _describe(record, panel),
        tuple(traces),
        layout,
        height=500,
    )


def _describe(record: SweepRecord, panel: Panel) -> str:
    star = "the star is the best one"
    if len(panel.axes) == 1:
        side = "above" if record.direction == "maximize" else "below"
        return (
            f"Each dot is a trial, {star}, and trials {side} the dotted line are as good as the "
            "best within the error of the measurement."
        )
    if panel.surface is None:
        return f"Each dot is a trial, its color the metric, and {star}."
    return (
        f"Each dot is a trial, {star}, colors between trials are interpolated, and settings on "
        "the star's side of the red line are as good as the best within the error of the "
        "measurement."
    )


def _draw_curve(record: SweepRecord, panel: Panel, scale: int) -> list[dict[str, Any]]:
    xs = panel.points[:, 0].tolist()
    order = sorted(range(len(xs)), key=xs.__getitem__)
    is_alone = len(record.settings) == 1 and panel.axes[0].names is None
    return [
        {
            "type": "scatter",
            "mode": "lines+markers" if is_alone else "markers",
            "name": "trials",
            "x": [xs[index] for index in order],
            "y": [scale * float(panel.values[index]) for index in order],
            "text": [plain(describe_trial(record, panel.trials[index])) for index in order],
            "hoverinfo": "text",
            "marker": {"size": 8},
        }
    ]


def _draw_plane(record: SweepRecord, panel: Panel, scale: int, metric: str) -> list[dict[str, Any]]:
    traces: list[dict[str, Any]] = []
    bar = {"title": {"text": plain(metric), "side": "right"}, "thickness": 14, "outlinewidth": 0}
    low, high = scale * float(panel.values.min()), scale * float(panel.values.max())
    limit = worst_good_value(record)
    if panel.surface is not None and low < high and limit is not None:
        x, y = (axis.tolist() for axis in panel.grid)
        z = [
            [None if math.isnan(value) else scale * value for value in row]
            for row in panel.surface.tolist()
        ]
        surface = {"type": "contour", "x": x, "y": y, "z": z, "hoverinfo": "skip"}
        traces += [
            surface
            | {
                "name": "interpolation",
                "colorscale": _COLORS,
                "zmin": low,
                "zmax": high,
                "ncontours": 15,
                "line": {"width": 0},
                "showlegend": False,
                "showscale": False,
            },
            surface
            | {
                "name": "as good as the best",
                "showscale": False,
                "showlegend": False,
                "contours": {"type": "constraint", "operation": "=", "value": scale * limit},
                "line": {"color": BAD, "width": 2},
            },
        ]
    xs, ys = panel.points[:, 0].tolist(), panel.points[:, 1].tolist()
    # The best of several trials at one place is drawn last.
    order = sorted(range(len(xs)), key=lambda i: record.rank(panel.trials[i]), reverse=True)
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "trials",
            "x": [xs[index] for index in order],
            "y": [ys[index] for index in order],
            "text": [plain(describe_trial(record, panel.trials[index])) for index in order],
            "hoverinfo": "text",
            "marker": {
                "color": [scale * float(panel.values[index]) for index in order],
                "colorscale": _COLORS,
                "cmin": low,
                "cmax": high,
                "size": 10,
                "showscale": True,
                "colorbar": bar,
                "line": {"color": "white", "width": 1.5},
            },
        }
    )
    return [*traces, *_draw_others(record, panel)]


def _draw_others(record: SweepRecord, panel: Panel) -> list[dict[str, Any]]:
    """Trials without a value, where they would stand."""
    traces = []
    for state, symbol in _OTHERS.items():
        points = []
        for trial in record.trials:
            place = [axis.position(trial.settings.get(axis.key)) for axis in panel.axes]
            if trial.state == state and None not in place:
                points.append((place, trial))
        if points:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": state,
                    "x": [place[0] for place, _ in points],
                    "y": [place[1] for place, _ in points],
                    "text": [_describe_other(record, trial) for _, trial in points],
                    "hoverinfo": "text",
                    "marker": {
                        "symbol": symbol,
                        "size": 10,
                        "color": NEUTRAL,
                        "line": {"color": NEUTRAL, "width": 2},
                    },
                }
            )
    return traces


def _describe_other(record: SweepRecord, trial: SweepTrial) -> str:
    error = "" if trial.error is None else f"<br>{plain(shorten(trial.error, 120))}"
    return f"{plain(describe_trial(record, trial))}<br>{trial.state}{error}"


def _draw_best(record: SweepRecord, panel: Panel, scale: int) -> dict[str, Any]:
    index = min(range(len(panel.trials)), key=lambda i: record.rank(panel.trials[i]))
    y = (
        scale * float(panel.values[index])
        if len(panel.axes) == 1
        else float(panel.points[index, 1])
    )
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "best",
        "x": [float(panel.points[index, 0])],
        "y": [y],
        "text": [plain(describe_trial(record, panel.trials[index]))],
        "hoverinfo": "text",
        "marker": {
            "symbol": "star",
            "size": 18,
            "color": BAD,
            "line": {"color": "white", "width": 1.5},
        },
    }


def _style_axis(axis: Axis, values: Any) -> dict[str, Any]:
    style: dict[str, Any] = {"title": {"text": plain(axis.key)}, "zeroline": False}
    if axis.names is not None:
        places = list(range(len(axis.names)))
        names = [plain(shorten(name, 20)) for name in axis.names]
        return style | {"tickmode": "array", "tickvals": places, "ticktext": names}
    if axis.is_log:
        style["type"] = "log"
    ticks: Sequence[float] = axis.ticks or (log_ticks(values) if axis.is_log else ())
    if ticks:
        names = [f"{value:g}" for value in ticks]
        style |= {"tickmode": "array", "tickvals": list(ticks), "ticktext": names}
    return style
