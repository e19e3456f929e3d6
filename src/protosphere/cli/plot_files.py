"""``--plot FILE``: checked before the work, written after it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_option(content: str) -> Any:
    """Return the option ``--plot`` of a command.

    Args:
        content: What the figure shows, such as ``"the curves"``.
    """
    return typer.Option(
        "--plot",
        metavar="<path>",
        help=f"Draw {content} to this .png, .svg or .pdf file (needs matplotlib).",
    )


def check_plot(path: Path | None, *, overwrite: bool) -> None:
    """Check that a figure can be drawn and written, before anything is computed.

    Args:
        path: Value of ``--plot``; None if it was not given.
        overwrite: Whether a file that exists may be replaced.

    Raises:
        ValueError: The file cannot be written, exists, or has another suffix.
        ImportError: matplotlib is not installed.
    """
    if path is None:
        return
    from protosphere.cli.output_files import check_new_file
    from protosphere.studies.plots.figures import PLOT_SUFFIXES, import_matplotlib

    check_new_file("--plot", path, suffixes=PLOT_SUFFIXES, overwrite=overwrite)
    import_matplotlib()


def save_plot(path: Path, figure: "Figure", content: str) -> None:
    """Write a figure, and say so on standard error.

    Args:
        path: File to write or replace.
        figure: The figure.
        content: What the figure shows, such as ``"the curves of 2 runs"``.

    Raises:
        StorageError: The file could not be written.
    """
    from protosphere.cli.text import echo
    from protosphere.studies.plots.figures import write_figure

    write_figure(path, figure)
    echo(f"Drew {content} to {path}", err=True)
