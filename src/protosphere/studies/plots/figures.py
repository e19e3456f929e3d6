"""What all figures share: style, panels, bars and lines by run, and files with equal bytes."""

import functools
import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec

from protosphere.report.colors import NEUTRAL, PALETTE
from protosphere.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOT_SUFFIXES = (".png", ".svg", ".pdf")
_COLUMNS = 3
_LONGEST_NAME = 28
# Values are written on bars if there are at most so many.
_MAX_VALUES = 24
# With more bars, the values on them are turned.
_MAX_UPRIGHT = 9
_WIDEST_BAR = 0.3
_HATCHES = ("", "///", "...", "xxx")
_LINES = ("-", "--", ":", "-.")
_MARKERS = "os^vP*Xd"
# The default of matplotlib with these changes, whatever the user's matplotlibrc says.
_STYLE: Mapping[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": NEUTRAL,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e3e6ea",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.color": NEUTRAL,
    "ytick.color": NEUTRAL,
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,
    # Identifiers in an SVG are hashes, which are random without it.
    "svg.hashsalt": "protosphere",
}
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_Parameters = ParamSpec("_Parameters")


def import_matplotlib() -> Any:
    """Import matplotlib, without a window system.

    Raises:
        ImportError: It is not installed.
    """
    try:
        import matplotlib.colors  # noqa: PLC0415
        import matplotlib.figure  # noqa: PLC0415
        import matplotlib.style  # noqa: PLC0415
        import matplotlib.ticker  # noqa: PLC0415
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "protosphere[plot]"') from error
    return matplotlib


def styled(draw: "Callable[_Parameters, Figure]") -> "Callable[_Parameters, Figure]":
    """Make a function draw its figure in the style of all figures.

    Args:
        draw: Function that returns a figure.
    """

    @functools.wraps(draw)
    def draw_styled(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> "Figure":
        matplotlib = import_matplotlib()
        cycle = matplotlib.rcsetup.cycler(color=PALETTE)
        with matplotlib.style.context(["default", {**_STYLE, "axes.prop_cycle": cycle}]):
            return draw(*args, **kwargs)

    return draw_styled


def create_figure(
    num_axes: int, *, columns: int = _COLUMNS, size: tuple[float, float] = (4.2, 3.2)
) -> tuple["Figure", list[Any]]:
    """Create a figure with so many panels, side by side in rows.

    Args:
        num_axes: Number of panels, at least 1.
        columns: Largest number of panels in a row.
        size: Width and height of a panel in inches.

    Returns:
        The figure, and the axes of the panels.

    Raises:
        ImportError: matplotlib is not installed.
    """
    columns = min(columns, num_axes)
    rows = -(-num_axes // columns)
    figure = import_matplotlib().figure.Figure(
        figsize=(size[0] * columns, size[1] * rows), layout="constrained"
    )
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in panels[num_axes:]:
        axes.remove()
    return figure, panels[:num_axes]


def write_figure(path: Path, figure: "Figure") -> None:
    """Write a figure in the format of the file's suffix; equal figures give equal bytes.

    Args:
        path: File to write or replace.
        figure: The figure.

    Raises:
        StorageError: The file could not be written.
    """
    kind = path.suffix[1:]
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    content = io.BytesIO()
    with import_matplotlib().style.context(["default", dict(_STYLE)]), warnings.catch_warnings():
        # A class name may have characters that the font lacks: they are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(content, format=kind, dpi=150, metadata=dates.get(kind))
    write_atomically(path, content.getvalue())


def label(text: object, longest: int = _LONGEST_NAME) -> str:
    r"""Return a name for a figure: short, in one line, and not read as mathematics.

    Args:
        text: Name of a class, a run or a set.
        longest: Largest number of characters; a longer name keeps its start and its end.

    >>> label("n01440764 tench, Tinca tinca", longest=16)
    'n01440…nca tinca'
    >>> label("a$b$c")
    'a\\$b\\$c'
    """
    name = _UNPRINTABLE.sub("�", str(text))
    if len(name) > longest:
        start = (longest - 1) * 2 // 5
        name = f"{name[:start]}…{name[start + 1 - longest :]}"
    return name.replace("$", r"\$")


class Look(NamedTuple):
    """How a run or a classifier is drawn.

    Attributes:
        color: Color of its bars and lines.
        hatch: Pattern on its bars.
        line: Style of its lines.
        marker: Marker of its points.
    """

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
    for index, name in enumerate(names):
        turn = index // len(PALETTE)
        result[name] = Look(
            PALETTE[index % len(PALETTE)],
            _HATCHES[turn % len(_HATCHES)],
            _LINES[turn % len(_LINES)],
            _MARKERS[index % len(_MARKERS)],
        )
    return result


def draw_bars(
    axes: Any,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    drawn_as: Mapping[str, Look] | None = None,
) -> None:
    """Draw grouped bars, one for each name in each group; None leaves a gap.

    Args:
        axes: Axes to draw into.
        groups: Texts below the groups; names of users go through :func:`label` before.
        series: Value in each group, by the name of a run or a classifier.
        drawn_as: How each name is drawn.
    """
    drawn_as = looks(list(series)) if drawn_as is None else drawn_as
    num_bars = len(series) * len(groups)
    for index, (name, values) in enumerate(series.items()):
        look = drawn_as[name]
        known = [(place, value) for place, value in enumerate(values) if value is not None]
        bars = axes.bar(
            [bar_position(place, index, len(series)) for place, _ in known],
            [value for _, value in known],
            width=0.92 * _bar_width(len(series)),
            color=look.color,
            hatch=look.hatch,
            edgecolor="white",
            linewidth=0,
            label=label(name),
        )
        if num_bars <= _MAX_VALUES:
            upright = 90 if num_bars > _MAX_UPRIGHT else 0
            axes.bar_label(bars, fmt="%.1f", fontsize=6.5, padding=1.5, rotation=upright)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.grid(visible=False, axis="x")
    axes.tick_params(axis="x", length=0)


def _bar_width(num_series: int) -> float:
    return min(_WIDEST_BAR, 0.8 / max(1, num_series))


def bar_position(place: int, index: int, num_series: int) -> float:
    """Return where the middle of a bar of :func:`draw_bars` is.

    Args:
        place: Index of the group.
        index: Index of the series.
        num_series: Number of series.

    >>> bar_position(1, 0, 1)
    1.0
    """
    return place + (index - (num_series - 1) / 2) * _bar_width(num_series)


def draw_paper(axes: Any, points: Sequence[tuple[float, float]], text: str = "the paper") -> None:
    """Draw numbers of the paper as diamonds, which no run has.

    Args:
        axes: Axes to draw into.
        points: Where they are.
        text: Text of the legend.
    """
    if points:
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            "D",
            color="white",
            markeredgecolor="black",
            markersize=5.5,
            zorder=4,
            label=text,
        )


def draw_legend(figure: "Figure", all_axes: Sequence[Any]) -> None:
    """Draw one legend of all panels below the figure; nothing for a single name.

    Args:
        figure: The figure.
        all_axes: Axes whose names are in the legend.
    """
    handles: dict[str, Any] = {}
    for axes in all_axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    if len(handles) < 2:
        return
    # Numbers of the paper and other references follow the runs.
    handles = dict(sorted(handles.items(), key=lambda item: item[0].startswith("the paper")))
    longest = max(map(len, handles))
    room = int(figure.get_figwidth() / (0.075 * longest + 0.6))
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=max(1, min(room, len(handles))),
    )


def draw_absence(axes: Any, title: str, reason: str) -> None:
    """Say in place of a panel why it is empty.

    Args:
        axes: Axes of the panel.
        title: Title of the panel.
        reason: Why there is nothing to draw.
    """
    axes.set_title(title)
    axes.set_axis_off()
    axes.text(0.5, 0.5, reason, ha="center", va="center", transform=axes.transAxes)


def percentages(values: Sequence[float | None]) -> list[float | None]:
    """Return fractions in percent.

    Args:
        values: Fractions, or None.

    >>> percentages([0.5, None])
    [50.0, None]
    """
    return [None if value is None else 100 * value for value in values]
