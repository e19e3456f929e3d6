"""Tables in Markdown, and their numbers."""

from typing import Any


def table_line(*cells: object) -> str:
    """Return a line of a table; None is a dash.

    Args:
        cells: The cells.
    """
    return f"| {' | '.join('–' if cell is None else str(cell) for cell in cells)} |"


def table_header(first: str, *others: str) -> list[str]:
    """Return the first two lines of a table: a column of texts, and columns of numbers.

    Args:
        first: Title of the first column.
        others: Titles of the others, whose cells are aligned at the right.
    """
    return [table_line(first, *others), f"|---{'|---:' * len(others)}|"]


def percent(fraction: float | None, digits: int = 1) -> str:
    """Return a fraction in percent; a dash for None.

    Args:
        fraction: The fraction.
        digits: Number of digits after the point.
    """
    return decimal(None if fraction is None else 100 * float(fraction), digits)


def decimal(value: Any, digits: int = 1) -> str:
    """Return a number with some digits, a text as it is, and a dash for None.

    Args:
        value: The number, a text, or None.
        digits: Number of digits after the point.
    """
    # Accuracies are whole numbers of images: 69.55 must not become 69.5 because of its last bit.
    return f"{value + 1e-9:.{digits}f}" if isinstance(value, float | int) else str(value or "–")
