"""The tables of ``protosphere compare``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from protosphere.cli.benchmark_table import MISSING, print_note, print_table
from protosphere.cli.text import count
from protosphere.report.comparison_text import (
    decimals_of,
    format_interval,
    format_mean,
    title_of,
)
from protosphere.report.metric_text import format_metric

if TYPE_CHECKING:
    from protosphere.runs.comparison import ComparedMetric, Comparison, MetricDifference

_BEST_OF_COMMON_SEEDS = (
    "; the best mean is taken over the seeds that all methods have, not over all of each"
)


def print_comparison(comparison: "Comparison", metrics: Sequence[str]) -> None:
    """Print mean and standard deviation, differences to the baseline, and failures.

    Args:
        comparison: The comparison.
        metrics: Metrics to show.
    """
    measured = {metric.name: metric for metric in comparison.metrics}
    shown = [measured[name] for name in metrics if name in measured]
    if absent := [name for name in metrics if name not in measured]:
        print_note(f"Not measured: {', '.join(absent)}")
    _print_means(comparison, shown)
    if len(comparison.methods) > 1:
        _print_differences(comparison, shown)
    for failure in comparison.failures:
        print_note(f"Failed: {failure.method}, seed {failure.seed}: {failure.error}")


def _print_means(comparison: "Comparison", metrics: "Sequence[ComparedMetric]") -> None:
    names = [method.name for method in comparison.methods]
    lines = [["seeds", *(_count_runs(comparison, name) for name in names), ""]]
    for metric in metrics:
        decimals = decimals_of(comparison, metric.name)
        cells = [format_mean(comparison.summary(name, metric.name), decimals) for name in names]
        best = [row for row in comparison.best if row.metric == metric.name]
        winners = ", ".join(best[0].methods) if best else MISSING
        lines.append([title_of(metric), *cells, winners])
    images = count(comparison.num_images, f"{comparison.split} image")
    deviation = "mean ± standard deviation over seeds" if _has_several(comparison) else "one seed"
    print_table(
        f"{images} of {count(comparison.num_classes, 'class')}, {deviation}",
        ["metric", *names, "best mean"],
        lines,
        note="accuracies, ece and nc4_agreement in %; ↑ higher is better, ↓ lower is better, "
        "→ nearer to the value at collapse; collapse metrics are those of the training images"
        + (_BEST_OF_COMMON_SEEDS if _seeds_differ(comparison, metrics) else ""),
    )
    if comparison.split == "validation":
        print_note(
            "These are validation images: where settings or checkpoints were chosen on them, the "
            "numbers are too good"
        )


def _seeds_differ(comparison: "Comparison", metrics: "Sequence[ComparedMetric]") -> bool:
    """Whether a metric has values of other seeds for one method than for another."""
    for metric in metrics:
        seeds: dict[str, set[int]] = {}
        for run in comparison.runs:
            if metric.name in run.values:
                seeds.setdefault(run.method, set()).add(run.seed)
        if any(one != other for one in seeds.values() for other in seeds.values()):
            return True
    return False


def _has_several(comparison: "Comparison") -> bool:
    return any(row.std is not None for row in comparison.summaries)


def _count_runs(comparison: "Comparison", method: str) -> str:
    num_runs = sum(run.method == method for run in comparison.runs)
    notes = []
    for word, runs in (("failed", comparison.failures), ("missing", comparison.pending)):
        if number := sum(run.method == method for run in runs):
            notes.append(f"{number} {word}")
    return f"{num_runs} ({', '.join(notes)})" if notes else str(num_runs)


def _print_differences(comparison: "Comparison", metrics: "Sequence[ComparedMetric]") -> None:
    if not metrics:
        return
    rows = []
    for metric in metrics:
        for method in comparison.methods:
            row = comparison.difference(method.name, metric.name)
            if row is not None:
                rows.append(_difference_cells(metric, row, decimals_of(comparison, metric.name)))
    print_note("")
    if not rows:
        print_note(f"{_why_no_differences(comparison)}: no differences")
        return
    confidence = f"{100 * comparison.confidence:g}%"
    print_table(
        f"Difference to {comparison.baseline}, paired by seed, with the {confidence} confidence "
        "interval (Student's t)",
        ["metric", "method", "seeds", "difference", "interval", "p (Holm)", ""],
        rows,
    )
    if all(row.std is None for row in comparison.differences):
        print_note(
            "One seed gives no interval and no test: whether a difference would be there with "
            "another seed is not known"
        )
        return
    print_note(
        f"clearly better or worse: p < {1 - comparison.confidence:.3g}, adjusted for the number of "
        "methods (Holm); not adjusted for the number of metrics. Intervals are not adjusted"
    )


def _why_no_differences(comparison: "Comparison") -> str:
    baseline = comparison.baseline
    seeds = {run.seed for run in comparison.runs if run.method == baseline}
    if not seeds:
        return f"No run of {baseline} is complete"
    if not any(run.method != baseline and run.seed in seeds for run in comparison.runs):
        return f"No other complete run has a seed in common with {baseline}"
    return f"None of these metrics was measured for {baseline} and another method with its seed"


def _difference_cells(
    metric: "ComparedMetric", row: "MetricDifference", decimals: int
) -> list[str]:
    p_value = MISSING if row.adjusted_p_value is None else f"{row.adjusted_p_value:.2g}"
    outcome = {None: "", "not clear": "not clear", "different": "clearly different"}.get(
        row.outcome, f"clearly {row.outcome}"
    )
    return [
        title_of(metric),
        row.method,
        str(len(row.seeds)),
        format_metric(row.metric, row.mean, decimals, sign="+"),
        format_interval(row, decimals),
        p_value,
        outcome,
    ]
