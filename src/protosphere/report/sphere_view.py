"""The 3-D view of a run: samples, class means and prototypes, projected to three directions."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protosphere.report.class_geometry import leading_fractions, simplex_radius
from protosphere.report.colors import NEUTRAL, PALETTE
from protosphere.report.content import Figure
from protosphere.report.curves import shorten, with_opacity
from protosphere.report.plotly_text import plain
from protosphere.report.run_arrays import find_arrays
from protosphere.report.run_shape import names_of_classes
from protosphere.report.sources import RunData
from protosphere.report.typed_arrays import encode

_ARRAYS = ("class_means", "means_3d", "prototypes_3d", "samples_3d", "sample_labels")
# Ten classes have a color at a time; more colors are hard to tell apart.
_COLORS = (*PALETTE, "#7d9433", "#9c6b4f")
# Color of all other classes.
_OTHERS = with_opacity(NEUTRAL, 0.35)
# The unit sphere is drawn unless the points would be tiny in it.
_SMALL_RADIUS = 0.4


def has_view(run: RunData) -> bool:
    """Return whether a run has the arrays of a 3-D view.

    Args:
        run: The run.
    """
    arrays = find_arrays(run, _ARRAYS)
    return arrays is not None and _has_valid_labels(arrays)


def create_view(run: RunData, name: str = "sphere") -> Figure:
    """Return the 3-D view of a run that has its arrays.

    One trace holds all samples, colored by class through a color scale whose range covers ten
    classes and is gray outside of it: a menu moves the range, so that the data are stored once.

    Args:
        run: The run.
        name: Identifier of the figure.
    """
    arrays = find_arrays(run, _ARRAYS)
    assert arrays is not None
    labels = arrays["sample_labels"].astype(np.int64)
    num_classes = len(arrays["class_means"])
    names = [plain(shorten(one, 40)) for one in names_of_classes(run, num_classes)]
    groups = [range(start, min(start + 10, num_classes)) for start in range(0, num_classes, 10)]
    radius = _sphere_radius(arrays, num_classes)
    all_classes = np.arange(num_classes)
    traces = [
        _create_sphere(radius),
        _create_points(
            "samples", arrays["samples_3d"], labels, names, groups[0], {"size": 2.5, "opacity": 0.8}
        ),
        _create_points(
            "class means",
            arrays["means_3d"],
            all_classes,
            names,
            groups[0],
            {"size": 6, "symbol": "cross"},
        ),
        _create_points(
            "prototypes",
            arrays["prototypes_3d"],
            all_classes,
            names,
            groups[0],
            {"size": 7, "symbol": "diamond", "line": {"width": 1, "color": NEUTRAL}},
        ),
        *(_create_entry(color) for color in _COLORS),
    ]
    _name_entries(traces, groups[0], names)
    fractions = leading_fractions(arrays["class_means"])
    return Figure(
        name,
        f"Samples and prototypes in three directions: {run.name}",
        _describe(fractions, radius, num_classes, len(labels)),
        tuple(traces),
        _create_layout(fractions, groups, names, len(traces)),
        height=640,
    )


def _has_valid_labels(arrays: dict[str, NDArray[Any]]) -> bool:
    labels = arrays["sample_labels"]
    inside = (labels >= 0) & (labels < len(arrays["class_means"]))
    return labels.dtype.kind in "iu" and bool(inside.all())


def _sphere_radius(arrays: dict[str, NDArray[Any]], num_classes: int) -> float:
    points = np.concatenate([arrays[name].astype(np.float64) for name in _ARRAYS[1:4]])
    norms = np.linalg.norm(points[np.isfinite(points).all(1)], axis=1)
    is_small = len(norms) > 0 and np.quantile(norms, 0.99) < _SMALL_RADIUS
    return simplex_radius(num_classes) if is_small else 1.0


def _describe(
    fractions: NDArray[np.float64], radius: float, num_classes: int, num_samples: int
) -> str:
    num_directions = int(np.count_nonzero(fractions > 1e-9))
    count = {1: "one direction", 2: "two directions"}.get(num_directions, "three directions")
    sphere = "the sphere is the unit sphere"
    if radius != 1.0:
        sphere = (
            f"the sphere has the radius √(3/(K−1)) = {radius:.2f}, the root mean square norm of "
            "the vertices of a simplex in three directions"
        )
    return (
        f"{num_samples} evaluation images (dots), class means of the training images (crosses) and "
        f"prototypes (diamonds), centered and projected to the {count} in which class means differ "
        f"most, which have {100 * fractions.sum():.0f} % of the between-class variance; at "
        f"collapse three of K−1 = {num_classes - 1} directions have "
        f"{100 * min(3 / (num_classes - 1), 1):.0f} %, and {sphere}."
    )


def _create_sphere(radius: float) -> dict[str, Any]:
    """Circles of latitude and longitude in one line, with gaps between them."""
    turn = np.linspace(0, 2 * np.pi, 37)
    gap = np.full((1, 3), np.nan)
    circles = []
    for latitude in np.linspace(-np.pi / 3, np.pi / 3, 5):
        across, height = np.cos(latitude), np.full_like(turn, np.sin(latitude))
        circles += [np.stack([across * np.cos(turn), across * np.sin(turn), height], 1), gap]
    for longitude in np.arange(6) * np.pi / 6:
        side = np.array([np.cos(longitude), np.sin(longitude), 0])
        circles += [np.outer(np.cos(turn), side) + np.outer(np.sin(turn), [0, 0, 1]), gap]
    x, y, z = (radius * np.concatenate(circles)).T
    return {
        "type": "scatter3d",
        "mode": "lines",
        "name": "sphere",
        "x": encode(x),
        "y": encode(y),
        "z": encode(z),
        "line": {"color": with_opacity(NEUTRAL, 0.35), "width": 1},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _create_points(
    kind: str,
    points: NDArray[Any],
    classes: NDArray[np.int64],
    names: Sequence[str],
    group: range,
    marker: dict[str, Any],
) -> dict[str, Any]:
    x, y, z = points.T
    return {
        "type": "scatter3d",
        "mode": "markers",
        "name": kind,
        "x": encode(x),
        "y": encode(y),
        "z": encode(z),
        "text": [names[index] for index in classes.tolist()],
        "marker": {
            "color": encode(classes),
            "colorscale": _color_scale(),
            **_color_range(group),
            **marker,
        },
        "hovertemplate": f"%{{text}}<extra>{kind}</extra>",
        "showlegend": False,
    }


def _color_scale() -> list[list[Any]]:
    """Steps of ten colors between gray below and above."""
    edges = np.linspace(0, 1, len(_COLORS) + 3).tolist()
    colors = [_OTHERS, *_COLORS, _OTHERS]
    return [
        [edge, color] for ends, color in zip(pairwise(edges), colors, strict=True) for edge in ends
    ]


def _color_range(group: range) -> dict[str, float]:
    """Ends of the color scale at which the classes of a group have the ten colors."""
    return {"cmin": group.start - 1.5, "cmax": group.start + len(_COLORS) + 0.5}


def _create_entry(color: str) -> dict[str, Any]:
    """An entry of the legend; the points themselves are in the traces of all classes."""
    return {
        "type": "scatter3d",
        "mode": "markers",
        "x": [None],
        "y": [None],
        "z": [None],
        "marker": {"color": color, "size": 6},
        "hoverinfo": "skip",
    }


def _name_entries(traces: Sequence[dict[str, Any]], group: range, names: Sequence[str]) -> None:
    for trace, name in zip(traces[-len(_COLORS) :], _entry_names(group, names), strict=True):
        trace |= {"name": name, "showlegend": bool(name)}


def _entry_names(group: range, names: Sequence[str]) -> list[str]:
    entries = [names[index] for index in group]
    return entries + [""] * (len(_COLORS) - len(entries))


def _create_layout(
    fractions: NDArray[np.float64], groups: Sequence[range], names: Sequence[str], num_traces: int
) -> dict[str, Any]:
    axes = {
        f"{axis}axis": {
            "title": {"text": f"{index + 1} ({100 * fractions[index]:.0f} %)"},
            "showbackground": False,
            "showspikes": False,
            "nticks": 5,
        }
        for index, axis in enumerate("xyz")
    }
    layout: dict[str, Any] = {
        "scene": {
            **axes,
            "aspectmode": "data",
            "camera": {"eye": {"x": 1.1, "y": 1.1, "z": 0.7}},
        },
        "legend": {"itemclick": False, "itemdoubleclick": False, "itemsizing": "constant"},
    }
    if len(groups) > 1:
        layout["updatemenus"] = [_create_menu(groups, names, num_traces)]
    return layout


def _create_menu(groups: Sequence[range], names: Sequence[str], num_traces: int) -> dict[str, Any]:
    """A menu of the ten classes that have colors, light in both themes, as plotly's hover is."""
    points = [1, 2, 3]
    entries = list(range(num_traces - len(_COLORS), num_traces))
    kinds = ["samples", "class means", "prototypes"]
    buttons = []
    for group in groups:
        entry_names = _entry_names(group, names)
        limits = _color_range(group)
        changes = {
            "name": kinds + entry_names,
            "showlegend": [False] * len(points) + [bool(name) for name in entry_names],
            "marker.cmin": limits["cmin"],
            "marker.cmax": limits["cmax"],
        }
        label = f"{group[0]}–{group[-1]}: {names[group[0]]} … {names[group[-1]]}"
        buttons.append(
            {"method": "restyle", "label": label, "args": [changes, [*points, *entries]]}
        )
    return {
        "buttons": buttons,
        "type": "dropdown",
        "direction": "down",
        "showactive": True,
        "x": 0,
        "xanchor": "left",
        "y": 1,
        "yanchor": "top",
        "bgcolor": "#eef1f5",
        "bordercolor": NEUTRAL,
        "font": {"color": "#1c2430", "size": 12},
    }
