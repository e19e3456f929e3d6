"""The section on geometry: cosines between classes, spectrum of class means, and a 3-D view."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from protosphere.report.class_geometry import mean_spectrum
from protosphere.report.colors import NEUTRAL
from protosphere.report.content import Block, Figure, Section
from protosphere.report.cosine_maps import (
    COSINES,
    cosine_entries,
    create_beside,
    create_heat_maps,
)
from protosphere.report.curves import (
    LEGEND,
    Method,
    curve_traces,
    group_methods,
    have_markers,
    mean_curve,
    shorten,
    with_opacity,
)
from protosphere.report.final_results import describe_arrays
from protosphere.report.plotly_text import plain
from protosphere.report.run_arrays import (
    GEOMETRY_ARRAYS,
    choose_runs,
    describe_choice,
    describe_missing,
    find_arrays,
    lack_alike,
    menu_of_runs,
)
from protosphere.report.sources import ReportData, RunData
from protosphere.report.sphere_view import create_view, has_view


def create_section(report: ReportData) -> Section | None:
    """Return the section on geometry, or None if no run has arrays.

    Args:
        report: The runs.
    """
    methods = group_methods(report.runs)
    runs = choose_runs(methods, GEOMETRY_ARRAYS)
    if not runs:
        return None
    viewed = [run for run in runs if has_view(run)]
    beside = create_beside(runs)
    blocks: list[Block] = [] if beside is None else [beside]
    blocks.append(_create_distribution(runs))
    blocks += [create_heat_maps(runs, name) for name in COSINES]
    blocks.append(_create_spectrum(methods))
    if viewed:
        views = [create_view(run, f"sphere-{index}") for index, run in enumerate(viewed)]
        blocks.append(menu_of_runs("sphere-views", viewed, views))
    what = "Geometry and results by class are" if lack_alike(report.runs) else "Geometry is"
    note = describe_missing(report.runs, GEOMETRY_ARRAYS, f"{what} not shown")
    if note is not None:
        blocks.append(note)
    return Section(
        "geometry",
        "Geometry of classes",
        "At neural collapse the K centered class means, and the prototypes, are the vertices of a "
        "simplex: all cosines between two of them are −1/(K−1), and they differ equally in all of "
        f"K−1 directions. The arrays are those of the {describe_arrays(runs)}."
        + describe_choice(methods, runs),
        tuple(blocks),
    )


def _create_distribution(runs: Sequence[RunData]) -> Figure:
    """Quantiles of the cosines of all runs, a box each."""
    traces = []
    for name, what in COSINES.items():
        quantiles = np.array(
            [np.quantile(cosine_entries(run, name), (0.0, 0.25, 0.5, 0.75, 1.0)) for run in runs]
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


def _create_spectrum(methods: Sequence[Method]) -> Figure:
    curves = []
    most = 0
    for method in methods:
        series = []
        for run in method.runs:
            arrays = find_arrays(run, ("class_means",))
            if arrays is not None:
                spectrum = mean_spectrum(arrays["class_means"])
                series.append([(float(i), float(v)) for i, v in enumerate(spectrum, start=1)])
                most = max(most, len(arrays["class_means"]) - 1)
        curves.append(mean_curve(series))
    markers = have_markers(curves)
    traces: list[dict[str, Any]] = []
    for method, curve in zip(methods, curves, strict=True):
        y = "{} of a simplex’s singular value"
        traces += curve_traces(method, curve, x="direction {}", y=y, markers=markers)
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
