"""The page of one sweep, as ``protosphere sweep`` writes it."""

from pathlib import Path

from protosphere.report.page import create_page
from protosphere.report.sections.sweep import create_section
from protosphere.report.sources import ReportData
from protosphere.runs.sweeps import SweepRecord
from protosphere.storage.atomic import write_atomically


def write_sweep_page(path: Path, record: SweepRecord) -> bool:
    """Write phase diagram and trials of a sweep as a page that needs no network.

    Args:
        path: File to write or replace.
        record: The record of the sweep.

    Returns:
        Whether it was written: it needs plotly, and a complete trial.

    Raises:
        StorageError: The file could not be written.
    """
    section = create_section(ReportData((), sweeps={record.name: record}))
    if record.best is None or section is None:
        return False
    trials = f"{len(record.trials)} of {record.num_trials} trials"
    try:
        page = create_page(f"Sweep of {record.name}", trials, [section])
    except ImportError:
        return False
    write_atomically(path, page.encode())
    return True
