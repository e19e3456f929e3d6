"""The application: its commands and its own options."""

import errno
import io
import os
import sys
from typing import Annotated

import typer

from protosphere import __version__
from protosphere.cli.demo import demo
from protosphere.cli.doctor import doctor
from protosphere.cli.evaluate import evaluate
from protosphere.cli.measure import measure
from protosphere.cli.predict import predict
from protosphere.cli.prototypes import app as prototypes
from protosphere.cli.recipes import recipes
from protosphere.cli.train import train

app = typer.Typer(
    name="protosphere",
    help="Supervised learning as learning class prototypes on the unit sphere.",
    no_args_is_help=True,
    add_completion=False,
)
app.command()(demo)
app.command()(doctor)
app.command()(evaluate)
app.command()(measure)
app.command()(predict)
app.command()(recipes)
app.command()(train)
app.add_typer(prototypes)


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"protosphere {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def main(
    version: Annotated[  # noqa: ARG001  Its callback has done the work.
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Supervised learning as learning class prototypes on the unit sphere."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="replace"
            )  # A terminal that cannot write "°" still gets the rest.


def run() -> None:
    """The command, as it is installed: where its output finds no room, it says so and leaves with status 1."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stderr.write("Error: there must be room for what is printed; there is no space left.\n")
        # What is still to be written would fail once more, when Python leaves.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
