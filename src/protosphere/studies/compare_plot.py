"""A picture of a comparison: differences to the baseline with confidence intervals."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protosphere.runs.comparison import ComparedMetric, Comparison
from protosphere.studies.compare_metrics import is_percentage
from protosphere.studies.compare_summary import seed_differences
from protosphere.studies.plots import create_figure, write_figure

_BETTER = {
    "higher": "higher is better",
    "lower": "lower is better",
    "target": "distance from collapse, lower is better",
    None: "",
}


def plot_comparison(path: Path, comparison: Comparison, metrics: Sequence[str]) -> None:
    """Draw the differences of all methods to the baseline, one panel per metric.

    Small dots are seeds, a circle with a bar is the mean with its confidence interval. Circles of
    clear differences are filled.

    Args:
        path: File to write or replace.
        comparison: The comparison.
        metrics: Metrics to draw; those that were not measured are left out.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: There is no difference to draw.
        StorageError: The file could not be written.
    """
    measured = {metric.name: metric for metric in comparison.metrics}
    compared = {row.metric for row in comparison.differences}
    drawn = [measured[name] for name in metrics if name in compared]
    if not drawn:
        raise ValueError(
            "a picture needs a difference: two methods with a seed and a metric in common"
        )
    figure, panels = create_figure(len(drawn))
    for axes, metric in zip(panels, drawn, strict=False):
        _draw_metric(axes, comparison, metric)
    confidence = f"{100 * comparison.confidence:g} %"
    figure.suptitle(
        f"Difference to {comparison.baseline} on {comparison.split} images, {confidence} "
        "confidence intervals; filled: clear",
        fontsize=10,
    )
    write_figure(path, figure)


def _draw_metric(axes: Any, comparison: Comparison, metric: ComparedMetric) -> None:
    scale, unit = (100, " in %") if is_percentage(metric.name) else (1, "")
    rows = [row for row in comparison.differences if row.metric == metric.name]
    names = [method.name for method in comparison.methods if method.name != comparison.baseline]
    for place, row in enumerate(rows):
        seeds = seed_differences(metric, comparison.runs, row.method, comparison.baseline)
        axes.plot(
            [scale * difference for difference in seeds],
            [place] * len(seeds),
            "k.",
            markersize=3,
            alpha=0.5,
            zorder=3,
        )
        color = f"C{names.index(row.method) % 10}"
        if row.low is not None and row.high is not None:
            axes.plot([scale * row.low, scale * row.high], [place, place], color=color)
        is_clear = row.outcome not in (None, "not clear")
        fill = "full" if is_clear else "none"
        axes.plot(scale * row.mean, place, "o", color=color, fillstyle=fill)
    axes.axvline(0, color="gray", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(rows)), [row.method for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_title(f"{metric.name}{unit}", fontsize=9)
    axes.set_xlabel(_BETTER[metric.direction], fontsize=8)
