"""Figure of a measurement: metrics of collapse, conditions, cosines and spectrum of class means."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protosphere.metrics.catalog import CATALOG, at_collapse, attainable
from protosphere.metrics.verdicts import graded_distances
from protosphere.report.colors import PALETTE
from protosphere.studies.plots.collapse import (
    centered_cosines,
    draw_conditions,
    draw_cosine_histogram,
    draw_cosine_map,
    draw_spectrum,
)
from protosphere.studies.plots.figures import draw_absence, import_matplotlib, styled
from protosphere.studies.plots.looks import label

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from protosphere.metrics import Measurement

# Smaller distances are drawn at the edge.
_SMALLEST = 1e-5
_CONDITIONS = ("NC1", "NC2", "NC3", "NC4")


@styled
def plot_measurement(
    measurement: "Measurement",
    *,
    prototypes: "Tensor | NDArray[Any] | None" = None,
    class_names: Sequence[str] | None = None,
    title: str | None = None,
) -> "Figure":
    """Draw how close features are to neural collapse.

    The panels: the distance of every metric from its value at collapse; the conditions NC1 to NC4
    over the limits of their answers; the spectrum of class means and prototypes; the cosines
    between class means, as a map and as a histogram.

    Args:
        measurement: Result of :func:`protosphere.metrics.measure_detailed`.
        prototypes: Prototypes of all classes, which are drawn beside the class means.
        class_names: Name of each class.
        title: Text above the figure.

    Returns:
        The figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    matplotlib = import_matplotlib()
    figure: Figure = matplotlib.figure.Figure(figsize=(15, 8.2), layout="constrained")
    axes = figure.subplot_mosaic(
        [["metrics", "conditions", "map"], ["metrics", "spectrum", "histogram"]]
    )
    means = measurement.statistics.means.detach().cpu().double().numpy()
    vectors = {"class means": means}
    if prototypes is not None:
        if not isinstance(prototypes, np.ndarray):
            prototypes = prototypes.detach().cpu().double().numpy()
        rows = prototypes.astype(np.float64)[measurement.classes]
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        vectors["prototypes"] = rows / np.where(norms > 0, norms, 1.0)
    cosines = {name: centered_cosines(rows) for name, rows in vectors.items()}
    num_classes, dim = means.shape
    names = [str(one) if class_names is None else class_names[one] for one in measurement.classes]
    best = {
        name: attainable(name, num_classes, dim, sign=measurement.sign)
        for name in measurement.values
    }
    _draw_metrics(axes["metrics"], measurement.values, best, num_classes)
    draw_conditions(axes["conditions"], graded_distances(measurement.values, num_classes, dim))
    draw_spectrum(axes["spectrum"], vectors)
    draw_cosine_map(figure, axes["map"], cosines["class means"], names)
    draw_cosine_histogram(axes["histogram"], cosines, num_classes=num_classes)
    num_samples = int(measurement.statistics.counts.sum())
    size = f"{num_samples:,} samples of {num_classes:,} classes in {dim:,} dimensions"
    figure.suptitle(size if title is None else f"{label(title, 80)}: {size}", fontsize=11)
    return figure


def _draw_metrics(
    axes: Any,
    values: Mapping[str, float],
    best: Mapping[str, float | None],
    num_classes: int,
) -> None:
    """Draw the distance of each metric from its value at collapse, and that of the best value."""
    colors = dict(zip(_CONDITIONS, PALETTE, strict=False))
    names = [name for name in values if at_collapse(name, num_classes) is not None]
    if not names:
        draw_absence(axes, "Metrics", "no metric with a value at collapse was measured")
        return
    has_limits = False
    for place, name in enumerate(names):
        distance = _distance(name, values[name], num_classes)
        at = max(distance, _SMALLEST)
        color = colors[CATALOG[name].condition]
        axes.plot([_SMALLEST, at], [place, place], color=color, linewidth=2.2, alpha=0.45)
        axes.plot(at, place, "o" if distance >= _SMALLEST else "<", color=color)
        reachable = best[name]
        limit = 0.0 if reachable is None else _distance(name, reachable, num_classes)
        if limit > _SMALLEST:
            has_limits = True
            axes.plot(limit, place, "|", color="black", markersize=11)
        axes.annotate(
            f"{values[name]:.3g}",
            (1.01, place),
            xycoords=("axes fraction", "data"),
            fontsize=7.5,
            va="center",
        )
    axes.annotate(
        "value", (1.01, -1), xycoords=("axes fraction", "data"), fontsize=7.5, va="center"
    )
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.8)
    axes.set_xscale("log")
    axes.set_xlim(left=_SMALLEST / 1.5)
    axes.xaxis.set_major_locator(import_matplotlib().ticker.LogLocator(numticks=7))
    axes.xaxis.set_major_formatter(import_matplotlib().ticker.FormatStrFormatter("%g"))
    axes.grid(visible=False, axis="y")
    axes.set_title("Metrics")
    axes.set_xlabel(
        "distance from the value at collapse (logarithmic),\nrelative to it where it is not 0"
    )
    lines = import_matplotlib().lines
    shown = [one for one in _CONDITIONS if any(CATALOG[name].condition == one for name in names)]
    handles = [lines.Line2D([], [], color=colors[one], marker="o") for one in shown]
    texts: list[str] = list(shown)
    if has_limits:
        handles.append(lines.Line2D([], [], color="black", marker="|", linestyle="", markersize=11))
        texts.append("best that such features can reach, if not collapse")
    axes.legend(
        handles,
        texts,
        loc="upper center",
        bbox_to_anchor=(0.4, -0.09),
        ncols=len(handles),
        handlelength=1.2,
        columnspacing=1.0,
    )


def _distance(name: str, value: float, num_classes: int) -> float:
    collapsed = at_collapse(name, num_classes)
    assert collapsed is not None
    return abs(value - collapsed) / (abs(collapsed) or 1.0)
