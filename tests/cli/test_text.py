"""Text that is printed: control characters, counted nouns, JSON and CSV."""

import json

import pytest

from protosphere.cli.text import count, csv_cell, printable, printable_lines, to_json


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain é 猫", "plain é 猫"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("two\nlines\tand\rmore", "two\\nlines\\tand\\rmore"),
        ("\x9b31m", "\\x9b31m"),
        ("\x7f\x00", "\\x7f\\x00"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("line\u2028separator", "line\\u2028separator"),
        ("\udcff.png", "\\udcff.png"),
    ],
)
def test_control_characters_become_visible(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_newlines_stay_in_text_of_several_lines() -> None:
    assert printable_lines("name: a\nseed: \x1b1\n") == "name: a\nseed: \\x1b1\n"


@pytest.mark.parametrize(
    "text", ["é", "\x1b[31m", "\x9b31m", "\u202e", "\u2028", "\x7f", '"quoted"\\']
)
def test_json_is_printable_and_keeps_its_value(text: str) -> None:
    for indent in (None, 2):
        written = to_json({text: [text]}, indent=indent)
        assert json.loads(written) == {text: [text]}
        assert printable_lines(written) == written
    assert to_json("é") == '"é"'


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_formulas_get_an_apostrophe_in_csv(start: str) -> None:
    assert csv_cell(f"{start}cmd") == "'" + printable(f"{start}cmd")


@pytest.mark.parametrize("value", ["ant", "a=b", "", -0.5, 3])
def test_other_csv_cells_are_unchanged(value: object) -> None:
    assert csv_cell(value) == value


@pytest.mark.parametrize(
    ("number", "noun", "expected"),
    [
        (1, "class", "1 class"),
        (2, "class", "2 classes"),
        (1, "epoch", "1 epoch"),
        (0, "epoch", "0 epochs"),
        (1200, "image", "1,200 images"),
        (3, "pass", "3 passes"),
    ],
)
def test_counted_nouns(number: int, noun: str, expected: str) -> None:
    assert count(number, noun) == expected
