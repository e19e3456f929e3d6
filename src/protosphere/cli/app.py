"""The application: its commands and its own options."""

import errno
import io
import logging
import os
import sys
from typing import Annotated, Any

import typer

from protosphere import __version__
from protosphere.cli.benchmark import app as benchmark
from protosphere.cli.compare import compare
from protosphere.cli.demo import demo
from protosphere.cli.doctor import doctor
from protosphere.cli.evaluate import evaluate
from protosphere.cli.export import export
from protosphere.cli.init import init
from protosphere.cli.measure import measure
from protosphere.cli.options import Command, Group
from protosphere.cli.predict import predict
from protosphere.cli.prototypes import app as prototypes
from protosphere.cli.recipes import recipes
from protosphere.cli.report import report
from protosphere.cli.reproduce import reproduce
from protosphere.cli.sweep import sweep
from protosphere.cli.text import echo
from protosphere.cli.train import train


class _Program(Group):
    """The commands, of which most use one process."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command, and refuse several processes of torchrun if it has no use for them."""
        found = super().resolve_command(ctx, args)
        _check_processes(found[0])
        return found


app = typer.Typer(name="protosphere", cls=_Program, no_args_is_help=True)
for command in (
    compare, demo, doctor, evaluate, export, init, measure, predict, recipes, report, reproduce,
    sweep, train,
):  # fmt: skip
    app.command(cls=Command)(command)
app.add_typer(benchmark)
app.add_typer(prototypes)


def _print_version(requested: bool) -> bool:
    if requested:
        typer.echo(f"protosphere {__version__}")
        raise typer.Exit
    return requested


@app.callback()
def main(
    version: Annotated[  # noqa: ARG001  Its callback does the work.
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Supervised learning as learning class prototypes on the unit sphere."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot display "°" still gets the rest.
            stream.reconfigure(errors="replace")
    log = logging.getLogger("protosphere")
    if not any(isinstance(handler, _WarningPrinter) for handler in log.handlers):
        log.addHandler(_WarningPrinter(logging.WARNING))


def _check_processes(command: str | None) -> None:
    """Refuse several processes of torchrun, which would all do the same work in the same folder."""
    several = "LOCAL_RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
    # A sweep refuses them itself and says how it uses several GPUs.
    if several and command not in ("train", "sweep"):
        echo(f"Error: protosphere {command} must be started without torchrun", err=True)
        raise typer.Exit(1)


class _WarningPrinter(logging.Handler):
    """Print warnings of the library as lines on standard error, control characters made visible."""

    def emit(self, record: logging.LogRecord) -> None:
        echo(f"{record.levelname.capitalize()}: {record.getMessage()}", err=True)


def run() -> None:
    """Run the installed command; exit with status 1 if its output cannot be written."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stderr.write("Error: cannot write the output: no space left on device\n")
        # Python flushes once more when it exits, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
