"""Tables of benchmarks: aligned columns within the width of the terminal."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from protosphere.cli.text import echo, printable

MISSING = "–"


def percent(value: float | None, *, digits: int = 1) -> str:
    """Return a fraction in percent, or a dash if there is none.

    Args:
        value: The fraction.
        digits: Number of decimal places.

    >>> percent(0.4491), percent(None)
    ('44.9', '–')
    """
    return MISSING if value is None or math.isnan(value) else f"{100 * value:.{digits}f}"


def number(value: float | None, *, digits: int = 1) -> str:
    """Return a number, or a dash if there is none.

    Args:
        value: The number.
        digits: Number of decimal places.

    >>> number(40.0), number(None)
    ('40.0', '–')
    """
    return MISSING if value is None or math.isnan(value) else f"{value:.{digits}f}"


def run_labels(paths: Iterable[Path | str]) -> dict[str, str]:
    """Return what tables call runs: the names of their folders, or the paths of equal names.

    Args:
        paths: Paths of the run folders.

    Returns:
        The label of each path.

    >>> run_labels(["runs/ce", "runs/first/nonl", "runs/second/nonl"])["runs/ce"]
    'ce'
    >>> run_labels(["runs/ce", "runs/first/nonl", "runs/second/nonl"])["runs/first/nonl"]
    'runs/first/nonl'
    """
    folders = {str(path): Path(path).resolve() for path in paths}
    names = [folder.name for folder in set(folders.values())]
    return {
        path: path if names.count(folder.name) > 1 else folder.name
        for path, folder in folders.items()
    }


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    note: str | None = None,
) -> None:
    """Print a table; columns whose cells are all numbers or dashes are aligned to the right.

    Args:
        title: Line above the table.
        columns: Names of the columns.
        rows: Cells of each row.
        note: Line below the table.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    echo(title)
    texts = [[printable(cell) for cell in row] for row in rows]
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        is_number = all(_is_number(row[index]) for row in texts)
        table.add_column(
            Text(printable(column)), justify="right" if is_number else "left", overflow="fold"
        )
    for row in texts:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(highlight=False)
    if not console.is_terminal:
        # A file or a pipe has no width: nothing is folded there.
        unlimited = console.options.update(max_width=1 << 16)
        needed = console.measure(table, options=unlimited).maximum
        console = Console(highlight=False, width=max(needed, 80))
    console.print(table, crop=False)
    if note is not None:
        echo(note)


def _is_number(text: str) -> bool:
    if text in (MISSING, "", "never"):
        return True
    try:
        float(text.split(" ", maxsplit=1)[0].rstrip("%").replace(",", ""))
    except ValueError:
        return False
    return True
