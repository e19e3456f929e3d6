"""Colors that carry a meaning; readable on a light and on a dark background.

The palette is one of eight hues that readers with color vision deficiencies tell apart, in a
lightness between both backgrounds. Without a meaning, traces leave their color to the page.
"""

from collections.abc import Iterable, Mapping
from typing import Any

PALETTE = (
    "#3b82d6",  # blue
    "#e0762a",  # orange
    "#2f9e6e",  # green
    "#c2578f",  # pink
    "#8b6fd1",  # violet
    "#75821a",  # olive
    "#1f9bb3",  # cyan
    "#d2504b",  # red
)
GOOD = "#2f9e6e"  # values at or near collapse, correct predictions
BAD = "#d2504b"  # values far from collapse, wrong predictions
NEUTRAL = "#7c8594"  # reference lines, thresholds, everything that is not a result

_DASHES = ("solid", "dash", "dot", "dashdot")

# A scale for shares and counts, and one for signed values with the neutral value in the middle.
SEQUENTIAL = (
    (0.0, "#f1f5fb"),
    (0.25, "#a9c8ec"),
    (0.5, "#5b93d3"),
    (0.75, "#2b5fa5"),
    (1.0, "#12305f"),
)
DIVERGING = (
    (0.0, "#1f4f99"),
    (0.25, "#7fa8da"),
    (0.5, "#f2f2ef"),
    (0.75, "#e6a07a"),
    (1.0, "#a83c1e"),
)


def run_colors(names: Iterable[str]) -> Mapping[str, str]:
    """Return a color for each run or method, the same in all figures.

    Args:
        names: Names of all runs or methods of the report, in their order.

    Returns:
        Colors by name. After eight names the colors repeat; :func:`run_dashes` tells them apart.

    >>> run_colors(["ce", "nonl"])["nonl"]
    '#e0762a'
    """
    unique = dict.fromkeys(names)
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(unique)}


def run_dashes(names: Iterable[str]) -> Mapping[str, str]:
    """Return a line style for each run or method: another one each time the colors repeat.

    Args:
        names: Names of all runs or methods of the report, in their order.

    >>> run_dashes(["ce", "nonl"])["nonl"]
    'solid'
    """
    unique = dict.fromkeys(names)
    return {
        name: _DASHES[index // len(PALETTE) % len(_DASHES)] for index, name in enumerate(unique)
    }


def color_bar(title: str) -> dict[str, Any]:
    """Return the color bar of a heat map, above the map, where it takes no width on a phone.

    Args:
        title: What the colors are.
    """
    return {
        "orientation": "h",
        "y": 1,
        "yref": "container",
        "yanchor": "top",
        "thickness": 12,
        "len": 0.6,
        "nticks": 5,
        "tickangle": 0,
        "title": {"text": title, "side": "bottom"},
    }
