"""The section on geometry: cosines between classes, spectrum of class means, and a 3-D view."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from protosphere.report.class_geometry import (
    Binned,
    Matrix,
    bin_matrix,
    mean_spectrum,
    off_diagonal,
    simplex_deviation,
)
from protosphere.report.colors import DIVERGING, NEUTRAL, color_bar
from protosphere.report.content import Block, Choice, Figure, Section
from protosphere.report.curves import (
    LEGEND,
    Method,
    curve_traces,
    group_methods,
    mean_curve,
    shorten,
    with_opacity,
)
from protosphere.report.plotly_text import plain
from protosphere.report.run_arrays import (
    choose_runs,
    describe_choice,
    describe_missing,
    find_arrays,
    menu_of_runs,
)
from protosphere.report.run_shape import names_of_classes, unique_labels
from protosphere.report.sources import ReportData, RunData
from protosphere.report.sphere_view import create_view, has_view
from protosphere.report.typed_arrays import encode

_MAX_SIDE = 200
# With many runs of many classes, smaller heat maps keep the page small.
_MANY_RUNS, _SMALLER_SIDE = 8, 100
_COSINES = {"class_cosines": "class means", "prototype_cosines": "prototypes"}


def create_section(report: ReportData) -> Section | None:
    """Return the section on geometry, or None if no run has arrays.

    Args:
        report: The runs.
    """
    methods = group_methods(report.runs)
    needed = ("class_means", *_COSINES)
    runs = choose_runs(methods, needed)
    if not runs:
        return None
    viewed = [run for run in runs if has_view(run)]
    blocks: list[Block] = [_create_distribution(runs)]
    blocks += [_create_heat_maps(runs, name) for name in _COSINES]
    blocks.append(_create_spectrum(methods))
    if viewed:
        views = [create_view(run, f"sphere-{index}") for index, run in enumerate(viewed)]
        blocks.append(menu_of_runs("sphere-views", viewed, views))
    note = describe_missing(report.runs, needed, "Cosines, spectrum and 3-D view are not shown")
    if note is not None:
        blocks.append(note)
    return Section(
        "geometry",
        "Geometry of classes",
        "At neural collapse the K centered class means, and the prototypes, are the vertices of a "
        "simplex: all cosines between two of them are −1/(K−1), and they differ equally in all of "
        "K−1 directions. The arrays are those of the last evaluation."
        + describe_choice(methods, runs),
        tuple(blocks),
    )


def _cosines(run: RunData, name: str) -> Matrix:
    arrays = find_arrays(run, (name,))
    assert arrays is not None  # Only runs with arrays are chosen.
    return simplex_deviation(arrays[name])


def _create_distribution(runs: Sequence[RunData]) -> Figure:
    """Quantiles of the cosines of all runs, a box each."""
    traces = []
    for name, what in _COSINES.items():
        quantiles = np.array(
            [np.quantile(_entries(run, name), (0.0, 0.25, 0.5, 0.75, 1.0)) for run in runs]
        )
        keys = ("lowerfence", "q1", "median", "q3", "upperfence")
        traces.append(
            {
                "type": "box",
                "orientation": "h",
                "name": what,
                "line": {"color": NEUTRAL, "width": 1.5},
                "fillcolor": with_opacity(NEUTRAL, 0.6 if name == "class_cosines" else 0.0),
                "y": [plain(shorten(run.name)) for run in runs],
                **{
                    key: np.round(column, 5).tolist()
                    for key, column in zip(keys, quantiles.T, strict=True)
                },
                "hoverinfo": "x",
            }
        )
    layout = {
        "boxmode": "group",
        "boxgap": 0.25,
        "boxgroupgap": 0.1,
        "xaxis": {
            "title": {"text": "cosine + 1/(K−1)"},
            "hoverformat": "+.3f",
            "zeroline": True,
            "zerolinecolor": NEUTRAL,
            "zerolinewidth": 2,
        },
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
    }
    return Figure(
        "cosine-distribution",
        "Cosines between classes",
        "Cosines between all pairs of classes as deviation from −1/(K−1), the cosine of a simplex, "
        "which is the line at 0: boxes are the middle half of the pairs, whiskers the smallest and "
        "the largest.",
        tuple(traces),
        layout,
        height=150 + (44 if len(runs) <= 12 else 28) * len(runs),
    )


def _entries(run: RunData, name: str) -> Matrix:
    entries = off_diagonal(_cosines(run, name))
    return entries if len(entries) else np.array([np.nan])


def _create_heat_maps(runs: Sequence[RunData], name: str) -> Choice | Figure:
    side = _MAX_SIDE if len(runs) <= _MANY_RUNS else _SMALLER_SIDE
    binned = [bin_matrix(_cosines(run, name), side) for run in runs]
    # One scale for all runs, without the few most extreme pairs, makes runs comparable.
    largest = [float(np.nanquantile(np.abs(one.values), 0.999)) for one in binned]
    figures = [
        _create_heat_map(run, name, one, max(*largest, 0.01), index)
        for index, (run, one) in enumerate(zip(runs, binned, strict=True))
    ]
    return menu_of_runs(f"{name.replace('_', '-')}-maps", runs, figures)


def _create_heat_map(run: RunData, name: str, binned: Binned, limit: float, index: int) -> Figure:
    what = _COSINES[name]
    entries = _entries(run, name)
    num_classes = int(binned.edges[-1])
    labels = _block_labels(run, binned)
    is_exact = binned.is_exact
    trace = {
        "type": "heatmap",
        "z": encode(binned.values),
        "x": labels,
        "y": labels,
        "colorscale": [list(stop) for stop in DIVERGING],
        "zmid": 0,
        "zmin": -limit,
        "zmax": limit,
        "colorbar": color_bar("cosine + 1/(K−1)"),
        "hovertemplate": "%{y} and %{x}<br>"
        + ("" if is_exact else "mean of ")
        + "cosine + 1/(K−1): %{z:+.3f}<extra></extra>",
        "hoverongaps": False,
    }
    axis = {
        "type": "category",
        "showgrid": False,
        "constrain": "domain",
        "automargin": True,
        "title": {"text": "class" if is_exact else "classes, by number", "standoff": 20},
        "nticks": 20,
    }
    layout = {
        "xaxis": axis | {"tickangle": -90},
        "yaxis": axis | {"autorange": "reversed", "scaleanchor": "x", "constraintoward": "top"},
    }
    size = "" if is_exact else f", averaged over blocks of {binned.edges[1]} × {binned.edges[1]}"
    return Figure(
        f"{name.replace('_', '-')}-{index}",
        f"Cosines between {what}: {run.name}",
        f"Deviation of the cosine between each pair of {what} from −1/(K−1) = "
        f"−{1 / (num_classes - 1):.4f}{size}; it is {np.mean(np.abs(entries)):.4f} on average and "
        f"at most {np.max(np.abs(entries)):.3f}, white at collapse and red for pairs that are too "
        "similar, and the scale is the same for all runs.",
        (trace,),
        layout,
        height=580,
    )


def _block_labels(run: RunData, binned: Binned) -> list[str]:
    """Class names, different from each other, or numbers of the first and last class of blocks."""
    edges = binned.edges.tolist()
    if not binned.is_exact:
        return [f"{first}–{end - 1}" for first, end in pairwise(edges)]
    return unique_labels(names_of_classes(run, edges[-1]))


def _create_spectrum(methods: Sequence[Method]) -> Figure:
    traces: list[dict[str, Any]] = []
    most = 0
    for method in methods:
        series = []
        for run in method.runs:
            arrays = find_arrays(run, ("class_means",))
            if arrays is not None:
                spectrum = mean_spectrum(arrays["class_means"])
                series.append([(float(i), float(v)) for i, v in enumerate(spectrum, start=1)])
                most = max(most, len(arrays["class_means"]) - 1)
        traces += curve_traces(
            method, mean_curve(series), x="direction {}", y="{} of a simplex’s singular value"
        )
    traces.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "simplex",
            "x": [1, max(most, 2)],
            "y": [1, 1],
            "line": {"color": NEUTRAL, "dash": "dash", "width": 1.5},
            "hoverinfo": "skip",
        }
    )
    layout = {
        "xaxis": {"title": {"text": "direction, by decreasing singular value"}},
        "yaxis": {
            "title": {"text": "singular value / that of a simplex"},
            "autorangeoptions": {"include": [0, 1.2]},
        },
        "hovermode": "closest",
        "legend": LEGEND,
    }
    return Figure(
        "spectrum",
        "Spectrum of class means",
        "Singular values of the centered class means, relative to the K−1 equal ones of a simplex "
        "of the same total variance: the spectrum is flat at 1 at collapse, and steep where the "
        "classes differ in a few directions only.",
        tuple(traces),
        layout,
    )
