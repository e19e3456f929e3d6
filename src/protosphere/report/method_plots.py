"""Figures of summaries over seeds: dots by category, and lines, with one color per method."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from textwrap import wrap
from typing import Any, NamedTuple

from protosphere.report.colors import DIVERGING, NEUTRAL, PALETTE, run_colors, run_dashes
from protosphere.report.content import Figure
from protosphere.report.curves import shorten
from protosphere.report.plotly_text import plain
from protosphere.report.sources import ReportData
from protosphere.report.summaries import Summary, format_summary

# Pixels of a figure of dots: everything but the rows, and limits of a row.
_FRAME, _ROW, _LARGEST_ROW, _DOT = 120, 34, 110, 10
_LEGEND_LINE, _LABEL_LINE, _MAX_LEGEND = 19, 15, 12
# Characters of a line of a label.
_LABEL_WIDTH = 18
# More methods than this are drawn as a heat map, with rows of so many pixels.
_MAX_DOTS, _HEAT_ROW = 10, 20
_HEAT_READING = "colors are differences to the mean of all methods, column by column."
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross")
# Fraction of a row that dots of different methods are spread over.
_SPREAD = 0.7


class Style(NamedTuple):
    """How figures show a method.

    Attributes:
        color: Color.
        symbol: Symbol of plotly.
        dash: Line style of plotly.
    """

    color: str
    symbol: str = "circle"
    dash: str = "solid"


@dataclass(frozen=True)
class Dots:
    """The dots of one method.

    Attributes:
        name: Name of the method, as plain text.
        style: Color and symbol.
        values: Summaries by category.
    """

    name: str
    style: Style
    values: Mapping[str, Summary]


@dataclass(frozen=True)
class Line:
    """The line of one method.

    Attributes:
        name: Name of the method, as plain text.
        style: Color, symbol and line style.
        points: Position and summary of each point.
    """

    name: str
    style: Style
    points: Sequence[tuple[float, Summary]]


def method_styles(report: ReportData) -> dict[str, Style]:
    """Return how figures show each method, the same in all of them.

    Args:
        report: The report. From the ninth method on colors repeat, with other symbols and lines.
    """
    methods = list(dict.fromkeys(run.method for run in report.runs))
    colors, dashes = run_colors(methods), run_dashes(methods)
    return {
        method: Style(
            colors[method], _SYMBOLS[index // len(PALETTE) % len(_SYMBOLS)], dashes[method]
        )
        for index, method in enumerate(methods)
    }


def draw_dots(
    name: str,
    title: str,
    meaning: str,
    *,
    reading: str = "",
    categories: Mapping[str, str],
    dots: Sequence[Dots],
    value_title: str,
    scale: float = 100.0,
    axis: Mapping[str, Any] | None = None,
) -> Figure:
    """Return a figure with one row per category and one dot per method, side by side in the row.

    More than ten methods are a heat map instead, in which colors are differences to the mean of the
    category over the methods.

    Args:
        name: Identifier of the figure.
        title: Title.
        meaning: What it shows, the beginning of a sentence.
        reading: How to read the dots, the rest of the sentence.
        categories: Categories from top to bottom, with their labels.
        dots: The dots of each method; the bars of dots are one standard deviation.
        value_title: Title of the axis of values.
        scale: Factor of the values; 100 shows fractions in percent.
        axis: Further settings of the axis of values.
    """
    shown = [row for row in categories if any(row in one.values for one in dots)]
    drawn = [one for one in dots if any(row in one.values for row in shown)]
    if len(drawn) > _MAX_DOTS:
        figure = Figure(name, title, f"{meaning}; {_HEAT_READING}", (), {})
        return _draw_heat_map(figure, categories, shown, drawn, scale)
    places = {row: index for index, row in enumerate(shown)}
    most = max((sum(row in one.values for one in drawn) for row in shown), default=1)
    traces = []
    for one in drawn:
        rows = [row for row in shown if row in one.values]
        summaries = [one.values[row] for row in rows]
        texts = [
            f"{plain(one.name)}<br>{plain(categories[row])}: "
            f"{format_summary(summary, scale=scale, digits=1)}"
            for row, summary in zip(rows, summaries, strict=True)
        ]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": plain(shorten(one.name)),
                "x": [scale * summary.mean for summary in summaries],
                "y": [places[row] + _offset(one, row, drawn, most) for row in rows],
                "text": texts,
                "hoverinfo": "text",
                "marker": {"color": one.style.color, "size": 9, "symbol": one.style.symbol},
                "error_x": _error_bars(summaries, scale, one.style.color),
            }
        )
    labels = [_wrap(categories[row]) for row in shown]
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": value_title}, **(axis or {})},
        "yaxis": {
            "tickmode": "array",
            "tickvals": list(places.values()),
            "ticktext": labels,
            "range": [len(shown) - 0.5, -0.5],
            "showgrid": False,
            "zeroline": False,
            "automargin": True,
        },
        "shapes": [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": index - 0.5,
                "y1": index - 0.5,
                "line": {"color": NEUTRAL, "width": 1, "dash": "dot"},
                "opacity": 0.4,
            }
            for index in range(1, len(shown))
        ],
        "hovermode": "closest",
        "showlegend": len(drawn) > 1,
    }
    label_lines = max((label.count("<br>") + 1 for label in labels), default=1)
    row_height = max(_ROW, min(_DOT * most, _LARGEST_ROW), _LABEL_LINE * label_lines + 8)
    # On a phone each entry of the legend has a line of its own.
    height = _FRAME + row_height * len(shown) + _LEGEND_LINE * min(len(drawn), _MAX_LEGEND)
    sentence = f"{meaning}; {reading}." if reading else f"{meaning}."
    return Figure(name, title, sentence, tuple(traces), layout, height=max(height, 240))


def _draw_heat_map(
    figure: Figure,
    categories: Mapping[str, str],
    shown: Sequence[str],
    drawn: Sequence[Dots],
    scale: float,
) -> Figure:
    """The values of many methods: one row per method, one column per category."""
    means = {
        row: fmean(one.values[row].mean for one in drawn if row in one.values) for row in shown
    }
    trace = {
        "type": "heatmap",
        "name": "difference to the mean",
        "z": [
            [
                scale * (one.values[row].mean - means[row]) if row in one.values else None
                for row in shown
            ]
            for one in drawn
        ],
        "x": list(range(len(shown))),
        "y": list(range(len(drawn))),
        "text": [
            [
                f"{plain(one.name)}<br>{plain(categories[row])}: "
                f"{format_summary(one.values.get(row), scale=scale, digits=1)}"
                for row in shown
            ]
            for one in drawn
        ],
        "hoverinfo": "text",
        "colorscale": DIVERGING,
        "zmid": 0,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {
            "title": {"text": "difference" + " (points)" * (scale == 100), "side": "top"},
            "orientation": "h",
            "thickness": 10,
            "y": 1.0,
            "yanchor": "bottom",
        },
    }
    layout = {
        "xaxis": {
            "tickmode": "array",
            "tickvals": list(range(len(shown))),
            "ticktext": [plain(shorten(categories[row], 24)) for row in shown],
            "tickangle": -90,
            "tickfont": {"size": 11},
            "showgrid": False,
            "zeroline": False,
        },
        "yaxis": {
            "tickmode": "array",
            "tickvals": list(range(len(drawn))),
            "ticktext": [plain(shorten(one.name, 22)) for one in drawn],
            "tickfont": {"size": 11},
            "autorange": "reversed",
            "showgrid": False,
            "zeroline": False,
        },
        "hovermode": "closest",
    }
    height = 280 + _HEAT_ROW * len(drawn)
    return replace(figure, data=(trace,), layout=layout, height=height)


def _offset(one: Dots, row: str, drawn: Sequence[Dots], most: int) -> float:
    """Where a dot stands in its row, so that dots of one row do not lie on each other."""
    members = [other for other in drawn if row in other.values]
    return (members.index(one) - (len(members) - 1) / 2) * _SPREAD / most


def _wrap(label: str) -> str:
    """A label of an axis in short lines, which leave room for the figure on a phone."""
    lines = wrap(label, _LABEL_WIDTH, max_lines=3, placeholder="…")
    return "<br>".join(map(plain, lines))


def draw_lines(
    name: str,
    title: str,
    meaning: str,
    *,
    lines: Sequence[Line],
    x_title: str,
    value_title: str,
    x_axis: Mapping[str, Any] | None = None,
) -> Figure:
    """Return a figure with one line per method, fractions in percent.

    Args:
        name: Identifier of the figure.
        title: Title.
        meaning: One sentence about it.
        lines: The lines; the bars of points are one standard deviation.
        x_title: Title of the horizontal axis.
        value_title: Title of the vertical axis.
        x_axis: Further settings of the horizontal axis.
    """
    traces = []
    for line in lines:
        summaries = [summary for _, summary in line.points]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": plain(shorten(line.name)),
                "x": [x for x, _ in line.points],
                "y": [100 * summary.mean for summary in summaries],
                "text": [
                    f"{plain(line.name)}<br>{plain(x_title)} {x:g}: "
                    f"{format_summary(summary, scale=100, digits=1)}"
                    for x, summary in line.points
                ],
                "hoverinfo": "text",
                "line": {"color": line.style.color, "dash": line.style.dash, "width": 2},
                "marker": {"color": line.style.color, "size": 7, "symbol": line.style.symbol},
                "error_y": _error_bars(summaries, 100, line.style.color),
            }
        )
    layout = {
        "xaxis": {"title": {"text": x_title}, **(x_axis or {})},
        "yaxis": {"title": {"text": value_title}},
        "hovermode": "closest",
        "showlegend": len(lines) > 1,
    }
    height = 380 + _LEGEND_LINE * min(len(lines), _MAX_LEGEND)
    return Figure(name, title, meaning, tuple(traces), layout, height=height)


def _error_bars(summaries: Sequence[Summary], scale: float, color: str) -> dict[str, Any]:
    deviations = [scale * (summary.std or 0.0) for summary in summaries]
    if not any(deviations):
        return {"visible": False}
    return {"type": "data", "array": deviations, "color": color, "thickness": 2, "width": 0}
