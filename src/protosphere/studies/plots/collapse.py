"""Panels about neural collapse: distances from it, cosines of class means, their spectrum."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protosphere.metrics.verdicts import GradedDistance
from protosphere.report.class_geometry import bin_matrix
from protosphere.report.colors import DIVERGING, PALETTE
from protosphere.studies.plots.figures import draw_absence, import_matplotlib
from protosphere.studies.plots.looks import labels

# Light to dark: the answers differ in lightness, not only in hue.
_BANDS = {"yes": "#bfe3d0", "nearly": "#dcecc8", "partly": "#f7e3b5", "no": "#f3c8bd"}
_SMALLEST, _LARGEST = 1e-4, 10.0
_MAX_CELLS = 200
_MAX_TICKS = 20
_MAX_CLASSES = 2000


def draw_conditions(axes: Any, distances: Sequence[GradedDistance]) -> None:
    """Draw how far the conditions NC1 to NC4 are from collapse, over the limits of the answers.

    Args:
        axes: Axes to draw into.
        distances: Result of :func:`protosphere.metrics.verdicts.graded_distances`.
    """
    title = "The conditions of neural collapse"
    if not distances:
        draw_absence(axes, title, "no metric of the conditions was measured")
        return
    axes.set_xscale("log")
    axes.set_xlim(_SMALLEST / 2, _LARGEST)
    for place, row in enumerate(distances):
        edges = [_SMALLEST / 2, *row.limits, _LARGEST]
        for left, right, color in zip(edges, edges[1:], _BANDS.values(), strict=False):
            axes.barh(place, right - left, left=left, height=0.72, color=color, zorder=1)
        at = min(max(row.distance, _SMALLEST), _LARGEST / 1.15)
        # A triangle at the edge: the value is beyond it.
        marker = "<" if row.distance < _SMALLEST else ">" if row.distance > at else "o"
        axes.plot(at, place, marker, color="black", zorder=3)
        axes.annotate(
            _number(row.distance),
            (at, place),
            xytext=(-7, 0) if at > 0.03 else (7, 0),
            textcoords="offset points",
            ha="right" if at > 0.03 else "left",
            va="center",
            fontsize=7.5,
            zorder=4,
        )
    texts = [textwrap.fill(f"{row.condition}: {row.meaning}", 22) for row in distances]
    axes.set_yticks(range(len(distances)), texts)
    axes.set_ylim(len(distances) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.set_title(title)
    axes.set_xlabel("distance from collapse (logarithmic; 0 at collapse)")
    axes.xaxis.set_major_formatter(import_matplotlib().ticker.FormatStrFormatter("%g"))
    patches = import_matplotlib().patches
    _draw_legend_below(
        axes,
        [patches.Patch(color=color) for color in _BANDS.values()],
        [f"“{answer}”" for answer in _BANDS],
    )


def draw_cosine_histogram(
    axes: Any, cosines: Mapping[str, NDArray[Any]], *, num_classes: int
) -> None:
    """Draw how the cosines between all pairs of classes are distributed.

    Args:
        axes: Axes to draw into.
        cosines: Matrices of cosines, by what they are of.
        num_classes: Number of classes K; a simplex has the cosine −1/(K−1) everywhere.
    """
    pairs = {name: matrix[np.triu_indices(len(matrix), 1)] for name, matrix in cosines.items()}
    everything = np.concatenate(list(pairs.values()))
    target = -1 / (num_classes - 1)
    low, high = min(everything.min(), target), max(everything.max(), target)
    margin = max(0.02, 0.05 * (high - low))
    num_bins = int(min(40, max(10, math.sqrt(2 * len(everything)))))
    bins = np.linspace(max(-1.01, low - margin), min(1.01, high + margin), num_bins + 1)
    for (name, values), color in zip(pairs.items(), PALETTE, strict=False):
        weights = np.full(len(values), 100 / len(values))
        axes.hist(
            values,
            bins,
            weights=weights,
            histtype="stepfilled",
            color=color,
            alpha=0.35,
            label=name,
        )
        axes.hist(values, bins, weights=weights, histtype="step", color=color, linewidth=1.2)
    axes.axvline(target, color="black", linestyle="--", linewidth=1.2, label="simplex: −1/(K−1)")
    axes.set_title("Cosines between classes")
    axes.set_xlabel("cosine")
    axes.set_ylabel("pairs of classes in %")
    _draw_legend_below(axes)


def draw_cosine_map(
    figure: Any, axes: Any, cosines: NDArray[Any], class_names: Sequence[str]
) -> None:
    """Draw the cosines between class means as a heat map around those of a simplex.

    More than 200 rows are averaged in blocks; the diagonal is left empty.

    Args:
        figure: Figure of the axes, for the color bar.
        axes: Axes to draw into.
        cosines: Cosines between centered class means, of some classes if there are many.
        class_names: Names of all classes.
    """
    matplotlib, num_classes = import_matplotlib(), len(class_names)
    target = -1 / (num_classes - 1)
    off_diagonal = cosines.astype(np.float64)
    np.fill_diagonal(off_diagonal, np.nan)
    shown = bin_matrix(off_diagonal, _MAX_CELLS).values
    spread = max(0.05, float(np.nanmax(np.abs(shown - target), initial=0.0)))
    colors = matplotlib.colors.LinearSegmentedColormap.from_list("cosines", list(DIVERGING))
    colors = colors.with_extremes(bad="#8f96a3")
    image = axes.imshow(
        shown, cmap=colors, vmin=target - spread, vmax=target + spread, interpolation="nearest",
        extent=(-0.5, num_classes - 0.5, num_classes - 0.5, -0.5),
    )  # fmt: skip
    axes.grid(visible=False)
    axes.set_title("Cosines between class means")
    if num_classes <= _MAX_TICKS:
        texts = labels(class_names, 14)
        turn = 90 if max(map(len, texts)) > 2 else 0
        axes.set_xticks(range(num_classes), texts, rotation=turn)
        axes.set_yticks(range(num_classes), texts)
    else:
        axes.set_xlabel("class index")
        axes.set_ylabel("class index")
    bar = figure.colorbar(image, ax=axes, label="cosine (middle: −1/(K−1))", shrink=0.85)
    bar.outline.set_visible(False)


def draw_spectrum(axes: Any, vectors: Mapping[str, NDArray[Any]]) -> None:
    """Draw the singular values of centered class means and prototypes; all are 1 at collapse.

    Args:
        axes: Axes to draw into.
        vectors: Vectors of the classes, by what they are.
    """
    for (name, rows), color, marker in zip(vectors.items(), PALETTE, "os", strict=False):
        rank = min(len(rows) - 1, rows.shape[1])
        values = np.linalg.svd(rows - rows.mean(0), compute_uv=False)[:rank]
        scale = math.sqrt(float((values**2).mean())) or 1.0
        axes.plot(
            range(1, rank + 1),
            values / scale,
            marker=marker if rank <= 40 else None,
            markersize=3.5,
            color=color,
            label=name,
        )
    axes.axhline(1.0, color="black", linestyle="--", linewidth=1.2, label="simplex: all equal")
    axes.set_ylim(0, max(1.2, axes.get_ylim()[1]))
    rank = max(min(len(rows) - 1, rows.shape[1]) for rows in vectors.values())
    axes.set_xlim(0.5, rank + 0.5)
    ticker = import_matplotlib().ticker
    axes.xaxis.set_major_locator(ticker.MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    axes.set_title("Spectrum of " + " and ".join(vectors))
    axes.set_xlabel("index of the singular value")
    axes.set_ylabel("singular value / root mean square")
    _draw_legend_below(axes)


def centered_cosines(vectors: NDArray[Any]) -> NDArray[Any]:
    """Return the cosines between centered vectors, of at most 2,000 of them.

    Args:
        vectors: One vector per class; of more classes, evenly spaced ones are taken.
    """
    step = -(-len(vectors) // _MAX_CLASSES)
    centered = (vectors - vectors.mean(0))[::step]
    norms = np.linalg.norm(centered, axis=1, keepdims=True)
    unit = centered / np.where(norms > 0, norms, 1.0)
    cosines: NDArray[Any] = unit @ unit.T
    return cosines


def _draw_legend_below(axes: Any, *content: Any) -> None:
    axes.legend(
        *content,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.18),
        ncols=2 if not content else 4,
        handlelength=1.5,
        columnspacing=1.2,
    )


def _number(value: float) -> str:
    return "0" if abs(value) < 1e-12 else f"{value:.2g}"
