"""Statistics of comparisons over seeds: deviations, paired differences, adjusted p-values."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

# Of a difference, relative to the values.
_ROUNDING = 1e-12


class Summary(NamedTuple):
    """Values of several runs in two numbers.

    Attributes:
        mean: Their mean.
        std: Their sample standard deviation, with n − 1 in the denominator; None for one value.
    """

    mean: float
    std: float | None


class PairedDifference(NamedTuple):
    """The mean of paired differences, and how certain it is.

    Attributes:
        mean: Mean of the differences.
        std: Sample standard deviation of the differences; None for one pair.
        low: Lower end of the confidence interval of the mean.
        high: Upper end of the confidence interval of the mean.
        p_value: p-value of the two-sided paired t-test. None, as the interval is, for one pair and
            for differences that are all equal and not zero.
    """

    mean: float
    std: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None


def summarize(values: Sequence[float]) -> Summary:
    """Return mean and sample standard deviation.

    Args:
        values: One value per run, at least one.

    Raises:
        ValueError: There are no values.

    >>> summarize([1.0, 2.0, 3.0])
    Summary(mean=2.0, std=1.0)
    """
    if not values:
        raise ValueError("values must hold at least one number, got none")
    return Summary(fmean(values), stdev(values) if len(values) > 1 else None)


def paired_difference(
    values: Sequence[float], baseline: Sequence[float], *, confidence: float = 0.95
) -> PairedDifference:
    """Compare two methods over pairs of runs with Student's t-test.

    d_i = x_i − y_i,  interval = mean(d) ± t_{n−1}((1 + confidence)/2) std(d)/√n

    Differences that are all equal have no deviation to estimate an error from: accuracies are
    counts, and with two seeds this is not rare. There is no test then, instead of a p-value of 0.

    Args:
        values: Values x_i of the method, one per pair.
        baseline: Values y_i of the baseline, in the same order.
        confidence: Confidence of the interval, between 0 and 1.

    Returns:
        The mean difference. With one pair, or with differences that are all equal and not zero,
        there is neither an interval nor a p-value.

    Raises:
        ValueError: There are no pairs, the numbers of values differ, or the confidence is not
            between 0 and 1.

    >>> result = paired_difference([3.0, 5.0], [1.0, 1.0], confidence=0.5)
    >>> result.mean, round(result.low, 9), round(result.high, 9)
    (3.0, 2.0, 4.0)
    """
    check_confidence(confidence)
    if len(values) != len(baseline) or not values:
        raise ValueError(
            f"values and baseline must hold the same number of values, at least one, got "
            f"{len(values)} and {len(baseline)}"
        )
    mean, std = summarize([value - other for value, other in zip(values, baseline, strict=True)])
    if std == 0 and mean == 0:
        return PairedDifference(0.0, 0.0, 0.0, 0.0, 1.0)
    if std is None or std <= _ROUNDING * max(map(abs, [*values, *baseline])):
        return PairedDifference(mean, std)
    from scipy.stats import t  # noqa: PLC0415  It takes a second to import.

    degrees, error = len(values) - 1, std / math.sqrt(len(values))
    half = float(t.ppf((1 + confidence) / 2, degrees)) * error
    p_value = 2 * float(t.sf(abs(mean) / error, degrees))
    return PairedDifference(mean, std, mean - half, mean + half, p_value)


def check_confidence(confidence: float) -> None:
    """Check that a confidence is between 0 and 1.

    Raises:
        ValueError: It is not.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")


def adjust_p_values(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for the number of tests with Holm's method.

    The smallest of m p-values is multiplied by m, the next one by m − 1, and so on; none becomes
    smaller than that before it, or greater than 1. Rejecting where the result is at most α keeps
    the probability of one or more false rejections at α, however the tests depend on each other.

    Args:
        p_values: The p-values, in any order.

    Returns:
        The adjusted ones, in the same order.

    Reference: Holm, A simple sequentially rejective multiple test procedure, 1979.

    >>> adjust_p_values([0.03, 0.01, 0.5])
    [0.06, 0.03, 0.5]
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    ordered = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, index in enumerate(ordered):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
