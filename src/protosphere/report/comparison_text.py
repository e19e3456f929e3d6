"""Numbers of a comparison as texts, in the report and on the command line."""

from protosphere.report.metric_text import count_decimals, format_metric
from protosphere.report.summaries import MISSING
from protosphere.runs.comparison import (
    ComparedMetric,
    Comparison,
    MetricDifference,
    MetricSummary,
)

_ARROWS = {"higher": " ↑", "lower": " ↓", "target": " →", None: ""}


def title_of(metric: ComparedMetric) -> str:
    """Return the name of a metric, with an arrow toward the better values.

    Args:
        metric: The metric.
    """
    return f"{metric.name}{_ARROWS[metric.direction]}"


def decimals_of(comparison: Comparison, metric: str) -> int:
    """Return the number of decimal places that a metric is shown with.

    Args:
        comparison: The comparison.
        metric: Name of the metric.
    """
    means = [row.mean for row in comparison.summaries if row.metric == metric]
    return count_decimals(metric, means)


def format_mean(summary: MetricSummary | None, decimals: int) -> str:
    """Return mean ± standard deviation as a text; a dash if there is no mean.

    Args:
        summary: The summary of a metric over seeds.
        decimals: Number of decimal places.
    """
    if summary is None:
        return MISSING
    mean = format_metric(summary.metric, summary.mean, decimals)
    if summary.std is None:
        return mean
    return f"{mean} ± {format_metric(summary.metric, summary.std, decimals)}"


def format_interval(row: MetricDifference, decimals: int) -> str:
    """Return a confidence interval as a text; a dash if there is none.

    Args:
        row: The difference.
        decimals: Number of decimal places.
    """
    if row.low is None or row.high is None:
        return MISSING
    low, high = (format_metric(row.metric, end, decimals, sign="+") for end in (row.low, row.high))
    return f"[{low}, {high}]"
