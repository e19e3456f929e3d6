"""Files that commands write: checked before the work, written completely or not at all."""

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from protosphere.cli.text import CsvPrinter, to_json

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists.")]


def check_new_file(option: str, path: Path, *, suffixes: Sequence[str], overwrite: bool) -> None:
    """Check that a file can be written, before anything is computed.

    Args:
        option: Name of the option that the path was given with.
        path: The file.
        suffixes: Allowed suffixes.
        overwrite: Whether a file that exists may be replaced.

    Raises:
        ValueError: The suffix is another one, the file exists, is no file, or its folder cannot be
            written to.
    """
    if path.suffix not in suffixes:
        kinds = " or ".join(suffixes)
        raise ValueError(f"{option} must be a file that ends in {kinds}, got {path}")
    if path.exists() and not path.is_file():
        raise ValueError(f"{option} must be a file, got {path}, which is none")
    if path.exists() and not overwrite:
        raise ValueError(f"{option} must be a new file, or --overwrite be given, got {path}")
    if not path.parent.is_dir():
        raise ValueError(f"{option} must be in a folder that exists, got {path}")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{option} must be in a folder that can be written to, got {path}")


def write_csv(path: Path, fields: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as CSV; see :func:`protosphere.cli.text.csv_cell` for names in it.

    Args:
        path: File to write or replace.
        fields: Names of the columns.
        rows: Values by column.

    Raises:
        StorageError: The file could not be written. An existing file is left unchanged.
    """
    stream = io.StringIO()
    table = CsvPrinter(fields, stream)
    for row in rows:
        table.print(row)
    write_text(path, stream.getvalue())


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON.

    Args:
        path: File to write or replace.
        value: Plain values.

    Raises:
        StorageError: The file could not be written. An existing file is left unchanged.
    """
    write_text(path, to_json(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, completely or not at all."""
    from protosphere.storage import write_atomically

    write_atomically(path, text.encode())
