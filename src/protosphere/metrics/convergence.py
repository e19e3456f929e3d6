"""When a training run reaches neural collapse, from its logged metrics. Pure Python.

A metric has converged when its moving average enters a threshold and stays there. A series is a
sequence of (time, value) pairs with increasing times, in iterations or epochs. The length T of the
run is the last time unless given.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Literal

Number = int | float
Series = Sequence[tuple[Number, Number]]


class Never(StrEnum):
    """The time of an event that does not happen; not a number, so that it cannot be averaged."""

    NEVER = "never"


NEVER = Never.NEVER
Time = Number | Never


@dataclass(frozen=True)
class Threshold:
    """A bound on a metric.

    Attributes:
        value: The bound.
        side: ``"at least"`` for a lower bound, ``"at most"`` for an upper bound.
    """

    value: Number
    side: Literal["at least", "at most"]

    def holds(self, value: Number, tolerance: Number = 0.0) -> bool:
        """Return whether a value satisfies the bound, up to the tolerance."""
        if self.side == "at least":
            return value >= self.value - tolerance
        return value <= self.value + tolerance


def collapse_thresholds(num_classes: int, dim: int) -> dict[str, Threshold]:
    """Return thresholds for 95% of neural collapse, by metric name.

    Alignments ≤ 0.1 (5% of their maximum, 2), ranks ≥ 0.95 (K − 1), intra-class rank ≤ 0.05 d.

    Args:
        num_classes: Number of classes K.
        dim: Dimension d of the features.

    >>> collapse_thresholds(100, 512)["inter_effective_rank"]
    Threshold(value=94.05, side='at least')
    """
    if num_classes < 2 or dim < 1:
        raise ValueError(
            f"num_classes must be at least 2 and dim at least 1, got {num_classes} and {dim}"
        )
    rank = Threshold(round(0.95 * (num_classes - 1), 12), "at least")
    alignment = Threshold(0.1, "at most")
    return {
        "weight_instance_alignment": alignment,
        "weight_class_alignment": alignment,
        "weights_effective_rank": rank,
        "intra_effective_rank": Threshold(round(0.05 * dim, 12), "at most"),
        "inter_effective_rank": rank,
    }


def moving_average(
    series: Series, *, length: Number | None = None, time_constant: float = 0.01
) -> list[tuple[Number, Number]]:
    """Return the exponential moving average of a series with uneven time steps.

    a_0 = x_0, a_i = a_{i−1} + α_i (x_i − a_{i−1}),
    α_i = 1 − exp(−(t_i − t_{i−1})/(time_constant · T)).

    Args:
        series: (time, value) pairs.
        length: Length T of the run; the last time by default.
        time_constant: Time constant of the average, as a fraction of T.

    Returns:
        (time, average) pairs at the same times.

    Raises:
        ValueError: The series is empty or not finite, or its times do not increase.

    >>> averages = moving_average([(0, 1.0), (1, 0.0), (100, 0.0)])
    >>> [(time, round(value, 3)) for time, value in averages]
    [(0, 1.0), (1, 0.368), (100, 0.0)]
    """
    length = _run_length(series, length)
    if not time_constant > 0:
        raise ValueError(f"time_constant must be positive, got {time_constant}")
    averages: list[tuple[Number, Number]] = [(series[0][0], float(series[0][1]))]
    for (previous_time, _), (time, value) in pairwise(series):
        last = averages[-1][1]
        weight = -math.expm1(-(time - previous_time) / (time_constant * length))
        averages.append((time, last + weight * (value - last)))
    return averages


def enters_and_stays(series: Series, threshold: Threshold, *, tolerance: Number = 0.0) -> Time:
    """Return the first time from which a series satisfies a threshold until its end.

    Args:
        series: (time, value) pairs.
        threshold: Bound that the values must satisfy.
        tolerance: By how much a value may violate the bound.

    Returns:
        The time, or :data:`NEVER`.

    >>> enters_and_stays([(1, 0.5), (2, 0.05), (3, 0.2), (4, 0.1)], Threshold(0.1, "at most"))
    4
    >>> enters_and_stays([(1, 0.5), (2, 0.2)], Threshold(0.1, "at most"))
    <Never.NEVER: 'never'>
    """
    _check_series(series)
    entered: Time = NEVER
    for time, value in reversed(series):
        if not threshold.holds(value, tolerance):
            break
        entered = time
    return entered


def convergence_time(
    series: Series,
    threshold: Threshold,
    *,
    length: Number | None = None,
    tolerance: Number = 0.0,
    time_constant: float = 0.01,
) -> Time:
    """Return when the moving average of a series enters a threshold and stays there.

    Args:
        series: (time, value) pairs.
        threshold: Bound that the average must satisfy.
        length: Length T of the run; the last time by default.
        tolerance: By how much the average may violate the bound.
        time_constant: Time constant of the average, as a fraction of T.

    Returns:
        The time, or :data:`NEVER`.
    """
    averages = moving_average(series, length=length, time_constant=time_constant)
    return enters_and_stays(averages, threshold, tolerance=tolerance)


def percent(time: Time, length: Number) -> Time:
    """Return a time as a percentage of a length; :data:`NEVER` stays :data:`NEVER`.

    >>> percent(449, 5500), str(percent(NEVER, 5500))
    (8.163636363636364, 'never')
    """
    if length <= 0:
        raise ValueError(f"length must be positive, got {length}")
    return NEVER if isinstance(time, Never) else 100 * time / length


def percent_to_collapse(
    metrics: Mapping[str, Series],
    num_classes: int,
    dim: int,
    *,
    length: Number | None = None,
    tolerance: Number = 0.0,
) -> dict[str, Time]:
    """Return the percentage of the run until 95% of neural collapse, for each logged metric.

    Args:
        metrics: Logged series of one run by metric name; those without a threshold are ignored.
        num_classes: Number of classes K.
        dim: Dimension d of the features.
        length: Length T of the run; the last time of each series by default.
        tolerance: By how much an average may violate its threshold.

    Returns:
        Percentage of T, or :data:`NEVER`, by metric name.
    """
    thresholds = collapse_thresholds(num_classes, dim)
    return {
        name: percent(
            convergence_time(series, thresholds[name], length=length, tolerance=tolerance),
            _run_length(series, length),
        )
        for name, series in metrics.items()
        if name in thresholds
    }


@dataclass(frozen=True)
class BaselineComparison:
    """When a run reaches the final value of a baseline, such as cross-entropy.

    Attributes:
        target: Final value of the baseline.
        time: When the moving average of the run reaches the target and stays there.
        baseline_time: When the moving average of the baseline comes within 2% of the target and
            stays there.
        percent_of_baseline: 100 · time / baseline_time; infinite if the baseline starts there.
        percent_of_run: 100 · time / T.
    """

    target: Number
    time: Time
    baseline_time: Time
    percent_of_baseline: Time
    percent_of_run: Time


def compare_to_baseline(
    series: Series,
    baseline: Series,
    side: Literal["at least", "at most"],
    *,
    length: Number | None = None,
    tolerance: Number = 0.0,
    baseline_tolerance: float = 0.02,
) -> BaselineComparison:
    """Compare a run with the final value of a baseline.

    Args:
        series: Logged metric of the run.
        baseline: The same metric of the baseline.
        side: ``"at least"`` if higher values are better, ``"at most"`` if lower ones are.
        length: Length T of the run; the last time of each series by default.
        tolerance: By how much the run may miss the target.
        baseline_tolerance: Relative distance from its own final value within which the baseline
            counts as converged.

    Returns:
        Times and percentages.
    """
    averages = moving_average(baseline, length=length)
    target = baseline[-1][1]
    distances = [(time, abs(value - target)) for time, value in averages]
    close = Threshold(baseline_tolerance * abs(target), "at most")
    baseline_time = enters_and_stays(distances, close)
    time = convergence_time(series, Threshold(target, side), length=length, tolerance=tolerance)
    relative: Time = NEVER
    if not isinstance(baseline_time, Never) and not isinstance(time, Never):
        if baseline_time > 0:
            relative = percent(time, baseline_time)
        else:
            relative = math.inf if time > 0 else 100.0
    of_run = percent(time, _run_length(series, length))
    return BaselineComparison(target, time, baseline_time, relative, of_run)


def _check_series(series: Series) -> None:
    if len(series) == 0:
        raise ValueError("a series must have at least one (time, value) pair, got none")
    if not all(math.isfinite(number) for pair in series for number in pair):
        raise ValueError("times and values of a series must be finite, got NaN or infinity")
    for (earlier, _), (later, _) in pairwise(series):
        if later <= earlier:
            raise ValueError(f"times of a series must increase, got {later} after {earlier}")


def _run_length(series: Series, length: Number | None) -> Number:
    """The given length or the last time of the series, checked."""
    _check_series(series)
    last = series[-1][0]
    length = last if length is None else length
    if not length > 0 or length < last:
        raise ValueError(
            f"length must be positive and at least the last logged time, {last}, got {length}"
        )
    return length
