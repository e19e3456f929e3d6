"""Tables in Markdown."""


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
