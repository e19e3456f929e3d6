"""A report from its sources: read them, create the sections, write the page."""

from importlib import import_module
from importlib.util import find_spec

from protosphere.report.content import Section
from protosphere.report.sources import ReportData

_SECTIONS = (
    "overview",
    "comparison",
    "training",
    "collapse",
    "geometry",
    "classes",
    "long_tail",
    "label_noise",
    "corruptions",
    "transfer",
    "uncertainty",
    "convergence",
    "sweep",
)


def create_sections(report: ReportData) -> tuple[Section, ...]:
    """Return the sections of a report that have something to show, in order.

    Args:
        report: Runs, comparisons and sweeps.
    """
    names = [f"protosphere.report.sections.{name}" for name in _SECTIONS]
    modules = [import_module(name) for name in names if find_spec(name) is not None]
    sections = [module.create_section(report) for module in modules]
    return tuple(section for section in sections if section is not None)
