"""Progress bars: on standard error only, and standard output stays where it is."""

import os
import pty
import subprocess
import sys

import pytest

PROGRAM = """
import typer
from protosphere.cli.progress import progress_bar
with progress_bar("working") as progress:
    progress(0.5)
    typer.echo("row")
"""


@pytest.mark.whole_program
@pytest.mark.parametrize("has_terminal", [True, False])
def test_rows_go_to_standard_output(has_terminal: bool) -> None:
    """With a terminal on standard error alone, as in ``protosphere predict ... > rows.json``."""
    primary, secondary = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            stdout=subprocess.PIPE,
            stderr=secondary if has_terminal else subprocess.PIPE,
            env=os.environ | {"TERM": "xterm"},
            check=True,
        )
        shown = os.read(primary, 4096) if has_terminal else done.stderr
    finally:
        os.close(primary)
        os.close(secondary)
    assert done.stdout == b"row\n"
    assert (b"working" in shown) == has_terminal
