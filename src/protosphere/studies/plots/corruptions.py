"""Figure of errors on corrupted images: by corruption, and over severities."""

from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from protosphere.data.corruptions import CORRUPTIONS
from protosphere.studies.plots.bars import percentages
from protosphere.studies.plots.figures import draw_legend, import_matplotlib, styled
from protosphere.studies.plots.looks import looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protosphere.studies.corruption_summary import CorruptionSummary
    from protosphere.studies.corruptions import CorruptionRow


class CorruptedRun(NamedTuple):
    """What is drawn of a run.

    Attributes:
        summary: Its errors in a few numbers.
        rows: Its error under each corruption at each severity.
    """

    summary: "CorruptionSummary"
    rows: "tuple[CorruptionRow, ...]"


@styled
def plot_corruptions(runs: Mapping[str, CorruptedRun]) -> "Figure":
    """Draw the error of each corruption, averaged over severities, and the error over severities.

    Severity 0 are clean images. Where class means were measured, their errors are dotted.

    Args:
        runs: Errors by the name of the run.

    Returns:
        The figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    matplotlib = import_matplotlib()
    names = list(dict.fromkeys(name for run in runs.values() for name in run.summary.errors))
    figure: Figure = matplotlib.figure.Figure(
        figsize=(max(8.5, 4.5 + 0.5 * len(names)), 4.6), layout="constrained"
    )
    by_name, by_severity = figure.subplots(1, 2, width_ratios=[max(1.2, 0.13 * len(names)), 1])
    drawn_as = looks(list(runs))
    for index, (name, run) in enumerate(runs.items()):
        look = drawn_as[name]
        summary = run.summary
        text = look.text if summary.mce is None else f"{look.text} (mCE {100 * summary.mce:.1f})"
        # Beside each other, so that equal errors do not hide one another.
        shift = 0.5 * ((index + 0.5) / len(runs) - 0.5)
        known = [
            (place + shift, 100 * summary.errors[one])
            for place, one in enumerate(names)
            if one in summary.errors
        ]
        by_name.plot(
            [x for x, _ in known], [y for _, y in known], look.marker, color=look.color, label=text
        )
        if summary.clean_error is not None:
            by_name.axhline(
                100 * summary.clean_error, color=look.color, linestyle=":", linewidth=1.0, zorder=0
            )
        levels = dict(summary.by_severity)
        if summary.clean_error is not None:
            levels = {0: summary.clean_error} | levels
        by_severity.plot(
            list(levels),
            percentages(list(levels.values())),
            look.marker,
            color=look.color,
            linestyle=look.line,
            label=text,
        )
        means = _class_means(run)
        if means:
            by_severity.plot(
                list(means), percentages(list(means.values())), color=look.color, linestyle=":"
            )
    by_name.set_xticks(
        range(len(names)),
        [_text(name) for name in names],
        rotation=45,
        ha="right",
        rotation_mode="anchor",
    )
    by_name.set_xlim(-0.6, len(names) - 0.4)
    by_name.set_ylim(bottom=0)
    by_name.set_title("Error by corruption, mean over severities (dotted: clean images)")
    by_name.set_ylabel("error in %")
    by_severity.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    by_severity.set_ylim(bottom=0)
    has_means = any(run.summary.class_means_mean_error is not None for run in runs.values())
    dotted = " (dotted: class means)" if has_means else ""
    by_severity.set_title(f"Mean error of the corruptions{dotted}")
    by_severity.set_xlabel("severity (0: clean images)")
    by_severity.set_ylabel("error in %")
    draw_legend(figure, [by_name])
    return figure


def _class_means(run: CorruptedRun) -> dict[int, float]:
    """Return the error of class means at each severity, over the corruptions that count."""
    counted = [row for row in run.rows if row.corruption in CORRUPTIONS or row.severity == 0]
    levels = sorted({row.severity for row in counted})
    errors = {
        level: [row.class_means_error for row in counted if row.severity == level]
        for level in levels
    }
    return {
        level: fmean(one for one in values if one is not None)
        for level, values in errors.items()
        if None not in values
    }


def _text(name: str) -> str:
    return name.replace("_", " ") + ("" if name in CORRUPTIONS else " (extra)")
