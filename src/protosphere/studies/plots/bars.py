"""Bars of several runs beside each other, and numbers of the paper over them."""

from collections.abc import Mapping, Sequence
from typing import Any

from protosphere.studies.plots.looks import Look, looks

# Values are written on bars if there are at most so many.
_MAX_VALUES = 24
# With more bars, the values on them are turned.
_MAX_UPRIGHT = 9
_WIDEST_BAR = 0.3


def draw_bars(
    axes: Any,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    drawn_as: Mapping[str, Look] | None = None,
) -> None:
    """Draw grouped bars, one for each name in each group; None leaves a gap.

    Args:
        axes: Axes to draw into.
        groups: Texts below the groups; names of users go through :func:`label` before.
        series: Value in each group, by the name of a run or a classifier.
        drawn_as: How each name is drawn.
    """
    drawn_as = looks(list(series)) if drawn_as is None else drawn_as
    num_bars = len(series) * len(groups)
    for index, (name, values) in enumerate(series.items()):
        look = drawn_as[name]
        known = [(place, value) for place, value in enumerate(values) if value is not None]
        bars = axes.bar(
            [bar_position(place, index, len(series)) for place, _ in known],
            [value for _, value in known],
            width=0.92 * _bar_width(len(series)),
            color=look.color,
            hatch=look.hatch,
            edgecolor="white",
            linewidth=0,
            label=look.text,
        )
        if num_bars <= _MAX_VALUES:
            upright = 90 if num_bars > _MAX_UPRIGHT else 0
            axes.bar_label(bars, fmt="%.1f", fontsize=6.5, padding=1.5, rotation=upright)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.grid(visible=False, axis="x")
    axes.tick_params(axis="x", length=0)


def _bar_width(num_series: int) -> float:
    return min(_WIDEST_BAR, 0.8 / max(1, num_series))


def bar_position(place: int, index: int, num_series: int) -> float:
    """Return where the middle of a bar of :func:`draw_bars` is.

    Args:
        place: Index of the group.
        index: Index of the series.
        num_series: Number of series.

    >>> bar_position(1, 0, 1)
    1.0
    """
    return place + (index - (num_series - 1) / 2) * _bar_width(num_series)


def draw_paper(axes: Any, points: Sequence[tuple[float, float]], text: str = "the paper") -> None:
    """Draw numbers of the paper as diamonds, which no run has.

    Args:
        axes: Axes to draw into.
        points: Where they are.
        text: Text of the legend.
    """
    if points:
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            "D",
            color="white",
            markeredgecolor="black",
            markersize=5.5,
            zorder=4,
            label=text,
        )


def percentages(values: Sequence[float | None]) -> list[float | None]:
    """Return fractions in percent.

    Args:
        values: Fractions, or None.

    >>> percentages([0.5, None])
    [50.0, None]
    """
    return [None if value is None else 100 * value for value in values]
