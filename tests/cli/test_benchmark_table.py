"""Tables of benchmarks on terminals of different widths, and in pipes."""

import re

import pytest

from protosphere.cli import benchmark_table
from protosphere.cli.benchmark_table import difference, number, percent, print_note, print_table

COLUMNS = ["run", "method", "classifier", "accuracy in %", "NLL"]
ROWS = [
    ["runs/a-long-name-of-a-run", "nonl", "means, calibrated", "98.5", "0.123"],
    ["runs/b", "ce", "head", "7.5", "–"],
]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A terminal; tests set its width."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    return monkeypatch


@pytest.mark.parametrize("width", [45, 50, 60, 70])
def test_a_narrow_terminal_folds_cells_between_words(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    terminal.setenv("COLUMNS", str(width))
    print_table("A title of several words that is longer than the line", COLUMNS, ROWS)
    text = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    words = [word for cell in [*COLUMNS, *ROWS[0][1:], *ROWS[1]] for word in cell.split()]
    assert set(words) <= set(text.split())
    table = text[text.index("means,") - 40 :]
    name = "".join(line.split(" ")[0] for line in table.splitlines())
    assert ROWS[0][0] in name


def test_a_pipe_folds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["x" * 300, *ROWS[0][1:]], ROWS[1]]
    print_table("A title", COLUMNS, rows, note="word " * 40)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[2].startswith("x" * 300)
    assert len({len(line.rstrip()) for line in lines[1:4]}) == 1


def test_a_terminal_that_is_wide_enough_folds_nothing(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.setenv("COLUMNS", "80")
    print_table("A title", COLUMNS, ROWS)
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_sentences_are_folded_between_words(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.setenv("COLUMNS", "30")
    print_note("one two three four five six seven eight nine\x1b[31m")
    assert capsys.readouterr().out == "one two three four five six\nseven eight nine\\x1b[31m\n"


def test_only_runs_without_test_images_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark_table.print_splits({"a": "test", "b": "validation"})
    text = capsys.readouterr().out
    assert text == "b: numbers of its validation images, not of test images\n"


def test_names_of_runs_are_folded_last(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.setenv("COLUMNS", "67")
    print_table("A title", COLUMNS, ROWS)
    assert ROWS[0][0] in capsys.readouterr().out.split()


@pytest.mark.parametrize("value", [-0.0, -0.004, 0.004])
def test_what_is_rounded_to_zero_has_no_sign(value: float) -> None:
    assert number(value, digits=2) == "0.00"
    assert percent(value / 100, digits=2) == "0.00"
    assert difference(value, digits=2) == "0.00"


def test_differences_have_signs() -> None:
    assert [difference(value) for value in (0.25, -1.0, None)] == ["+0.2", "-1.0", "–"]


def test_numbers_below_a_bound_are_aligned_to_the_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table("A title", ["run", "H200 hours"], [["a", "<0.01"], ["b", "12.00"]])
    assert capsys.readouterr().out.splitlines()[2].rstrip() == "a         <0.01"
