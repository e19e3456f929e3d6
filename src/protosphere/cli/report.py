"""``protosphere report``: runs, comparisons and sweeps as one HTML page."""

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
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    overwrite: Overwrite = False,
) -> None:
    """Write runs, comparisons and sweeps as one HTML page with figures.

    The page needs no network and no other file. Damaged and incomplete runs
    are shown as far as they can be read.
    """
    from protosphere.cli.errors import report_errors

    with report_errors():
        check_packages()
        from protosphere.cli.output_files import check_new_file
        from protosphere.cli.text import count, echo
        from protosphere.report.create import write_report

        check_new_file("--out", out, suffixes=(".html", ".htm"), overwrite=overwrite)
        content = write_report(sources, out)
        numbers = [(content.runs, "run"), (content.comparisons, "comparison")]
        numbers += [(content.sweeps, "sweep")]
        shown = ", ".join(count(len(group), word) for group, word in numbers if group)
        echo(f"{out}: {shown}")
        for problem in content.problems:
            echo(problem, err=True)


def check_packages() -> None:
    """Check that the packages of reports are installed.

    Raises:
        ImportError: One is missing; the message names the extra that has it.
    """
    from importlib.util import find_spec

    for module, title in (("plotly", "plotly"), ("yaml", "PyYAML")):
        if find_spec(module) is None:
            raise ImportError(f'a report needs {title}: pip install "protosphere[report]"')
