"""Tables of summaries over seeds: columns without values are left out, the best are marked."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from protosphere.report.content import Table
from protosphere.report.summaries import (
    MISSING,
    Better,
    Summary,
    find_best,
    format_number,
    format_summary,
)


@dataclass(frozen=True)
class Column:
    """A column of numbers.

    Attributes:
        title: Title.
        better: Which numbers are better; None marks none.
        scale: Factor of the numbers; 100 shows fractions in percent.
        digits: Number of decimal places.
    """

    title: str
    better: Better | None = None
    scale: float = 100.0
    digits: int = 1


@dataclass(frozen=True)
class TableRow:
    """A row of a table.

    Attributes:
        titles: Texts that say what the row is of.
        cells: A summary, a number as it is shown, a text for a result that is worse than numbers
            (such as "never"), or None for each column.
        comparable: Rows with equal values are compared with each other for the best one.
    """

    titles: tuple[str, ...]
    cells: tuple[Summary | float | str | None, ...]
    comparable: Hashable = None


def create_table(
    title: str,
    meaning: str,
    *,
    titles: Sequence[str],
    columns: Sequence[Column],
    rows: Sequence[TableRow],
    optional: Sequence[str] = ("Data",),
) -> Table:
    """Return a table in which the best mean of each column is marked.

    Args:
        title: Title.
        meaning: One sentence about it.
        titles: Titles of the columns that say what a row is of.
        columns: Columns of numbers; those without any value are left out.
        rows: The rows.
        optional: Titles of the first columns that are left out if all rows have the same text.
    """
    heads = [
        index
        for index, name in enumerate(titles)
        if name not in optional or len({row.titles[index] for row in rows}) > 1
    ]
    kept = [
        index
        for index in range(len(columns))
        if any(row.cells[index] not in (None, MISSING) for row in rows)
    ]
    best = frozenset(
        (row, len(heads) + place)
        for place, index in enumerate(kept)
        for row in _best_of_column(columns[index], index, rows)
    )
    return Table(
        title,
        meaning,
        (*(titles[index] for index in heads), *(columns[index].title for index in kept)),
        tuple(
            (
                *(row.titles[index] for index in heads),
                *(_format_cell(row.cells[index], columns[index]) for index in kept),
            )
            for row in rows
        ),
        best,
    )


def _best_of_column(column: Column, index: int, rows: Sequence[TableRow]) -> list[int]:
    if column.better is None:
        return []
    best = []
    for key in dict.fromkeys(row.comparable for row in rows):
        members = [place for place, row in enumerate(rows) if row.comparable == key]
        cells = [rows[place].cells[index] for place in members]
        summaries = [cell if isinstance(cell, Summary) else None for cell in cells]
        found = find_best(
            summaries,
            column.better,
            scale=column.scale,
            digits=column.digits,
            num_worse=sum(isinstance(cell, str) for cell in cells),
        )
        best += [members[one] for one in found]
    return best


def _format_cell(cell: Summary | float | str | None, column: Column) -> str:
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Summary) or cell is None:
        return format_summary(cell, scale=column.scale, digits=column.digits)
    return format_number(cell, digits=column.digits)
