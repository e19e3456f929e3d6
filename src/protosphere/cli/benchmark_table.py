"""Tables of benchmarks: aligned columns within the width of the terminal."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap

from protosphere.cli.text import echo, printable

MISSING = "–"
# Characters of a name of a run that remain in one line on a narrow terminal.
_NARROWEST_NAME = 8


def percent(value: float | None, *, digits: int = 1) -> str:
    """Return a fraction in percent, or a dash if there is none.

    Args:
        value: The fraction.
        digits: Number of decimal places.

    >>> percent(0.4491), percent(None)
    ('44.9', '–')
    """
    return number(None if value is None else 100 * value, digits=digits)


def number(value: float | None, *, digits: int = 1) -> str:
    """Return a number, or a dash if there is none; what is rounded to 0 has no sign.

    Args:
        value: The number.
        digits: Number of decimal places.

    >>> number(40.0), number(-0.04), number(None)
    ('40.0', '0.0', '–')
    """
    return MISSING if value is None or math.isnan(value) else f"{value:z.{digits}f}"


def difference(value: float | None, *, digits: int = 1) -> str:
    """Return a difference with its sign, or a dash if there is none.

    Args:
        value: The difference.
        digits: Number of decimal places.

    >>> difference(0.5), difference(-0.5), difference(-0.04), difference(None)
    ('+0.5', '-0.5', '0.0', '–')
    """
    text = number(value, digits=digits)
    return f"+{text}" if value is not None and value > 0 and float(text) else text


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

    On a terminal that is too narrow, cells are folded between words, and the names of runs in the
    first column anywhere. In a file or a pipe nothing is folded.

    Args:
        title: Line above the table.
        columns: Names of the columns.
        rows: Cells of each row.
        note: Line below the table.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    print_note(title)
    texts = [[printable(cell) for cell in row] for row in rows]
    names = [printable(column) for column in columns]
    console = Console(highlight=False)
    widths, gap = _fit([names, *texts], limit=console.width if console.is_terminal else None)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, gap, 0, 0))
    for index, name in enumerate(names):
        is_number = all(_is_number(row[index]) for row in texts)
        table.add_column(
            Text(name),
            justify="right" if is_number else "left",
            overflow="fold",
            width=widths[index],
        )
    for row in texts:
        table.add_row(*(Text(cell) for cell in row))
    Console(highlight=False, width=max(sum(widths) + gap * len(widths), 80)).print(
        table, crop=False
    )
    if note is not None:
        print_note(note)


def print_note(text: str) -> None:
    """Print a sentence above or below a table, on a terminal folded between words.

    Args:
        text: The sentence.
    """
    from rich.console import Console

    console = Console()
    for line in wrap(printable(text), console.width) if console.is_terminal else [text]:
        echo(line)


def print_splits(splits: Mapping[str, str]) -> None:
    """Say which runs were not measured on test images.

    Args:
        splits: The split that each run was measured on, by the label of the run.
    """
    for label, split in splits.items():
        if split != "test":
            print_note(f"{label}: numbers of its {split} images, not of test images")


def _fit(lines: Sequence[Sequence[str]], *, limit: int | None) -> tuple[list[int], int]:
    """Return the widths of columns and of the gaps between them, within a limit if possible."""
    from rich.cells import cell_len

    columns = list(zip(*lines, strict=True))
    widths = [max(map(cell_len, cells)) for cells in columns]
    # A column is not narrower than its longest word, except for the first with names of runs.
    least = [
        max(cell_len(word) for cell in cells for word in [*cell.split(), ""]) for cells in columns
    ]
    least[0] = min(least[0], _NARROWEST_NAME)
    for gap in (2, 1):
        room = math.inf if limit is None else limit - gap * (len(columns) - 1)
        fitted = list(widths)
        while sum(fitted) > room and fitted != least:
            # The names of runs are the last to be folded.
            index = max(range(len(fitted)), key=lambda i: (fitted[i] > least[i], i > 0, fitted[i]))
            fitted[index] -= 1
        if sum(fitted) <= room:
            break
    return fitted, gap


def _is_number(text: str) -> bool:
    if text in (MISSING, "", "never"):
        return True
    try:
        float(text.split(" ", maxsplit=1)[0].removeprefix("<").rstrip("%").replace(",", ""))
    except ValueError:
        return False
    return True
