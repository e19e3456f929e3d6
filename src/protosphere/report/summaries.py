"""Mean and deviation over seeds: how tables show them, and which of them are best."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

MISSING = "–"
Better: TypeAlias = Literal["higher", "lower"]


@dataclass(frozen=True)
class Summary:
    """A number of a method over its runs.

    Attributes:
        mean: Mean over the runs.
        std: Sample standard deviation; None for one run.
        count: Number of runs that have the number.
    """

    mean: float
    std: float | None
    count: int


def summarize(values: Iterable[float]) -> Summary | None:
    """Return mean and sample standard deviation; None without values.

    Args:
        values: Finite numbers, one per run.

    >>> summarize([1.0, 2.0, 3.0])
    Summary(mean=2.0, std=1.0, count=3)
    """
    numbers = list(values)
    if not numbers:
        return None
    std = statistics.stdev(numbers) if len(numbers) > 1 else None
    return Summary(statistics.fmean(numbers), std, len(numbers))


def format_summary(summary: Summary | None, *, scale: float = 100.0, digits: int = 1) -> str:
    """Return a summary as the text of a cell; a dash if there is none.

    Args:
        summary: The summary.
        scale: Factor of the numbers; 100 shows fractions in percent.
        digits: Number of decimal places.

    >>> format_summary(Summary(0.7, 0.004, 2)), format_summary(None)
    ('70.0 ± 0.4', '–')
    """
    if summary is None:
        return MISSING
    mean = f"{scale * summary.mean:.{digits}f}"
    return mean if summary.std is None else f"{mean} ± {scale * summary.std:.{digits}f}"


def format_number(value: float | None, *, digits: int = 1) -> str:
    """Return a number as the text of a cell; a dash if there is none.

    Args:
        value: The number.
        digits: Number of decimal places.

    >>> format_number(40.0), format_number(None)
    ('40.0', '–')
    """
    return MISSING if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def find_best(
    summaries: Sequence[Summary | None],
    better: Better,
    *,
    scale: float = 100.0,
    digits: int = 1,
    num_worse: int = 0,
) -> list[int]:
    """Return the positions of the best means; several if they look equal in a table.

    Args:
        summaries: Summaries to compare.
        better: Whether higher or lower means are better.
        scale: Factor of the numbers in the table.
        digits: Number of decimal places in the table.
        num_worse: Number of other results, worse than any number. With fewer than two results in
            all, nothing is best.

    >>> find_best([Summary(0.70, None, 1), None, Summary(0.71, None, 1)], "higher")
    [2]
    """
    shown = {
        index: round(scale * summary.mean, digits)
        for index, summary in enumerate(summaries)
        if summary is not None
    }
    if not shown or len(shown) + num_worse < 2:
        return []
    best = (max if better == "higher" else min)(shown.values())
    return [index for index, value in shown.items() if value == best]
