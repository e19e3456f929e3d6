"""A report from its sources: read them, create the sections, write the page."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from protosphere.report.content import Section
from protosphere.report.names import enumerate_names
from protosphere.report.page import create_page
from protosphere.report.paper_reference import data_name
from protosphere.report.read import read_sources
from protosphere.report.sections import (
    classes,
    collapse,
    comparison,
    convergence,
    corruptions,
    geometry,
    label_noise,
    long_tail,
    overview,
    sweep,
    training,
    transfer,
    uncertainty,
)
from protosphere.report.sources import ReportData
from protosphere.storage.atomic import write_atomically

_SECTIONS = (
    overview,
    comparison,
    training,
    collapse,
    geometry,
    classes,
    long_tail,
    label_noise,
    corruptions,
    transfer,
    uncertainty,
    convergence,
    sweep,
)

_GENERATOR = b'<meta name="generator" content="protosphere '
# Bytes before the title of a page, and more.
_HEAD = 1 << 14


def write_report(sources: Sequence[Path], out: Path, *, names_folders: bool = True) -> ReportData:
    """Read runs, comparisons and sweeps and write a report about them.

    Args:
        sources: Run folders, folders that contain runs, folders of comparisons and sweeps, or their
            JSON files.
        out: HTML file to write or replace.
        names_folders: Whether the report names the folders of runs; not if they are not kept.

    Returns:
        What the report shows.

    Raises:
        ReportError: A source does not exist, or there is nothing to show.
        ImportError: Plotly is not installed.
        StorageError: The file could not be written.
    """
    report = replace(read_sources(sources), names_folders=names_folders)
    save_report(report, out)
    return report


def save_report(report: ReportData, out: Path) -> None:
    """Write a report.

    Args:
        report: Runs, comparisons and sweeps.
        out: HTML file to write or replace.

    Raises:
        ImportError: Plotly is not installed.
        StorageError: The file could not be written.
    """
    write_atomically(out, create_report(report).encode())


def is_report(path: Path) -> bool:
    """Return whether a file is a report, by the generator that its head names.

    Args:
        path: The file.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return False
    return _GENERATOR in head.partition(b"<title>")[0]


def create_report(report: ReportData, *, live_script: str = "") -> str:
    """Create the page of a report.

    Args:
        report: Runs, comparisons and sweeps.
        live_script: JavaScript of a page that a local server shows.
    """
    title, subtitle = _titles(report)
    return create_page(title, subtitle, create_sections(report), live_script=live_script)


def create_sections(report: ReportData) -> tuple[Section, ...]:
    """Return the sections of a report that have something to show, in order.

    Args:
        report: Runs, comparisons and sweeps.
    """
    sections = [module.create_section(report) for module in _SECTIONS]
    return tuple(section for section in sections if section is not None)


def _titles(report: ReportData) -> tuple[str, str]:
    """Title and subtitle of the page."""
    names = [run.name for run in report.runs]
    names += [f"comparison {name}" for name in report.comparisons]
    names += [f"sweep {name}" for name in report.sweeps]
    if len(names) == 1:
        return names[0], "One run" if report.runs else ""
    counted = (
        (len(report.runs), "run"),
        (len(report.comparisons), "comparison"),
        (len(report.sweeps), "sweep"),
    )
    parts = [f"{number} {word}{'s' * (number > 1)}" for number, word in counted if number]
    known = list(dict.fromkeys(filter(None, (data_name(run.recipe) for run in report.runs))))
    methods = dict.fromkeys(run.method for run in report.runs)
    title = enumerate_names(parts) + (
        f" on {enumerate_names(known)}" if 0 < len(known) <= 3 else ""
    )
    shown = list(methods)[:8]
    more = f" and {len(methods) - len(shown)} more" if len(methods) > len(shown) else ""
    return title, ", ".join(shown) + more
