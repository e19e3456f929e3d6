"""Runs with benchmark results, and access to the tables and figures of a section by name."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from protosphere.report.content import Choice, Figure, Note, Section, Table
from protosphere.report.sources import ReportData, RunData


def create_run(
    method: str,
    results: Mapping[str, Iterable[Mapping[str, Any]]],
    *,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    **fields: Any,
) -> RunData:
    """Return a complete run with results of benchmarks.

    Args:
        method: Name of the method and of the recipe.
        results: Rows of each benchmark, by its name.
        seed: Seed of the run.
        settings: Settings of all results.
        fields: Other fields of the run; ``recipe`` is merged into a short one.
    """
    name = f"{method}, seed {seed}"
    recipe = {"name": method, "data": {"source": "digits"}, "loss": {"name": "ce"}, "seed": seed}
    stored = {
        key: {"benchmark": key, "settings": dict(settings or {}), "rows": list(rows)}
        for key, rows in results.items()
    }
    recipe |= fields.pop("recipe", {})
    return RunData(
        name, Path(name), method, seed, "complete", recipe=recipe, results=stored, **fields
    )


def report_of(*runs: RunData) -> ReportData:
    """Return a report of runs."""
    return ReportData(runs)


def table(section: Section | None, title: str) -> Table:
    """Return the table with a title."""
    assert section is not None
    (found,) = [
        block for block in section.blocks if isinstance(block, Table) and block.title == title
    ]
    return found


def figures(section: Section | None) -> dict[str, Figure]:
    """Return all figures of a section by name, those of menus too."""
    assert section is not None
    found = [block for block in section.blocks if isinstance(block, Figure)]
    for block in section.blocks:
        if isinstance(block, Choice):
            found += [figure for _, figure in block.options]
    return {figure.name: figure for figure in found}


def options(section: Section | None, name: str) -> list[str]:
    """Return the entries of a menu."""
    assert section is not None
    (choice,) = [
        block for block in section.blocks if isinstance(block, Choice) and block.name == name
    ]
    return [text for text, _ in choice.options]


def missing(section: Section | None) -> list[str]:
    """Return the notes about what is missing."""
    assert section is not None
    notes = [block for block in section.blocks if isinstance(block, Note)]
    return [note.text for note in notes if note.kind == "missing"]


def notes(section: Section | None) -> str:
    """Return the other notes as one text."""
    assert section is not None
    found = [block for block in section.blocks if isinstance(block, Note)]
    return " ".join(note.text for note in found if note.kind == "text")


def bold(content: Table) -> list[str]:
    """Return the texts of the cells that are marked as best, row by row."""
    return [content.rows[row][column] for row, column in sorted(content.best)]


def column(content: Table, title: str) -> list[str]:
    """Return the cells of a column."""
    index = content.columns.index(title)
    return [row[index] for row in content.rows]


def trace(figure: Figure, name: str) -> dict[str, Any]:
    """Return the trace of a figure with a name in its legend."""
    (found,) = [trace for trace in figure.data if trace["name"] == name]
    return found


def drawn_texts(section: Section | None) -> list[str]:
    """Return all texts that plotly gets, wherever they are in traces and layouts."""

    def walk(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from (text for one in value.values() for text in walk(one))
        elif isinstance(value, list | tuple):
            yield from (text for one in value for text in walk(one))

    return [text for one in figures(section).values() for text in walk([one.data, one.layout])]
