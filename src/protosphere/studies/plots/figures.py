"""What all figures share: style, panels, a legend, and files with equal bytes."""

import functools
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from protosphere.report.colors import NEUTRAL, PALETTE
from protosphere.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOT_SUFFIXES = (".png", ".svg", ".pdf")
_COLUMNS = 3
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
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "pdf.fonttype": 42,
    # Identifiers in an SVG are hashes, which are random without it.
    "svg.hashsalt": "protosphere",
}
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
    columns = max(1, min(room, len(handles)))
    # The legend makes the figure higher, not the panels lower.
    figure.set_figheight(figure.get_figheight() + 0.1 + 0.19 * -(-len(handles) // columns))
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=columns)


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
