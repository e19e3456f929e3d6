"""Reliability diagrams: accuracy over confidence, before and after temperature scaling."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from protosphere.report.colors import NEUTRAL
from protosphere.studies.plots.figures import create_figure, draw_legend, styled
from protosphere.studies.plots.looks import label, looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protosphere.studies.calibration import ReliabilityRow

_STATES = {"before": "before temperature scaling", "after": "after temperature scaling"}
# Area of a point, in square points, that has all images.
_LARGEST_AREA = 600


@styled
def plot_reliability(diagrams: "Mapping[str, Sequence[ReliabilityRow]]") -> "Figure":
    """Draw reliability diagrams; the area of a point is the fraction of images in its bin.

    Args:
        diagrams: Bins of one classifier, of both states, by its title.

    Returns:
        The figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure, panels = create_figure(len(diagrams), columns=4, size=(3.4, 3.6))
    drawn_as = looks(list(_STATES.values()))
    for axes, (title, rows) in zip(panels, diagrams.items(), strict=True):
        axes.set_title(label(title, 40))
        axes.set_xlabel("confidence in %")
        axes.set_ylabel("accuracy in %")
        axes.plot([0, 100], [0, 100], color=NEUTRAL, linestyle=":", label="perfect calibration")
        for state, text in _STATES.items():
            filled = [row for row in rows if row.state == state and row.num_samples]
            total = sum(row.num_samples for row in filled)
            confidences = [100 * (row.confidence or 0.0) for row in filled]
            accuracies = [100 * (row.accuracy or 0.0) for row in filled]
            color = drawn_as[text].color
            axes.plot(confidences, accuracies, ".-", label=text, color=color)
            areas = [_LARGEST_AREA * row.num_samples / total for row in filled]
            axes.scatter(
                confidences,
                accuracies,
                s=areas,
                color=color,
                alpha=0.25,
                linewidths=0,
                clip_on=False,
            )
        axes.set_xlim(-2, 102)
        axes.set_ylim(-2, 102)
        axes.set_aspect("equal")
    draw_legend(figure, panels)
    return figure
