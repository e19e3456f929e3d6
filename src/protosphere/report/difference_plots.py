"""Differences to a baseline as a figure: means with confidence intervals, and single seeds."""

from collections.abc import Sequence
from typing import Any

from protosphere.report.colors import BAD, GOOD, NEUTRAL
from protosphere.report.comparison_text import decimals_of, format_interval
from protosphere.report.content import Figure
from protosphere.report.curves import finite, shorten
from protosphere.report.metric_text import format_metric, is_percentage
from protosphere.report.plotly_text import plain
from protosphere.runs.comparison import ComparedMetric, Comparison, MetricDifference

_SIDES = {
    "higher": "right of the line is better than the baseline",
    "lower": "left of the line is better than the baseline",
    "target": "distances from the value at collapse are compared, and left of the line is better "
    "than the baseline",
    None: "neither side is better",
}
# Name, color and symbol of the outcomes of a test.
OUTCOMES = {
    "better": ("clearly better", GOOD, "circle"),
    "worse": ("clearly worse", BAD, "circle"),
    "different": ("clearly different", NEUTRAL, "circle"),
    "not clear": ("not clear", NEUTRAL, "circle-open"),
    None: ("not tested", NEUTRAL, "circle-open"),
}


def draw_differences(
    name: str, title: str, comparison: Comparison, metric: ComparedMetric
) -> Figure | None:
    """Return the differences of all methods to the baseline; None if there are none.

    Args:
        name: Identifier of the figure.
        title: Text before the title.
        comparison: The comparison.
        metric: The metric.
    """
    rows = [row for row in comparison.differences if row.metric == metric.name]
    rows = [row for row in rows if finite(row.mean) is not None]
    if not rows:
        return None
    scale = 100 if is_percentage(metric.name) else 1
    unit = " (percentage points)" if scale == 100 else ""
    decimals = decimals_of(comparison, metric.name)
    traces: list[dict[str, Any]] = [_draw_seeds(comparison, metric, rows, scale)]
    for outcome, (label, color, symbol) in OUTCOMES.items():
        places = [place for place, row in enumerate(rows) if row.outcome == outcome]
        if not places:
            continue
        members = [rows[place] for place in places]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": label,
                "x": [scale * row.mean for row in members],
                "y": places,
                "text": [_describe(row, decimals, label) for row in members],
                "hoverinfo": "text",
                "marker": {"color": color, "size": 11, "symbol": symbol},
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [
                        scale * (row.high - row.mean) if row.high is not None else 0
                        for row in members
                    ],
                    "arrayminus": [
                        scale * (row.mean - row.low) if row.low is not None else 0
                        for row in members
                    ],
                    "color": color,
                    "thickness": 2,
                    "width": 5,
                },
            }
        )
    confidence = f"{100 * comparison.confidence:g}%"
    return Figure(
        name,
        f"{title}Difference to {shorten(comparison.baseline)}: {metric.name}",
        f"Mean difference with its {confidence} confidence interval, small dots being seeds; "
        f"{_SIDES[metric.direction]}, and an interval that crosses the line leaves open whether "
        "there is a difference.",
        tuple(traces),
        {
            "xaxis": {
                "title": {"text": f"difference{unit}"},
                "zeroline": True,
                "zerolinewidth": 2,
            },
            "yaxis": {
                "tickmode": "array",
                "tickvals": list(range(len(rows))),
                "ticktext": [plain(shorten(row.method, 24)) for row in rows],
                "range": [len(rows) - 0.5, -0.5],
                "showgrid": False,
                "zeroline": False,
            },
            "shapes": [
                {
                    "type": "line",
                    "yref": "paper",
                    "x0": 0,
                    "x1": 0,
                    "y0": 0,
                    "y1": 1,
                    "line": {"color": NEUTRAL, "width": 2, "dash": "dash"},
                }
            ],
            "hovermode": "closest",
            "showlegend": True,
        },
        height=170 + 44 * len(rows),
    )


def _describe(row: MetricDifference, decimals: int, label: str) -> str:
    mean = format_metric(row.metric, row.mean, decimals, sign="+")
    return f"{plain(row.method)}<br>{mean} {format_interval(row, decimals)}<br>{label}"


def _draw_seeds(
    comparison: Comparison,
    metric: ComparedMetric,
    rows: Sequence[MetricDifference],
    scale: int,
) -> dict[str, Any]:
    values = {
        (run.method, run.seed): value
        for run in comparison.runs
        if (value := finite(run.values.get(metric.name))) is not None
    }
    points = [
        (
            place,
            row.method,
            seed,
            _score(metric, values[row.method, seed]) - _score(metric, values[key]),
        )
        for place, row in enumerate(rows)
        for seed in row.seeds
        if (key := (comparison.baseline, seed)) in values and (row.method, seed) in values
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "single seeds",
        "x": [scale * difference for _, _, _, difference in points],
        "y": [place + 0.22 for place, _, _, _ in points],
        "text": [
            f"{plain(method)}, seed {seed}: {scale * difference:+.4g}"
            for _, method, seed, difference in points
        ],
        "hoverinfo": "text",
        "marker": {"color": NEUTRAL, "size": 5},
    }


def _score(metric: ComparedMetric, value: float) -> float:
    """What is compared: the value, or its distance from the target."""
    return value if metric.target is None else abs(value - metric.target)
