"""What a report consists of: sections of figures, tables and notes, as plain values.

Texts are plain texts; the page escapes them.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True)
class Figure:
    """A figure that plotly draws.

    Attributes:
        name: Identifier in the page, of lowercase letters, digits and hyphens.
        title: Title.
        meaning: What the figure shows and how to read it, in one sentence.
        data: Traces of plotly. Strings in them are displayed by plotly: class names and paths must
            be passed through :func:`protosphere.report.plotly_text.plain`.
        layout: Layout of plotly; colors, fonts and margins come from the page.
        height: Height in pixels.
    """

    name: str
    title: str
    meaning: str
    data: tuple[dict[str, Any], ...]
    layout: dict[str, Any]
    height: int = 420


@dataclass(frozen=True)
class Choice:
    """Several figures of which a menu selects one; only that one is drawn.

    Attributes:
        name: Identifier in the page.
        label: Text beside the menu.
        options: Figures by the text of their menu entry, in order.
    """

    name: str
    label: str
    options: tuple[tuple[str, Figure], ...]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: Title.
        meaning: What the table shows, in one sentence.
        columns: Column titles.
        rows: Texts of the cells; the first column is the row title.
        best: Cells that are set in bold, as (row, column).
    """

    title: str
    meaning: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class Note:
    """A paragraph.

    Attributes:
        text: The text.
        kind: ``"missing"`` for something that could not be read or is not there yet.
    """

    text: str
    kind: Literal["text", "missing"] = "text"


Block: TypeAlias = Figure | Choice | Table | Note


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        name: Identifier in the page.
        title: Title.
        intro: One to three sentences about the section.
        blocks: Content in order.
    """

    name: str
    title: str
    intro: str
    blocks: tuple[Block, ...]
