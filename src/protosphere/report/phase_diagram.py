"""The phase diagram of a sweep as numbers: positions of trials, and the surface between them."""

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protosphere.runs.sweeps import SweepRecord, SweepSetting, SweepTrial

# Points of the surface along each axis.
_RESOLUTION = 101


@dataclass(frozen=True)
class Axis:
    """An axis of a phase diagram.

    Attributes:
        key: Key of the recipe.
        is_log: Whether the axis is logarithmic.
        names: Names of the positions 0, 1, ...; None if the values are numbers.
        ticks: Values of a grid of numbers.
    """

    key: str
    is_log: bool
    names: tuple[str, ...] | None = None
    ticks: tuple[int | float, ...] = ()

    def position(self, value: Any) -> float | None:
        """Return where a value stands on the axis; None for a value that has no place on it.

        Args:
            value: Value of the key.
        """
        if self.names is not None:
            name = format_value(value)
            return float(self.names.index(name)) if name in self.names else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if math.isfinite(value) and (value > 0 or not self.is_log) else None


@dataclass(frozen=True)
class Panel:
    """The trials over one setting or two.

    Attributes:
        axes: The axis of each setting.
        points: Position of each complete trial, shape (trials, settings).
        values: Metric of each complete trial.
        trials: The complete trials.
        grid: Positions along each axis at which the surface is given.
        surface: The metric at all positions, shape (positions of the second axis, positions of the
            first), NaN outside of the trials; None if there is no surface.
    """

    axes: tuple[Axis, ...]
    points: NDArray[np.float64]
    values: NDArray[np.float64]
    trials: tuple[SweepTrial, ...]
    grid: tuple[NDArray[np.float64], ...] = ()
    surface: NDArray[np.float64] | None = None


def format_value(value: Any) -> str:
    """Return a value of a recipe as short YAML.

    Args:
        value: Plain value.

    >>> format_value("mixup"), format_value(None), format_value({"name": "mixup"})
    ('mixup', 'null', '{"name": "mixup"}')
    """
    is_word = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./-]*", value) is not None
    if is_word and value.lower() not in ("null", "true", "false", "yes", "no", "on", "off"):
        return str(value)
    return json.dumps(value)


def format_number(value: Any) -> str:
    """Return a value of a setting with at most four significant digits.

    Args:
        value: Plain value.

    >>> format_number(0.123456), format_number(None)
    ('0.1235', 'null')
    """
    return f"{value:.4g}" if isinstance(value, float) else format_value(value)


def log_ticks(values: NDArray[np.float64]) -> list[float]:
    """Return round numbers within the range of a logarithmic axis, at least four if possible.

    Args:
        values: Positive values on the axis.

    >>> log_ticks(np.array([0.05, 0.5])), log_ticks(np.array([1e-6, 0.9]))[:2]
    ([0.05, 0.1, 0.2, 0.5], [1e-06, 1e-05])
    """
    low, high = float(values.min()), float(values.max())
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks: list[float] = []
    for factors in ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)):
        every = [
            float(f"{factor}e{power}") for power in range(first, last + 1) for factor in factors
        ]
        ticks = [tick for tick in every if low / 1.1 <= tick <= 1.1 * high]
        if len(ticks) >= 4:
            break
    return ticks


def create_diagram(record: SweepRecord) -> list[Panel]:
    """Return the phase diagram of a sweep as panels.

    One setting has one panel, two have one panel with a surface, and of more settings each pair has
    one. A surface interpolates the trials linearly, on a logarithmic axis in the logarithm. Of
    trials at the same place, which differ in other settings, the best one counts. There is no
    surface over names, nor over ranges if other settings are varied too, because neighboring trials
    would then differ in those; nor without scipy.

    Args:
        record: The record of the sweep.
    """
    trials = tuple(
        trial
        for trial in record.trials
        if trial.state == "complete" and trial.value is not None and math.isfinite(trial.value)
    )
    settings = record.settings
    if not trials or not settings:
        return []
    groups: list[Sequence[SweepSetting]] = (
        [settings] if len(settings) <= 2 else list(itertools.combinations(settings, 2))
    )
    panels = [_create_panel(record, group, trials) for group in groups]
    return [panel for panel in panels if panel.trials]


def _create_panel(
    record: SweepRecord, settings: Sequence[SweepSetting], trials: tuple[SweepTrial, ...]
) -> Panel:
    axes = tuple(_create_axis(setting) for setting in settings)
    places = [[axis.position(trial.settings.get(axis.key)) for axis in axes] for trial in trials]
    placed = [index for index, place in enumerate(places) if None not in place]
    panel = Panel(
        axes,
        np.array([places[index] for index in placed], dtype=np.float64),
        np.array([trials[index].value for index in placed], dtype=np.float64),
        tuple(trials[index] for index in placed),
    )
    has_surface = bool(placed) and len(axes) == 2 and all(axis.names is None for axis in axes)
    are_grids = all(setting.kind == "grid" for setting in settings)
    if has_surface and (are_grids or len(record.settings) == 2):
        return _add_surface(panel, sign=1 if record.direction == "maximize" else -1)
    return panel


def _create_axis(setting: SweepSetting) -> Axis:
    if setting.kind != "grid":
        return Axis(setting.key, setting.kind == "log_range")
    are_numbers = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in setting.values
    )
    if not are_numbers:
        return Axis(setting.key, False, tuple(map(format_value, setting.values)))
    # Values such as 0.05, 0.1, 0.2 are spaced by their ratio.
    low, high = min(setting.values), max(setting.values)
    return Axis(setting.key, low > 0 and high / low >= 4, ticks=tuple(setting.values))


def _add_surface(panel: Panel, *, sign: int) -> Panel:
    """Interpolate between the trials, the best one of each place."""
    try:
        from scipy.interpolate import LinearNDInterpolator  # noqa: PLC0415
        from scipy.spatial import QhullError  # noqa: PLC0415
    except ImportError:
        return panel
    best: dict[tuple[float, ...], float] = {}
    for place, value in zip(map(tuple, _scaled(panel, panel.points)), panel.values, strict=True):
        best[place] = max(best.get(place, -math.inf), sign * value)
    try:
        interpolate = LinearNDInterpolator(list(best), [sign * value for value in best.values()])
    except (QhullError, ValueError):  # Fewer than three trials, or all of them on a line.
        return panel
    scaled = np.linspace(0, 1, _RESOLUTION)
    grid = tuple(
        _unscaled(axis, scaled, panel.points[:, index]) for index, axis in enumerate(panel.axes)
    )
    surface = interpolate(*np.meshgrid(scaled, scaled))
    return Panel(panel.axes, panel.points, panel.values, panel.trials, grid, surface)


def _scaled(panel: Panel, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return positions between 0 and 1, so that neither axis counts more than the other."""
    columns = []
    for index, axis in enumerate(panel.axes):
        column = np.log(points[:, index]) if axis.is_log else points[:, index]
        columns.append((column - column.min()) / (np.ptp(column) or 1.0))
    return np.stack(columns, axis=1)


def _unscaled(
    axis: Axis, scaled: NDArray[np.float64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    ends = np.log(values) if axis.is_log else values
    positions: NDArray[np.float64] = ends.min() + scaled * np.ptp(ends)
    return np.exp(positions) if axis.is_log else positions


def best_region(record: SweepRecord) -> Mapping[str, tuple[int | float, int | float]]:
    """Return the range of each numeric setting over the trials that are as good as the best one.

    Args:
        record: The record of the sweep; its ``tolerance`` says what is as good.

    Returns:
        Smallest and largest value of each numeric setting.
    """
    best = record.best
    if best is None:
        return {}
    limit = record.rank(best) + record.tolerance
    good = [trial for trial in record.trials if record.rank(trial) <= limit]
    regions = {}
    for axis in map(_create_axis, record.settings):
        if axis.names is None:
            values: list[Any] = [trial.settings.get(axis.key) for trial in good]
            placed = [value for value in values if axis.position(value) is not None]
            if placed:
                regions[axis.key] = (min(placed), max(placed))
    return regions


def worst_good_value(record: SweepRecord) -> float | None:
    """Return the worst value that is as good as the best one; None without a complete trial.

    Args:
        record: The record of the sweep.
    """
    best = record.best
    if best is None or best.value is None:
        return None
    sign = -1 if record.direction == "maximize" else 1
    return best.value + sign * record.tolerance


def describe_region(record: SweepRecord) -> str:
    """Return which settings are as good as the best ones, in a sentence.

    Args:
        record: The record of the sweep.
    """
    best = record.best
    if best is None:
        return "No trial is complete."
    limit = record.rank(best) + record.tolerance
    good = [trial for trial in record.trials if record.rank(trial) <= limit]
    ranges = ", ".join(
        f"{key} {format_number(low)}" + ("" if low == high else f" to {format_number(high)}")
        for key, (low, high) in best_region(record).items()
    )
    if record.metric.endswith("accuracy"):
        rule = f"one standard error ({100 * record.tolerance:.2g} percentage points)"
    else:
        rule = f"1% ({record.tolerance:.2g})"
    if len(good) == 1:
        text = f"No other trial is within {rule} of the best"
    else:
        text = f"{len(good)} trials are within {rule} of the best"
    return f"{text}: {ranges}." if ranges else f"{text}."


def describe_trial(record: SweepRecord, trial: SweepTrial) -> str:
    """Return the settings and the value of a trial in one line.

    Args:
        record: The record of the sweep.
        trial: The trial.
    """
    settings = ", ".join(f"{key}={format_number(value)}" for key, value in trial.settings.items())
    value = "" if trial.value is None else f": {record.metric} {trial.value:.4g}"
    return f"trial {trial.number:04d}: {settings}{value}"
