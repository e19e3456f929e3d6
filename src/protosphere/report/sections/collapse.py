"""The section on neural collapse: the paper's Figure 2 for the runs, and metrics at the end."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from protosphere.metrics.convergence import (
    Never,
    Threshold,
    collapse_thresholds,
    convergence_time,
    moving_average,
)
from protosphere.report.collapse_tables import create_conditions, create_metrics
from protosphere.report.colors import NEUTRAL
from protosphere.report.content import Block, Figure, Note, Section
from protosphere.report.curves import (
    LEGEND,
    SEEDS,
    Method,
    curve_traces,
    finite,
    group_methods,
    has_curve,
    have_markers,
    mean_curve,
    note_without_curves,
    read_series,
    shorten,
)
from protosphere.report.metric_text import CONVERGENCE_METRICS
from protosphere.report.plotly_text import plain
from protosphere.report.run_shape import feature_dim, num_classes
from protosphere.report.sources import ReportData, RunData

# In the order of the paper's figure.
COLLAPSE_CURVES = {"train_accuracy": "Training accuracy", **CONVERGENCE_METRICS}
_COLUMNS = 3


class RunCurve(NamedTuple):
    """One metric of a run over the percentage of the run.

    Attributes:
        points: Percentage of the run and value, at each evaluation.
        threshold: Bound of 95% of collapse; None if there is none or it is not known.
        reached: Percentage of the run at which the moving average enters the threshold to stay, and
            the average there; None if it does not.
    """

    points: list[tuple[float, float]]
    threshold: Threshold | None
    reached: tuple[float, float] | None


class _Bound(NamedTuple):
    """A threshold of some runs."""

    value: float
    size: str
    methods: list[str]


def create_section(report: ReportData) -> Section | None:
    """Return the section on neural collapse, or None if no run has measured a metric of it.

    Args:
        report: The runs.
    """
    methods = group_methods(report.runs)
    metrics = create_metrics(methods)
    # The section on training has the note, if there is one.
    is_noted = any(record.get("kind") == "train" for run in report.runs for record in run.records)
    single = None if metrics is None or is_noted else note_without_curves(report.runs)
    parts = (_create_figure(methods), single, metrics, create_conditions(methods))
    blocks: list[Block] = [block for block in parts if block is not None]
    if not blocks:
        return None
    unevaluated = [run.name for run in report.runs if not run.evaluations]
    if unevaluated:
        text = (
            f"There is no evaluation of {', '.join(unevaluated)}: metrics of collapse are measured "
            "at each evaluation, the first of which is after evaluation.every epochs."
        )
        blocks.append(Note(text, kind="missing"))
    has_seeds = any(len(method.runs) > 1 for method in methods)
    return Section(
        "collapse",
        "Neural collapse",
        "How close the training features and the prototypes are to neural collapse: the features "
        "of a class equal their class mean, class means form a simplex, and prototypes are the "
        "class means." + (f" {SEEDS}" if has_seeds else ""),
        tuple(blocks),
    )


def run_curve(run: RunData, metric: str) -> RunCurve | None:
    """Return a metric of a run over the percentage of the run; None if it was not logged.

    Args:
        run: The run.
        metric: Name of the metric.
    """
    series = read_series(run.evaluations, metric)
    length = _run_length(run)
    if not series or length is None:
        return None
    points = [(100 * epoch / length, value) for epoch, value in series]
    threshold = _thresholds(run).get(metric)
    if threshold is None:
        return RunCurve(points, None, None)
    time = convergence_time(series, threshold, length=length)
    if isinstance(time, Never):
        return RunCurve(points, threshold, None)
    average = dict(moving_average(series, length=length))[time]
    return RunCurve(points, threshold, (100 * time / length, float(average)))


def _run_length(run: RunData) -> float | None:
    """The epochs of the run: those that it has, or those of the recipe if it has not ended."""
    epochs = [epoch for record in run.evaluations if (epoch := finite(record.get("epoch")))]
    if not epochs:
        return None
    schedule = run.recipe.get("schedule")
    planned = finite(schedule.get("epochs")) if isinstance(schedule, Mapping) else None
    if run.state == "complete" or planned is None:
        return max(epochs)
    return max(planned, *epochs)


def _thresholds(run: RunData) -> dict[str, Threshold]:
    """The thresholds of a run that are known without guessing its classes or its dimension."""
    classes, dim = num_classes(run), feature_dim(run)
    thresholds = collapse_thresholds(max(classes or 2, 2), dim or 1)
    if classes is None or classes < 2:
        thresholds = {name: row for name, row in thresholds.items() if "rank" not in name}
    if dim is None:
        thresholds.pop("intra_effective_rank", None)
    return thresholds


def _create_figure(methods: Sequence[Method]) -> Figure | None:
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"annotations": [], "hovermode": "closest", "legend": LEGEND}
    rows = math.ceil(len(COLLAPSE_CURVES) / _COLUMNS)
    runs = [run for method in methods for run in method.runs if has_curve(run)]
    lengths = {length for run in runs if (length := _run_length(run)) is not None}
    # Runs of different lengths are comparable by the percentage of the run.
    length = lengths.pop() if len(lengths) == 1 else None
    named: set[str] = set()
    for index, (metric, title) in enumerate(COLLAPSE_CURVES.items()):
        suffix = "" if index == 0 else str(index + 1)
        axes = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
        bounds: dict[float, _Bound] = {}
        marks: list[dict[str, Any]] = []
        curves = [
            [
                (run, _scaled(curve, metric, length))
                for run in method.runs
                if has_curve(run) and (curve := run_curve(run, metric)) is not None
            ]
            for method in methods
        ]
        means = [mean_curve(curve.points for _, curve in of_method) for of_method in curves]
        for method, mean, of_method in zip(methods, means, curves, strict=True):
            drawn = curve_traces(
                method,
                mean,
                x="{}% of the run" if length is None else "epoch {}",
                y=f"{title} {{}}" + ("%" if metric == "train_accuracy" else ""),
                markers=have_markers(means),
                axes=axes,
                in_legend=method.name not in named,
            )
            named |= {method.name} if drawn else set()
            traces += drawn
            marks += _create_marks(method, [curve for _, curve in of_method], axes, length)
            for run, curve in of_method:
                if curve.threshold is not None:
                    value = float(curve.threshold.value)
                    bound = bounds.setdefault(value, _Bound(value, _describe_size(run, metric), []))
                    bound.methods.append(method.name)
        for bound in bounds.values():
            traces.append(_create_bound(bound, axes, length, is_only=len(bounds) == 1))
        traces += marks
        layout |= _create_axes(index, rows, suffix, metric, length)
        layout["annotations"].append(_create_title(f"({'abcdef'[index]}) {title}", axes))
    if not any("hovertemplate" in trace for trace in traces):
        return None
    _name_once(traces, "95% of collapse")
    _name_once(traces, "reached, to stay")
    return Figure(
        "collapse-curves",
        "Convergence to neural collapse",
        "The six metrics of Figure 2 of the paper Neural Collapse by Design over the run, measured "
        "on training images: dashed lines are 95% of neural collapse, which is 0.1 (5% of the "
        "largest value) in (b) and (c), 95% of K−1 for K classes in (d) and (f), and 5% of the "
        "dimension d of the features in (e); a circle is where the moving average of a run enters "
        "it to stay.",
        tuple(traces),
        layout,
        height=290 * rows + 60,
    )


def _scaled(curve: RunCurve, metric: str, length: float | None) -> RunCurve:
    """The curve in epochs, if the length of the runs is given; accuracy in percent."""
    time = 1.0 if length is None else length / 100
    value = 100.0 if metric == "train_accuracy" else 1.0
    return RunCurve(
        [(time * x, value * y) for x, y in curve.points],
        curve.threshold,
        None if curve.reached is None else (time * curve.reached[0], curve.reached[1]),
    )


def _describe_size(run: RunData, metric: str) -> str:
    """What a threshold depends on."""
    if metric == "intra_effective_rank":
        return f"d = {feature_dim(run)}"
    return f"K = {num_classes(run)}"


def _create_marks(
    method: Method, curves: Sequence[RunCurve], axes: Mapping[str, str], length: float | None
) -> list[dict[str, Any]]:
    reached = [curve.reached for curve in curves if curve.reached is not None]
    if not reached:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "reached, to stay",
            "x": [time for time, _ in reached],
            "y": [value for _, value in reached],
            "marker": {
                "symbol": "circle-open",
                "size": 12,
                "color": method.color,
                "line": {"width": 2.5, "color": method.color},
            },
            "meta": plain(method.name),
            "hovertemplate": "%{fullData.meta}<br>95% of collapse after "
            + ("%{x:.4~g}% of the run" if length is None else "epoch %{x:.4~g}")
            + "<extra></extra>",
            "legendgroup": plain(method.name),
            "showlegend": False,
            "cliponaxis": False,
            **axes,
        }
    ]


def _create_bound(
    bound: _Bound, axes: Mapping[str, str], length: float | None, *, is_only: bool
) -> dict[str, Any]:
    """A dashed line at a threshold; one of several says which classes or dimension it is for."""
    names = ", ".join(dict.fromkeys(bound.methods))
    methods = "" if is_only else f" for {bound.size}<br>{plain(shorten(names, 80))}"
    end = 100 if length is None else length
    return {
        "type": "scatter",
        "mode": "lines" if is_only else "lines+text",
        "name": "95% of collapse",
        "x": [0, end],
        "y": [bound.value, bound.value],
        "text": ["", "" if is_only else bound.size],
        "textposition": "top left",
        "textfont": {"size": 10},
        "line": {"color": NEUTRAL, "dash": "dash", "width": 1.5},
        "meta": methods,
        "hovertemplate": f"95% of collapse: {bound.value:.4g}%{{fullData.meta}}<extra></extra>",
        "legendgroup": "95% of collapse",
        "showlegend": False,
        **axes,
    }


def _name_once(traces: Sequence[dict[str, Any]], name: str) -> None:
    """Give the first trace of a name an entry in the legend."""
    first = next((trace for trace in traces if trace.get("name") == name), None)
    if first is not None and first["legendgroup"] == name:
        first["showlegend"] = True


def _create_axes(
    index: int, rows: int, suffix: str, metric: str, length: float | None
) -> dict[str, Any]:
    """The axes of a cell of the grid; the lowest row has the title of the time."""
    row, column = divmod(index, _COLUMNS)
    gap_x, gap_y = 0.08, 0.12
    width = (1 - gap_x * (_COLUMNS - 1)) / _COLUMNS
    height = (1 - gap_y * rows) / rows
    left, top = column * (width + gap_x), 1 - gap_y / 2 - row * (height + gap_y)
    x_axis: dict[str, Any] = {
        "domain": [left, left + width],
        "anchor": f"y{suffix}",
        "range": [0, 1.03 * (100 if length is None else length)],
    }
    x_axis |= {"tickvals": [0, 25, 50, 75, 100]} if length is None else {"nticks": 6}
    if row == rows - 1:
        x_axis["title"] = {"text": "% of the run" if length is None else "epoch"}
    y_axis = {"domain": [top - height, top], "anchor": f"x{suffix}", "rangemode": "tozero"}
    if metric == "train_accuracy":
        y_axis["ticksuffix"] = "%"
    return {f"xaxis{suffix}": x_axis, f"yaxis{suffix}": y_axis}


def _create_title(text: str, axes: Mapping[str, str]) -> dict[str, Any]:
    return {
        "text": text,
        "showarrow": False,
        "xref": f"{axes['xaxis']} domain",
        "yref": f"{axes['yaxis']} domain",
        "x": 0,
        "xanchor": "left",
        "y": 1.03,
        "yanchor": "bottom",
        "font": {"size": 11},
    }
