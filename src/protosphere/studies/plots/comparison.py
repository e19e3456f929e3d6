"""A picture of a comparison: differences to the baseline with confidence intervals."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from protosphere.report.colors import NEUTRAL
from protosphere.report.metric_text import is_percentage
from protosphere.runs.comparison import ComparedMetric, Comparison
from protosphere.studies.compare_metrics import EVALUATION_METRICS
from protosphere.studies.compare_summary import seed_differences
from protosphere.studies.plots.figures import create_figure, styled
from protosphere.studies.plots.looks import label, looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BETTER = {
    "higher": "higher is better",
    "lower": "lower is better",
    "target": "distance from collapse, lower is better",
    None: "",
}


@styled
def plot_comparison(comparison: Comparison, metrics: Sequence[str]) -> "Figure":
    """Draw the differences of all methods to the baseline, one panel per metric.

    Small dots are seeds, a circle with a bar is the mean with its confidence interval. Circles of
    clear differences are filled.

    Args:
        comparison: The comparison.
        metrics: Metrics to draw; those that were not measured are left out.

    Returns:
        The figure.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: There is no difference to draw.
    """
    measured = {metric.name: metric for metric in comparison.metrics}
    compared = {row.metric for row in comparison.differences}
    drawn = [measured[name] for name in metrics if name in compared]
    if not drawn:
        raise ValueError(
            "a picture needs a difference: two methods with a seed and a metric in common"
        )
    num_rows = len(comparison.methods) - 1
    figure, panels = create_figure(len(drawn), size=(4.2, 1.5 + 0.28 * num_rows))
    for axes, metric in zip(panels, drawn, strict=True):
        _draw_metric(axes, comparison, metric)
    confidence = f"{100 * comparison.confidence:g}%"
    figure.suptitle(
        f"Difference to {label(comparison.baseline, 40)}, {confidence} confidence intervals\n"
        "Small dots: seeds. Filled circle: statistically clear, open circle: not clear.",
        fontsize=10,
    )
    return figure


def _draw_metric(axes: Any, comparison: Comparison, metric: ComparedMetric) -> None:
    scale, unit = (100, " in percentage points") if is_percentage(metric.name) else (1, "")
    rows = [row for row in comparison.differences if row.metric == metric.name]
    names = [method.name for method in comparison.methods if method.name != comparison.baseline]
    drawn_as = looks(names)
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
        color = drawn_as[row.method].color
        if row.low is not None and row.high is not None:
            axes.plot([scale * row.low, scale * row.high], [place, place], color=color)
        is_clear = row.outcome not in (None, "not clear")
        fill = "full" if is_clear else "none"
        axes.plot(scale * row.mean, place, "o", color=color, fillstyle=fill, markersize=7)
    axes.axvline(0, color=NEUTRAL, linewidth=1.0, linestyle="--", zorder=0)
    axes.set_yticks(range(len(rows)), [drawn_as[row.method].text for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.locator_params(axis="x", nbins=5)
    is_evaluated = metric.name in EVALUATION_METRICS and metric.name != "train_accuracy"
    images = comparison.split if is_evaluated else "training"
    axes.set_title(f"{metric.name.replace('_', ' ')}, {images} images")
    axes.set_xlabel(f"difference{unit}\n{_BETTER[metric.direction]}")
