"""Curves over a training run: one line per method, the mean over its seeds, with a band."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protosphere.report.colors import run_colors, run_dashes
from protosphere.report.content import Note
from protosphere.report.plotly_text import plain
from protosphere.report.sources import RunData
from protosphere.report.typed_arrays import encode
from protosphere.runs.folder import Record

Series = Sequence[tuple[float, float]]
SEEDS = (
    "Runs that differ only in their seed are one line: the mean over seeds, with a band of one "
    "standard deviation."
)
# With many methods, the legend scrolls and leaves the figure its height.
LEGEND = {"maxheight": 112}
# Points of a line; more are not visible at the width of a page.
_MAX_POINTS = 400
# With few points, a marker shows where the values are.
_MAX_MARKERS = 30
_MAX_NAME = 36


@dataclass(frozen=True)
class Method:
    """Runs that differ only in their seed, and how figures show them.

    Attributes:
        name: Name of the method.
        runs: The runs.
        color: Color of its lines and markers.
        dash: Line style.
    """

    name: str
    runs: tuple[RunData, ...]
    color: str
    dash: str

    @property
    def label(self) -> str:
        """Text for the legend, as plotly displays it."""
        seeds = f" ({len(self.runs)} seeds)" if len(self.runs) > 1 else ""
        return plain(shorten(self.name)) + seeds


@dataclass(frozen=True)
class Curve:
    """The mean of several series.

    Attributes:
        times: Times at which at least one series has a value.
        mean: Mean of the values at each time.
        deviation: Standard deviation (with n − 1), NaN where fewer than two series have a value.
        counts: Number of series with a value at each time.
    """

    times: NDArray[np.float64]
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    counts: NDArray[np.int64]


def group_methods(runs: Iterable[RunData]) -> tuple[Method, ...]:
    """Return the methods of runs in their order, each with its color and line style.

    Args:
        runs: All runs of the report, so that a method has the same color in all figures.
    """
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        groups.setdefault(run.method, []).append(run)
    colors, dashes = run_colors(groups), run_dashes(groups)
    return tuple(
        Method(name, tuple(members), colors[name], dashes[name]) for name, members in groups.items()
    )


def shorten(name: str, length: int = _MAX_NAME) -> str:
    """Return a name with an ellipsis in place of its middle if it is too long.

    Args:
        name: Name of a run, method or class.
        length: Largest number of characters.

    >>> shorten("cifar100-resnet18-nonl-temperature", 16)
    'cifar100…erature'
    """
    if len(name) <= length:
        return name
    tail = (length - 1) // 2
    return f"{name[: length - 1 - tail]}…{name[len(name) - tail :]}"


def read_series(records: Iterable[Record], key: str) -> list[tuple[float, float]]:
    """Return the epoch and value of each record that has a finite number, by increasing epoch.

    Args:
        records: Records of one kind; of several with the same epoch the last one counts.
        key: Name of the value.
    """
    values: dict[float, float] = {}
    for record in records:
        epoch, value = finite(record.get("epoch")), finite(record.get(key))
        if epoch is not None and value is not None:
            values[epoch] = value
    return sorted(values.items())


def has_curve(run: RunData) -> bool:
    """Return whether a run has or will have evaluations before its end.

    Args:
        run: The run.
    """
    return len(run.evaluations) > 1 or run.state == "running"


def note_without_curves(runs: Iterable[RunData]) -> Note | None:
    """Return a note on the runs that were evaluated only once; None if there are none.

    Args:
        runs: The runs.
    """
    names = [run.name for run in runs if run.evaluations and not has_curve(run)]
    if not names:
        return None
    subject = f"{names[0]} was" if len(names) == 1 else f"{len(names)} runs were"
    return Note(
        f"{subject} evaluated only once, so that there is no curve over evaluations; "
        "evaluation.every in a recipe is the number of epochs between evaluations."
    )


def finite(value: Any) -> float | None:
    """Return a finite number as float; None for anything else.

    Args:
        value: Value of a JSON file.

    >>> finite(2), finite(float("nan")), finite("2"), finite(True)
    (2.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # An integer beyond the range of float.
        return None
    return number if math.isfinite(number) else None


def mean_curve(series: Iterable[Series]) -> Curve:
    """Return mean and standard deviation of several series, at every time that one of them has.

    Args:
        series: (time, value) pairs of each series.

    >>> curve = mean_curve([[(1.0, 2.0), (2.0, 4.0)], [(1.0, 4.0)]])
    >>> curve.mean.tolist(), curve.counts.tolist()
    ([3.0, 4.0], [2, 1])
    """
    columns = [np.array(points, np.float64).reshape(-1, 2).T for points in series]
    times = np.unique(np.concatenate([np.empty(0), *(column[0] for column in columns)]))
    values = np.full((len(columns), len(times)), np.nan)
    for row, (own, numbers) in zip(values, columns, strict=True):
        row[np.searchsorted(times, own)] = numbers
    known = np.isfinite(values)
    counts = known.sum(0)
    mean = np.where(known, values, 0).sum(0) / np.maximum(counts, 1)
    squares = np.where(known, values - mean, 0) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        deviation = np.sqrt(squares.sum(0) / np.where(counts > 1, counts - 1, np.nan))
    return Curve(times, mean, deviation, counts)


def curve_traces(
    method: Method,
    curve: Curve,
    *,
    x: str,
    y: str,
    markers: bool = True,
    axes: Mapping[str, str] | None = None,
    in_legend: bool = True,
) -> list[dict[str, Any]]:
    """Return the line of a method and, with several seeds, the band of one standard deviation.

    Args:
        method: The method.
        curve: Mean of its runs.
        x: Text before and after the time on hover, with ``{}`` in its place.
        y: Text before and after the value on hover, with ``{}`` in its place.
        markers: Whether points have markers; a single point always has one.
        axes: ``xaxis`` and ``yaxis`` of a figure with several axes.
        in_legend: Whether the legend has an entry; False if another trace of the method has it.
    """
    if len(curve.times) == 0:
        return []
    chosen = _thin(len(curve.times))
    times, mean = curve.times[chosen], curve.mean[chosen]
    style = {"legendgroup": plain(method.name), **(axes or {})}
    traces: list[dict[str, Any]] = []
    has_band = np.isfinite(curve.deviation[chosen])
    if has_band.any():
        inside, deviation = times[has_band], curve.deviation[chosen][has_band]
        upper, lower = mean[has_band] + deviation, mean[has_band] - deviation
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": encode(np.concatenate([inside, inside[::-1]])),
                "y": encode(np.concatenate([upper, lower[::-1]])),
                "fill": "toself",
                "fillcolor": with_opacity(method.color, 0.18),
                "line": {"width": 0, "color": method.color},
                "hoverinfo": "skip",
                "showlegend": False,
                **style,
            }
        )
    seeds = "<br>mean of %{customdata} seeds" if len(method.runs) > 1 else ""
    line: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if markers or len(times) == 1 else "lines",
        "name": method.label,
        "x": encode(times),
        "y": encode(mean),
        "line": {"color": method.color, "dash": method.dash, "width": 2},
        "marker": {"size": 4, "color": method.color},
        # Through meta, plotly does not read the name as a template.
        "meta": plain(method.name),
        "hovertemplate": f"%{{fullData.meta}}<br>{x.format('%{x:.4~g}')}, "
        f"{y.format('%{y:.4~g}')}{seeds}<extra></extra>",
        "showlegend": in_legend,
        **style,
    }
    if seeds:
        line["customdata"] = encode(curve.counts[chosen])
    return [*traces, line]


def have_markers(curves: Iterable[Curve]) -> bool:
    """Return whether the lines of a figure have markers: if no curve has too many points for them.

    Args:
        curves: The curves of the figure.
    """
    return all(len(curve.times) <= _MAX_MARKERS for curve in curves)


def with_opacity(color: str, opacity: float) -> str:
    """Return a color with an opacity.

    Args:
        color: Color as ``#rrggbb``.
        opacity: From 0 to 1.

    >>> with_opacity("#ff8000", 0.5)
    'rgba(255, 128, 0, 0.5)'
    """
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"


def _thin(count: int) -> NDArray[np.int64]:
    """Indices of at most _MAX_POINTS of the points, with the first and the last."""
    if count <= _MAX_POINTS:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, _MAX_POINTS).round().astype(np.int64))
