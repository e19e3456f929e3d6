"""Commands that are printed start with a program that the user's shell finds."""

import sys
from pathlib import Path

import pytest

from protosphere.cli.program import program_name


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An executable in an environment that is not activated, in the current folder."""
    path = tmp_path / "my env/bin/protosphere"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    return path


@pytest.mark.parametrize(
    ("started", "expected"),
    [
        ("my env/bin/protosphere", "'my env/bin/protosphere'"),
        ("/usr/lib/protosphere/__main__.py", "python -m protosphere"),
        ("/usr/bin/pytest", "protosphere"),
        ("/usr/lib/pytest/__main__.py", "protosphere"),
    ],
)
@pytest.mark.usefixtures("program")
def test_a_program_that_is_not_on_the_path_is_named_as_it_was_started(
    started: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [started])
    assert program_name() == expected


def test_an_activated_environment_needs_the_name_only(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", str(program.parent))
    assert program_name() == "protosphere"


def test_another_installation_on_the_path_is_not_meant(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "protosphere"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program)])
    assert program_name() == f"'{program}'"
