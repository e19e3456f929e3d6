"""Heat maps of the cosines between classes: of some methods side by side, and of each run."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from protosphere.report.class_geometry import (
    Binned,
    Matrix,
    bin_matrix,
    off_diagonal,
    simplex_deviation,
)
from protosphere.report.colors import DIVERGING, color_bar
from protosphere.report.content import Choice, Figure
from protosphere.report.curves import shorten
from protosphere.report.plotly_text import plain
from protosphere.report.run_arrays import find_arrays, menu_of_runs
from protosphere.report.run_shape import names_of_classes, unique_labels
from protosphere.report.sources import RunData
from protosphere.report.typed_arrays import encode

COSINES = {"class_cosines": "class means", "prototype_cosines": "prototypes"}
_TITLE = "cosine + 1/(K−1)"
_MAX_SIDE = 200
# With many runs of many classes, smaller heat maps keep the page small.
_MANY_RUNS, _SMALLER_SIDE = 8, 100
# Maps side by side, the space between them, and the part of the height that their titles take.
_MAX_BESIDE, _GAP, _TITLE_HEIGHT = 3, 0.05, 0.13


def cosine_entries(run: RunData, name: str) -> Matrix:
    """Return by how much the cosines of all pairs exceed −1/(K−1); NaN if none is known.

    Args:
        run: A run with the array.
        name: Name of the array with the cosines.
    """
    entries = off_diagonal(_deviations(run, name))
    return entries if len(entries) else np.array([np.nan])


def _deviations(run: RunData, name: str) -> Matrix:
    arrays = find_arrays(run, (name,))
    assert arrays is not None  # Only runs with arrays are chosen.
    return simplex_deviation(arrays[name])


def _mean_deviation(run: RunData) -> float:
    return float(np.mean(np.abs(cosine_entries(run, "class_cosines"))))


def create_beside(runs: Sequence[RunData]) -> Figure | None:
    """Return the maps of up to three methods side by side; None if there is only one method.

    They are the methods with the largest and the smallest mean deviation from a simplex and, of the
    others, cross-entropy or else the one in the middle. The first run of a method is shown.

    Args:
        runs: Runs with arrays.
    """
    firsts = {run.method: run for run in reversed(runs)}
    ranked = sorted(
        (run for run in runs if run is firsts[run.method]), key=_mean_deviation, reverse=True
    )
    if len(ranked) < 2:
        return None
    chosen = ranked
    if len(ranked) > _MAX_BESIDE:
        between = ranked[1:-1]
        usual = [run for run in between if _loss_name(run) == "ce"]
        chosen = [ranked[0], (usual or between[len(between) // 2 :])[0], ranked[-1]]
    traces, layout = _create_panels(chosen)
    others = "" if chosen is ranked else ", of the most and the least deviating method and another"
    return Figure(
        "cosines-beside",
        "Cosines between class means, side by side",
        f"Deviation of the cosine between each pair of class means from −1/(K−1){others}: white at "
        "neural collapse, red for pairs that are too similar; below each name is the mean absolute "
        "deviation.",
        tuple(traces),
        layout,
        height=480,
    )


def _loss_name(run: RunData) -> object:
    loss = run.recipe.get("loss")
    return loss.get("name") if isinstance(loss, Mapping) else None


def _create_panels(runs: Sequence[RunData]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    binned = [bin_matrix(_deviations(run, "class_cosines"), _SMALLER_SIDE) for run in runs]
    limit = _color_limit(binned)
    layout: dict[str, Any] = {
        "annotations": [],
        "margin": {"l": 0, "r": 0, "b": 8},
        "coloraxis": {
            "colorscale": [list(stop) for stop in DIVERGING],
            "cmin": -limit,
            "cmax": limit,
            "colorbar": color_bar(_TITLE),
        },
    }
    traces = []
    width = (1 - _GAP * (len(runs) - 1)) / len(runs)
    for index, (run, one) in enumerate(zip(runs, binned, strict=True)):
        suffix = "" if index == 0 else str(index + 1)
        trace = _create_trace(run, one)
        traces.append(
            trace | {"coloraxis": "coloraxis", "xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
        )
        axis = {"type": "category", "showgrid": False, "constrain": "domain"}
        # Names of classes are in the maps of single runs, where there is room.
        axis |= {"showticklabels": False, "ticks": ""}
        left = index * (width + _GAP)
        layout[f"xaxis{suffix}"] = axis | {
            "domain": [left, left + width],
            "anchor": f"y{suffix}",
            "constraintoward": "left",
        }
        layout[f"yaxis{suffix}"] = axis | {
            "domain": [0, 1 - _TITLE_HEIGHT],
            "anchor": f"x{suffix}",
            "autorange": "reversed",
            "scaleanchor": f"x{suffix}",
            "constraintoward": "top",
        }
        layout["annotations"].append(
            {
                "text": f"<b>{plain(shorten(run.name, 32))}</b><br>{_mean_deviation(run):.3f}",
                "align": "left",
                "showarrow": False,
                "xref": f"x{suffix} domain",
                "yref": f"y{suffix} domain",
                "x": 0,
                "xanchor": "left",
                "y": 1,
                "yanchor": "bottom",
                "font": {"size": 12},
            }
        )
    return traces, layout


def create_heat_maps(runs: Sequence[RunData], name: str) -> Choice | Figure:
    """Return a menu with the map of each run.

    Args:
        runs: Runs with arrays.
        name: Name of the array with the cosines.
    """
    side = _MAX_SIDE if len(runs) <= _MANY_RUNS else _SMALLER_SIDE
    binned = [bin_matrix(_deviations(run, name), side) for run in runs]
    limit = _color_limit(binned)
    figures = [
        _create_heat_map(run, name, one, limit, index)
        for index, (run, one) in enumerate(zip(runs, binned, strict=True))
    ]
    return menu_of_runs(f"{name.replace('_', '-')}-maps", runs, figures)


def _color_limit(binned: Sequence[Binned]) -> float:
    """One scale for all runs, without the few most extreme pairs, makes runs comparable."""
    return max(0.01, *(float(np.nanquantile(np.abs(one.values), 0.999)) for one in binned))


def _create_trace(run: RunData, binned: Binned) -> dict[str, Any]:
    labels = _block_labels(run, binned)
    return {
        "type": "heatmap",
        "z": encode(binned.values),
        "x": labels,
        "y": labels,
        "hovertemplate": "%{y} and %{x}<br>"
        + ("" if binned.is_exact else "mean of ")
        + f"{_TITLE}: %{{z:+.3f}}<extra></extra>",
        "hoverongaps": False,
    }


def _create_heat_map(run: RunData, name: str, binned: Binned, limit: float, index: int) -> Figure:
    what = COSINES[name]
    entries = cosine_entries(run, name)
    num_classes = int(binned.edges[-1])
    is_exact = binned.is_exact
    trace = _create_trace(run, binned) | {
        "colorscale": [list(stop) for stop in DIVERGING],
        "zmid": 0,
        "zmin": -limit,
        "zmax": limit,
        "colorbar": color_bar(_TITLE),
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
