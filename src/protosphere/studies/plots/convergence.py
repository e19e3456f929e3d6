"""Curves of convergence: metrics of runs over training, and where they reach neural collapse."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protosphere.report.colors import NEUTRAL
from protosphere.studies.plots.figures import create_figure, draw_legend, styled
from protosphere.studies.plots.looks import Look, looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protosphere.studies.convergence import ConvergenceRow, CurveRow


@styled
def plot_convergence(
    curves: "Mapping[str, Sequence[CurveRow]]",
    rows: "Mapping[str, Sequence[ConvergenceRow]]",
    *,
    metrics: "Sequence[str] | None" = None,
) -> "Figure":
    """Draw the metrics of runs over the percentage of the run, one panel per metric.

    A dashed line is 95% of neural collapse, a dotted one the last value of the baseline; a circle
    is where the moving average enters the threshold to stay.

    Args:
        curves: Logged points by the name of the run.
        rows: When metrics converge, by the name of the run.
        metrics: Metrics to draw, also accuracies, for which there are no rows; None for those of
            the rows.

    Returns:
        The figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    with_rows = list(dict.fromkeys(row.metric for own in rows.values() for row in own))
    metrics = with_rows if metrics is None else metrics
    figure, panels = create_figure(len(metrics))
    drawn_as = looks(list(curves))
    for axes, metric in zip(panels, metrics, strict=True):
        axes.set_title(metric.replace("_", " "))
        axes.set_xlabel("training progress in %")
        axes.set_ylabel(_unit(metric))
        for name, points in curves.items():
            row = next((row for row in rows[name] if row.metric == metric), None)
            own = [point for point in points if point.metric == metric]
            _draw_curve(axes, drawn_as[name], own, row)
    draw_legend(figure, panels)
    if set(metrics) & set(with_rows):
        figure.suptitle(
            "Circle: the moving average stays within 95% of collapse from here on", fontsize=9
        )
    return figure


def _unit(metric: str) -> str:
    if metric.endswith("accuracy"):
        return "accuracy in %"
    return "effective rank" if metric.endswith("effective_rank") else "mean squared distance"


def _draw_curve(
    axes: Any, look: Look, points: "Sequence[CurveRow]", row: "ConvergenceRow | None"
) -> None:
    if row is not None:
        _draw_levels(axes, row)
    if not points:
        return
    length = points[-1].epoch
    times = [100 * point.epoch / length for point in points]
    averages = [point.moving_average for point in points]
    axes.plot(times, averages, label=look.text, color=look.color, linestyle=look.line)
    axes.plot(times, [point.value for point in points], color=look.color, alpha=0.3, linewidth=0.8)
    reached = None if row is None else row.percent_to_collapse
    if isinstance(reached, float):
        at = min(range(len(times)), key=[abs(time - reached) for time in times].__getitem__)
        axes.plot(times[at], averages[at], "o", color=look.color, fillstyle="none", markersize=8)


def _draw_levels(axes: Any, row: "ConvergenceRow") -> None:
    style = {"linewidth": 1.0, "zorder": 0}
    axes.axhline(row.threshold, color="black", linestyle="--", label="95% of collapse", **style)
    if row.baseline_final is not None:
        text = "last value of the baseline"
        axes.axhline(row.baseline_final, color=NEUTRAL, linestyle=":", label=text, **style)
