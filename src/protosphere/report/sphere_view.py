"""The 3-D view of a run: samples, class means and prototypes, projected to three directions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protosphere.report.class_geometry import leading_fractions, simplex_radius
from protosphere.report.colors import NEUTRAL, PALETTE
from protosphere.report.content import Figure
from protosphere.report.run_arrays import find_arrays
from protosphere.report.run_shape import names_of_classes, unique_labels
from protosphere.report.sources import RunData
from protosphere.report.typed_arrays import encode

_ARRAYS = ("class_means", "means_3d", "prototypes_3d", "samples_3d", "sample_labels")
# Ten classes have a color at a time; more colors are hard to tell apart.
_COLORS = (*PALETTE, "#b58a1b", "#9c6b4f")
_OTHERS = "#a3abb6"
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

    Ten classes have a color and an entry in the legend. With more classes, all points are also
    there in gray, and a menu selects the ten classes.

    Args:
        run: The run.
        name: Identifier of the figure.
    """
    arrays = find_arrays(run, _ARRAYS)
    assert arrays is not None
    num_classes = len(arrays["class_means"])
    points = _Points(arrays, names_of_classes(run, num_classes))
    groups = [
        range(start, min(start + len(_COLORS), num_classes))
        for start in range(0, num_classes, len(_COLORS))
    ]
    radius = _sphere_radius(arrays, num_classes)
    traces = [_create_sphere(radius)]
    if len(groups) > 1:
        traces += points.gray_traces()
    first_class = len(traces)
    traces += points.class_traces(groups[0])
    fractions = leading_fractions(arrays["class_means"])
    layout = _create_layout(fractions)
    if len(groups) > 1:
        layout["updatemenus"] = [_create_menu(points, groups, first_class)]
    return Figure(
        name,
        f"Samples and prototypes in three directions: {run.name}",
        _describe(fractions, radius, num_classes, len(arrays["sample_labels"])),
        tuple(traces),
        layout,
        height=640,
    )


class _Points:
    """The points of a run as traces: all in gray, or those of ten classes in colors."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], class_names: Sequence[str]) -> None:
        self.arrays = arrays
        self.labels = arrays["sample_labels"].astype(np.int64)
        self.names = unique_labels(class_names)

    def gray_traces(self) -> list[dict[str, Any]]:
        """All samples, and all prototypes."""
        every = np.arange(len(self.names))
        return [
            self._gray("samples", self.arrays["samples_3d"], self.labels, 1.5, "circle"),
            self._gray(
                "prototypes",
                self.arrays["prototypes_3d"],
                every,
                3.5 if len(every) <= 100 else 2.5,
                "diamond",
            ),
        ]

    def _gray(
        self, kind: str, points: NDArray[Any], classes: NDArray[Any], size: float, symbol: str
    ) -> dict[str, Any]:
        x, y, z = points.T
        return {
            "type": "scatter3d",
            "mode": "markers",
            "name": f"{kind} of other classes",
            "x": encode(x),
            "y": encode(y),
            "z": encode(z),
            "text": [self.names[index] for index in classes.tolist()],
            "marker": {"color": _OTHERS, "size": size, "symbol": symbol},
            # Transparent traces are drawn after the others, behind the colored points.
            "opacity": 0.6,
            "hovertemplate": "%{text}<extra></extra>",
            "showlegend": False,
        }

    def class_traces(self, group: range) -> list[dict[str, Any]]:
        """Samples of each class of a group, and all class means and prototypes of the group."""
        values = self.class_values(group)
        markers = [{"color": color, "size": 3} for color in _COLORS]
        markers += [
            {"color": list(_COLORS), "size": 6, "symbol": "cross", "opacity": 1},
            {"color": list(_COLORS), "size": 8, "symbol": "diamond", "opacity": 1},
        ]
        return [
            {
                "type": "scatter3d",
                "mode": "markers",
                **{key: columns[place] for key, columns in values.items()},
                "marker": marker,
                "hovertemplate": "%{fullData.name}<extra>sample</extra>"
                if place < len(_COLORS)
                else "%{text}<extra>%{fullData.name}</extra>",
                "showlegend": place < len(_COLORS),
            }
            for place, marker in enumerate(markers)
        ]

    def class_values(self, group: range) -> dict[str, list[Any]]:
        """What differs from group to group, by plotly's key and with one value per trace."""
        names = [self.names[index] for index in group]
        num_empty = len(_COLORS) - len(group)
        points = [self.arrays["samples_3d"][self.labels == index] for index in group]
        points += [np.empty((0, 3))] * num_empty
        chosen = slice(group.start, group.stop)
        points += [self.arrays["means_3d"][chosen], self.arrays["prototypes_3d"][chosen]]
        columns = [self._rounded(rows).T.tolist() for rows in points]
        return {
            "name": [*names, *[""] * num_empty, "class mean", "prototype"],
            "visible": [True] * len(group) + [False] * num_empty + [True, True],
            "x": [column[0] for column in columns],
            "y": [column[1] for column in columns],
            "z": [column[2] for column in columns],
            "text": [""] * len(_COLORS) + [names, names],
        }

    def _rounded(self, points: NDArray[Any]) -> NDArray[np.float64]:
        # NaN is not JSON, and the center is where nothing is known of a point.
        values = np.nan_to_num(points.astype(np.float64), posinf=0.0, neginf=0.0)
        return values.round(3 if len(self.names) <= 100 else 4)


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
    directions = {
        1: "the direction in which class means differ, which has",
        2: "the two directions in which class means differ, which have",
    }.get(num_directions, "the three directions in which class means differ most, which have")
    text = (
        f"{num_samples} evaluation images (dots), class means of the training images (crosses) and "
        f"prototypes (diamonds), centered and projected to {directions} "
        f"{_percent(fractions.sum())} of the between-class variance"
    )
    if num_classes > 4:
        text += f" ({_percent(3 / (num_classes - 1))} at collapse)"
    if radius == 1.0:
        return f"{text}; the sphere is the unit sphere."
    return (
        f"{text}; the sphere has the radius √(3/(K−1)) = {radius:.2f}, the root mean square norm "
        "of the vertices of a simplex in three directions."
    )


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.{0 if fraction >= 0.1 else 1}f}%"


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
        "line": {"color": NEUTRAL, "width": 1},
        "opacity": 0.35,
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _create_layout(fractions: NDArray[np.float64]) -> dict[str, Any]:
    axes = {
        f"{axis}axis": {
            "title": {"text": f"direction {index + 1} ({_percent(fractions[index])})"},
            "showbackground": False,
            "showspikes": False,
            "nticks": 5,
        }
        for index, axis in enumerate("xyz")
    }
    return {
        "scene": {
            **axes,
            "aspectmode": "data",
            # The axes are below the points: a lower center leaves no blank space above them.
            "camera": {
                "eye": {"x": 1.5, "y": 1.5, "z": 0.8},
                "center": {"x": 0, "y": 0, "z": -0.2},
            },
        },
        "legend": {"itemsizing": "constant"},
        "margin": {"l": 0, "r": 0, "b": 0},
    }


def _create_menu(points: _Points, groups: Sequence[range], first_trace: int) -> dict[str, Any]:
    """A menu of the classes that have colors, light in both themes, as plotly's hover color is."""
    traces = [first_trace + place for place in range(len(_COLORS) + 2)]
    buttons = [
        {
            "method": "restyle",
            "label": f"{group[0]}–{group[-1]}: {points.names[group[0]]} …",
            "args": [points.class_values(group), traces],
        }
        for group in groups
    ]
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
