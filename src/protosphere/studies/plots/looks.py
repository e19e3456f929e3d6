"""How figures name runs, classes and sets, and by which color, line and marker runs differ."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from protosphere.report.colors import PALETTE
from protosphere.report.curves import shorten

_LONGEST_NAME, _MOST = 28, 48
_HATCHES = ("", "///", "...", "xxx")
_LINES = ("-", "--", ":", "-.")
# Seven markers and eight colors: each pair comes once in 56 names.
_MARKERS = "os^vP*X"
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def label(text: object, longest: int = _LONGEST_NAME) -> str:
    r"""Return a name for a figure: short, in one line, and not read as mathematics.

    Args:
        text: Name of a class, a run or a set.
        longest: Largest number of characters; a longer name keeps its start and its end.

    >>> label("n01440764 tench, Tinca tinca", longest=16)
    'n0144076…a tinca'
    >>> label("a$b$c")
    'a\\$b\\$c'
    """
    name = _UNPRINTABLE.sub("�", str(text))
    return shorten(name, longest).replace("$", r"\$")


def labels(names: Sequence[str], longest: int = _LONGEST_NAME) -> list[str]:
    """Return short names for a figure; those of different names differ, longer or numbered.

    Args:
        names: Names of classes, runs or sets.
        longest: Number of characters that are enough if no two names become equal.

    >>> labels(["runs/first-of-two/nonl", "runs/other-of-two/nonl"], longest=12)
    ['runs/f…/nonl', 'runs/o…/nonl']
    """
    unique = list(dict.fromkeys(names))
    while longest < _MOST and len({label(name, longest) for name in unique}) < len(unique):
        longest += 4
    found: dict[str, str] = {}
    for name in unique:
        text = label(name, longest)
        found[name] = f"{text} ({len(found) + 1})" if text in found.values() else text
    return [found[name] for name in names]


class Look(NamedTuple):
    """How a run or a classifier is drawn.

    Attributes:
        text: Its name in the legend.
        color: Color of its bars and lines.
        hatch: Pattern on its bars.
        line: Style of its lines.
        marker: Marker of its points.
    """

    text: str
    color: str
    hatch: str
    line: str
    marker: str


def looks(names: Sequence[str]) -> dict[str, Look]:
    """Return how each of several runs or classifiers is drawn; all of them differ.

    Args:
        names: Their names.
    """
    result = {}
    for index, (name, text) in enumerate(zip(names, labels(names), strict=True)):
        turn = index // len(PALETTE)
        result[name] = Look(
            text,
            PALETTE[index % len(PALETTE)],
            _HATCHES[turn % len(_HATCHES)],
            _LINES[turn % len(_LINES)],
            _MARKERS[index % len(_MARKERS)],
        )
    return result
