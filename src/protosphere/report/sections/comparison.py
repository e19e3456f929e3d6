"""The section on comparisons: methods over seeds, and their differences to a baseline."""

from collections.abc import Sequence

from protosphere.report.comparison_text import (
    decimals_of,
    format_interval,
    format_mean,
    title_of,
)
from protosphere.report.content import Block, Choice, Note, Section, Table
from protosphere.report.difference_plots import OUTCOMES, draw_differences
from protosphere.report.metric_text import format_metric
from protosphere.report.sources import ReportData
from protosphere.report.summaries import MISSING
from protosphere.runs.comparison import Comparison, FailedRun, PendingRun

_MAX_ERROR = 300
# Runs that a note names.
_MAX_NAMED = 20


def create_section(report: ReportData) -> Section | None:
    """Return the section, or None if there is no comparison.

    Args:
        report: The report.
    """
    if not report.comparisons:
        return None
    blocks: list[Block] = []
    for index, (name, comparison) in enumerate(report.comparisons.items()):
        title = f"{name}: " if len(report.comparisons) > 1 else ""
        blocks += _show_comparison(index, title, comparison)
    return Section(
        "comparison",
        "Comparison of methods" if len(report.comparisons) == 1 else "Comparisons of methods",
        "Methods trained with the same seeds. Differences to the baseline are paired by seed, "
        "which removes what a seed does to all methods.",
        tuple(blocks),
    )


def _show_comparison(index: int, title: str, comparison: Comparison) -> list[Block]:
    blocks: list[Block] = [_create_means(title, comparison)]
    options = [
        (title_of(metric), figure)
        for place, metric in enumerate(comparison.metrics)
        if (figure := draw_differences(f"comparison-{index}-{place}", title, comparison, metric))
    ]
    if options:
        blocks.append(Choice(f"comparison-{index}", f"{title}Metric", tuple(options)))
        blocks.append(_create_differences(title, comparison))
    return [*blocks, *_explain(title, comparison)]


def _create_means(title: str, comparison: Comparison) -> Table:
    names = [method.name for method in comparison.methods]
    rows: list[tuple[str, ...]] = [
        ("Complete runs", *(_count_runs(comparison, name) for name in names), "")
    ]
    bold = set()
    for metric in comparison.metrics:
        summaries = [comparison.summary(name, metric.name) for name in names]
        decimals = decimals_of(comparison, metric.name)
        best = next((row for row in comparison.best if row.metric == metric.name), None)
        winners = () if best is None or len(names) < 2 else best.methods
        bold |= {(len(rows), 1 + names.index(name)) for name in winners if name in names}
        rows.append(
            (
                title_of(metric),
                *(format_mean(summary, decimals) for summary in summaries),
                MISSING if best is None else ", ".join(best.clearly_better_than) or MISSING,
            )
        )
    images = f"{comparison.num_images:,} {comparison.split} images"
    return Table(
        f"{title}Mean over seeds",
        f"Mean ± standard deviation over seeds on {images} of {comparison.num_classes} classes; "
        "accuracies, calibration errors and nc4_agreement in percent, collapse metrics of the "
        "training images. Higher (↑), lower (↓) or nearer to the value at collapse (→) is better, "
        "and the best mean is bold.",
        ("Metric", *names, "Best is clearly better than"),
        tuple(rows),
        frozenset(bold),
    )


def _count_runs(comparison: Comparison, method: str) -> str:
    number = sum(run.method == method for run in comparison.runs)
    kinds: tuple[tuple[str, Sequence[FailedRun | PendingRun]], ...] = (
        ("failed", comparison.failures),
        ("pending", comparison.pending),
    )
    others = [
        f"{count} {word}"
        for word, runs in kinds
        if (count := sum(run.method == method for run in runs))
    ]
    return f"{number} ({', '.join(others)})" if others else str(number)


def _create_differences(title: str, comparison: Comparison) -> Table:
    rows = []
    for metric in comparison.metrics:
        decimals = decimals_of(comparison, metric.name)
        for row in comparison.differences:
            if row.metric == metric.name:
                p_value = row.adjusted_p_value
                rows.append(
                    (
                        title_of(metric),
                        row.method,
                        str(len(row.seeds)),
                        format_metric(row.metric, row.mean, decimals, sign="+"),
                        format_interval(row, decimals),
                        MISSING if p_value is None else f"{p_value:.2g}",
                        OUTCOMES[row.outcome][0],
                    )
                )
    limit = f"{1 - comparison.confidence:.3g}"
    interval = f"{100 * comparison.confidence:g}% interval"
    return Table(
        f"{title}Differences to {comparison.baseline}",
        "Mean of method minus baseline, paired by seed; of metrics with a value at collapse (→), "
        f"distances from it are subtracted. Clearly better or worse means p < {limit} in "
        "Student's paired t-test, adjusted for the number of methods (Holm) but not for the number "
        "of metrics; intervals are not adjusted.",
        ("Metric", "Method", "Seeds", "Difference", interval, "p (Holm)", "Result"),
        tuple(rows),
    )


def _explain(title: str, comparison: Comparison) -> list[Note]:
    notes = []
    if len(comparison.seeds) == 1:
        notes.append(
            Note(
                f"{title}There is one seed, so that the variation over seeds is not known: "
                "differences may be due to the seed."
            )
        )
    if comparison.split == "validation":
        notes.append(
            Note(
                f"{title}The numbers are of validation images: where settings or checkpoints were "
                "chosen on them, they are too good."
            )
        )
    notes += [
        Note(
            f"{title}{run.method}, seed {run.seed}, has failed: "
            f"{run.error[:_MAX_ERROR].rstrip('.')}.",
            kind="missing",
        )
        for run in comparison.failures[:_MAX_NAMED]
    ]
    if (others := len(comparison.failures) - _MAX_NAMED) > 0:
        notes.append(Note(f"{title}{others} more runs have failed.", kind="missing"))
    if comparison.pending:
        names = [f"{run.method} (seed {run.seed})" for run in comparison.pending]
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        notes.append(
            Note(
                f"{title}Runs that are not complete: {', '.join(names[:_MAX_NAMED])}{more}.",
                kind="missing",
            )
        )
    return notes
