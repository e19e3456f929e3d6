"""When a training run reaches collapse, from its logged metrics: a moving average that enters a threshold and stays.

Pure Python, so that reports need no torch. A series is a sequence of (time, value) pairs with rising times, in
iterations or epochs; the run's length T is its last time unless given.
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
    """The time at which something happens that does not happen: a value of its own, no number."""

    NEVER = "never"


NEVER = Never.NEVER
Time = Number | Never


@dataclass(frozen=True)
class Threshold:
    """A value that a metric is to reach from below (``"at least"``) or from above (``"at most"``)."""

    value: Number
    side: Literal["at least", "at most"]

    def holds(self, value: Number, tolerance: Number = 0.0) -> bool:
        """Whether a value is on the right side, give or take the tolerance."""
        if self.side == "at least":
            return value >= self.value - tolerance
        return value <= self.value + tolerance


def collapse_thresholds(num_classes: int, dim: int) -> dict[str, Threshold]:
    """95 % of neural collapse: alignments ≤ 0.1 (5 % of 2), ranks ≥ 0.95 (K − 1), intra-class rank ≤ 0.05 d.

    >>> collapse_thresholds(100, 512)["inter_effective_rank"]
    Threshold(value=94.05, side='at least')
    """
    if num_classes < 2 or dim < 1:
        raise ValueError(
            f"thresholds need two classes and a dimension or more; got {num_classes} and {dim}"
        )
    rank = Threshold(round(0.95 * (num_classes - 1), 12), "at least")
    near = Threshold(0.1, "at most")
    return {
        "weight_instance_alignment": near,
        "weight_class_alignment": near,
        "weights_effective_rank": rank,
        "intra_effective_rank": Threshold(round(0.05 * dim, 12), "at most"),
        "inter_effective_rank": rank,
    }


def moving_average(
    series: Series, *, length: Number | None = None, share: float = 0.01
) -> list[tuple[Number, Number]]:
    """The exponentially weighted moving average of a series whose steps may be uneven.

    a_0 = x_0, a_i = a_{i−1} + α_i (x_i − a_{i−1}), α_i = 1 − exp(−(t_i − t_{i−1})/(share · T)).

    Args:
        series: (time, value) pairs.
        length: T; without it the last time.
        share: the part of the run that is forgotten to 1/e.

    Returns:
        The same times with averages.

    Raises:
        ValueError: the series is empty, its times do not rise, or a number is not finite.

    >>> [(time, round(value, 3)) for time, value in moving_average([(0, 1.0), (1, 0.0), (100, 0.0)])]
    [(0, 1.0), (1, 0.368), (100, 0.0)]
    """
    length = _length(series, length)
    if not share > 0:
        raise ValueError(f"share must be positive; got {share}")
    averages: list[tuple[Number, Number]] = [(series[0][0], float(series[0][1]))]
    for (before, _), (time, value) in pairwise(series):
        last = averages[-1][1]
        averages.append(
            (time, last - math.expm1(-(time - before) / (share * length)) * (value - last))
        )
    return averages


def enters_and_stays(series: Series, threshold: Threshold, *, tolerance: Number = 0.0) -> Time:
    """The first time from which a series holds a threshold to its end.

    >>> enters_and_stays([(1, 0.5), (2, 0.05), (3, 0.2), (4, 0.1)], Threshold(0.1, "at most"))
    4
    >>> enters_and_stays([(1, 0.5), (2, 0.2)], Threshold(0.1, "at most"))
    <Never.NEVER: 'never'>
    """
    _check(series)
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
    share: float = 0.01,
) -> Time:
    """When the moving average of a series enters a threshold and stays; :data:`NEVER` if it does not."""
    return enters_and_stays(
        moving_average(series, length=length, share=share), threshold, tolerance=tolerance
    )


def percent(time: Time, length: Number) -> Time:
    """A time as a percentage of a length; never stays never.

    >>> percent(449, 5500), str(percent(NEVER, 5500))
    (8.163636363636364, 'never')
    """
    if length <= 0:
        raise ValueError(f"the length that a time is a part of must be positive; got {length}")
    return NEVER if isinstance(time, Never) else 100 * time / length


def percent_to_collapse(
    runs: Mapping[str, Series],
    num_classes: int,
    dim: int,
    *,
    length: Number | None = None,
    tolerance: Number = 0.0,
) -> dict[str, Time]:
    """For each logged metric that has a threshold, the percentage of the run until 95 % of collapse.

    Args:
        runs: series by metric name, of one run.
        num_classes: K.
        dim: d.
        length: T; without it each series' last time.
        tolerance: how far beyond a threshold still counts as within it.
    """
    thresholds = collapse_thresholds(num_classes, dim)
    return {
        name: percent(
            convergence_time(series, thresholds[name], length=length, tolerance=tolerance),
            _length(series, length),
        )
        for name, series in runs.items()
        if name in thresholds
    }


@dataclass(frozen=True)
class AgainstBaseline:
    """When a run reaches the final value of a baseline, such as cross-entropy.

    Attributes:
        target: the baseline's final value.
        time: when the run's average enters and stays on the good side of it.
        baseline_time: when the baseline's own average enters and stays within 2 % of it.
        percent_of_baseline: 100 · time / baseline_time; infinite if the baseline was there from time 0.
        percent_of_run: 100 · time / T.
    """

    target: Number
    time: Time
    baseline_time: Time
    percent_of_baseline: Time
    percent_of_run: Time


def against_baseline(
    series: Series,
    baseline: Series,
    side: Literal["at least", "at most"],
    *,
    length: Number | None = None,
    tolerance: Number = 0.0,
    closeness: float = 0.02,
) -> AgainstBaseline:
    """Compare a run with the final value that a baseline has logged.

    Args:
        series: of the run.
        baseline: the same metric, logged by the baseline.
        side: whether the metric is better ``"at least"`` or ``"at most"`` a value.
        length: T; without it each series' last time.
        tolerance: how far beyond the target still counts as within it.
        closeness: how near to its own final value, as a share of it, the baseline counts as arrived.
    """
    averages = moving_average(baseline, length=length)
    target = baseline[-1][1]
    distances = [(time, abs(value - target)) for time, value in averages]
    arrived = enters_and_stays(distances, Threshold(closeness * abs(target), "at most"))
    time = convergence_time(series, Threshold(target, side), length=length, tolerance=tolerance)
    share: Time = NEVER
    if not isinstance(arrived, Never) and not isinstance(time, Never):
        share = percent(time, arrived) if arrived > 0 else math.inf if time > 0 else 100.0
    return AgainstBaseline(target, time, arrived, share, percent(time, _length(series, length)))


def _check(series: Series) -> None:
    """Raise ValueError unless the series makes sense."""
    if len(series) == 0:
        raise ValueError("a series must hold at least one (time, value) pair; it is empty")
    if not all(math.isfinite(number) for pair in series for number in pair):
        raise ValueError("times and values of a series must be finite; got NaN or infinity")
    if any(later <= earlier for (earlier, _), (later, _) in pairwise(series)):
        raise ValueError("times of a series must rise; they do not")


def _length(series: Series, length: Number | None) -> Number:
    """The length of the run: as given, or the last time. Raises ValueError unless both make sense."""
    _check(series)
    last = series[-1][0]
    length = last if length is None else length
    if not length > 0 or length < last:
        raise ValueError(
            f"the run must have a length, and reach its last logged time, {last}; got {length}"
        )
    return length
