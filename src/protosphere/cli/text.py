"""Text, JSON and CSV that are safe to print: no control characters, no formulas."""

import csv
import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

import typer

# Line and paragraph separators, bidirectional overrides and isolates, and halves of surrogate
# pairs (bytes of a file name that are not UTF-8).
_UNSAFE_UNICODE = "\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL = re.compile(f"[\x00-\x1f\x7f-\x9f{_UNSAFE_UNICODE}]")
_CONTROL_BUT_NEWLINE = re.compile(f"[\x00-\x09\x0b-\x1f\x7f-\x9f{_UNSAFE_UNICODE}]")
# json has escaped the others.
_CONTROL_IN_JSON = re.compile(f"[\x7f-\x9f{_UNSAFE_UNICODE}]")
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def printable(text: object) -> str:
    r"""Return a text with its control characters replaced by visible escapes.

    Class names, recipe names, paths and error messages may hold terminal escape sequences;
    everything of theirs that is printed goes through here.

    Args:
        text: Text, or a value to convert to text.

    Returns:
        One line without control characters and bidirectional overrides.

    >>> printable("cat\x1b[31m\n")
    'cat\\x1b[31m\\n'
    """
    return _CONTROL.sub(_escape, str(text))


def printable_lines(text: str) -> str:
    """Return a text of several lines with all control characters but newlines made visible."""
    return _CONTROL_BUT_NEWLINE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def echo(text: object, *, err: bool = False) -> None:
    """Print one line, control characters made visible.

    Args:
        text: Line to print, without a newline.
        err: Print to standard error.
    """
    typer.echo(printable(text), err=err)


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1.

    >>> count(1, "class"), count(1200, "class"), count(0, "epoch")
    ('1 class', '1,200 classes', '0 epochs')
    """
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


def to_json(value: Any, *, indent: int | None = None) -> str:
    r"""Serialize to JSON with control characters escaped and all other characters unchanged.

    >>> print(to_json({"class": "chat é\x9b\u202e"}))
    {"class": "chat é\u009b\u202e"}
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _CONTROL_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def csv_cell(value: Any) -> Any:
    """Return the value of a CSV cell that no spreadsheet takes for a formula.

    Args:
        value: Text of a class name or path; other values are returned as they are.

    Returns:
        The text with control characters made visible, after an apostrophe if it begins with
        ``=``, ``+``, ``-``, ``@``, a tab or a carriage return.

    >>> csv_cell("=1+1"), csv_cell("ant"), csv_cell(-0.5)
    ("'=1+1", 'ant', -0.5)
    """
    if not isinstance(value, str):
        return value
    return ("'" if value.startswith(_FORMULA_STARTS) else "") + printable(value)


class CsvPrinter:
    """Print rows as CSV.

    Args:
        fields: Names of the columns; the header is printed at once.
        stream: Where to print; None is standard output.
    """

    def __init__(self, fields: Iterable[str], stream: TextIO | None = None) -> None:
        self._writer = csv.DictWriter(stream or sys.stdout, list(fields), lineterminator="\n")
        self._writer.writeheader()

    def print(self, row: Mapping[str, Any]) -> None:
        """Print one row."""
        self._writer.writerow({field: csv_cell(value) for field, value in row.items()})
