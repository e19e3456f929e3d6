"""``protosphere report``: runs, comparisons and sweeps as one HTML page."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from protosphere.cli.output_files import Overwrite


def report(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCES",
            help="Run folders, folders that contain runs, folders of `compare` or `sweep`, or "
            "their comparison.json and sweep.json.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="HTML file to write; an earlier report is replaced.", show_default="report.html"
        ),
    ] = None,
    overwrite: Overwrite = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Serve the page on 127.0.0.1 instead of writing a file, and update it while runs "
            "are in progress.",
        ),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(help="Port for --watch.", show_default="any free port", min=0, max=65535),
    ] = None,
) -> None:
    """Write runs, comparisons and sweeps as one HTML page with figures.

    The page needs no network and no other file. Damaged and incomplete runs
    are shown as far as they can be read.
    """
    from protosphere.cli.errors import report_errors

    with report_errors():
        check_packages()
        if watch:
            _watch(sources, out, port)
            return
        if port is not None:
            raise ValueError("--port must be given together with --watch")
        out = Path("report.html") if out is None else out
        from protosphere.cli.output_files import check_new_file
        from protosphere.cli.text import count, echo
        from protosphere.report.create import is_report, save_report
        from protosphere.report.read import read_sources

        content = read_sources(sources)
        may_replace = overwrite or is_report(out)
        check_new_file("--out", out, suffixes=(".html", ".htm"), overwrite=may_replace)
        save_report(content, out)
        numbers = [(content.runs, "run"), (content.comparisons, "comparison")]
        numbers += [(content.sweeps, "sweep")]
        shown = ", ".join(count(len(group), word) for group, word in numbers if group)
        echo(f"{out}: {shown}")
        for problem in content.problems:
            echo(problem, err=True)


def _watch(sources: list[Path], out: Path | None, port: int | None) -> None:
    """Serve the page until the command is stopped."""
    from protosphere.cli.signals import catch_signals
    from protosphere.cli.text import echo
    from protosphere.report.watch import ReportServer, watch_sources

    if out is not None:
        raise ValueError("--out cannot be used with --watch, which writes no file")
    watched = watch_sources(sources)
    with catch_signals() as stop_requested, ReportServer(watched, port or 0) as server:
        echo(f"Serving the report at {server.url} (press Ctrl-C to stop)")
        sys.stdout.flush()
        server.serve_until(stop_requested)


def check_packages() -> None:
    """Check that the packages of reports are installed.

    Raises:
        ImportError: One is missing; the message names the extra that has it.
    """
    from importlib.util import find_spec

    for module, title in (("plotly", "plotly"), ("yaml", "PyYAML"), ("scipy", "SciPy")):
        if find_spec(module) is None:
            raise ImportError(f'a report needs {title}: pip install "protosphere[report]"')
