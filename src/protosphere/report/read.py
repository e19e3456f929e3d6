"""Read the sources of a report: run folders, folders of them, comparisons and sweeps."""

import json
from collections.abc import Sequence
from pathlib import Path

from protosphere.report.names import name_runs, unique_names
from protosphere.report.read_run import is_run, read_run
from protosphere.report.sources import ReportData
from protosphere.runs.comparison import COMPARISON_FILE, Comparison, read_comparison
from protosphere.runs.folder import RunFolderError
from protosphere.runs.sweeps import SWEEP_FILE, SweepRecord, read_sweep
from protosphere.storage.atomic import reason

# Folders below a source in which runs are searched.
_MAX_DEPTH = 3


class ReportError(ValueError):
    """A report cannot be created; the message says why."""


def read_sources(sources: Sequence[Path]) -> ReportData:
    """Read what a report shows.

    A run that is damaged does not raise; its problems are part of what is returned.

    Args:
        sources: Run folders, folders that contain runs at most three folders deep, folders of
            comparisons and sweeps, or their ``comparison.json`` and ``sweep.json``. Trials of a
            sweep are read as runs only if their folders are given.

    Raises:
        ReportError: A source does not exist, or there is nothing to show.
    """
    if not sources:
        raise ReportError("at least one run folder must be given")
    found = _Found()
    for source in sources:
        found.add_source(source)
    runs = name_runs([read_run(path) for path in found.runs.values()])
    comparisons = dict(zip(_names(found.comparisons), found.comparisons.values(), strict=True))
    sweeps = dict(zip(_names(found.sweeps), found.sweeps.values(), strict=True))
    if not (runs or comparisons or sweeps):
        if found.problems:
            raise ReportError(found.problems[0].rstrip("."))
        given = ", ".join(map(str, sources))
        raise ReportError(f"a report needs at least one run; there is none in {given}")
    return ReportData(runs, comparisons, sweeps, tuple(found.problems))


class _Found:
    """What was found in the sources; each path once, in the order of the sources."""

    def __init__(self) -> None:
        self.runs: dict[Path, Path] = {}
        self.comparisons: dict[Path, Comparison] = {}
        self.sweeps: dict[Path, SweepRecord] = {}
        self.problems: list[str] = []

    def add_source(self, source: Path) -> None:
        try:
            self._add(source)
        except OSError as error:
            self._add_problem(source, error)

    def _add(self, source: Path) -> None:
        if source.is_file():
            self._add_file(source)
        elif source.is_dir():
            self._add_folder(source, _MAX_DEPTH)
        else:
            raise ReportError(
                f"a source of a report must be a folder or file that exists, got {source}"
            )

    def _add_file(self, path: Path) -> None:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            content = {}
        if path.name == SWEEP_FILE or "trials" in content:
            self._add_sweep(path)
        elif path.name == COMPARISON_FILE or "methods" in content:
            self._add_comparison(path)
        else:
            raise ReportError(
                "a file in a report must be the comparison.json or the sweep.json of a study, got "
                f"{path}"
            )

    def _add_folder(self, path: Path, depth: int) -> None:
        try:
            if path.is_dir():
                self._add_contents(path, depth)
        except OSError as error:
            self._add_problem(path, error)

    def _add_problem(self, path: Path, error: OSError) -> None:
        self.problems.append(f"Cannot read {path}: {reason(error)}.")

    def _add_contents(self, path: Path, depth: int) -> None:
        # Studies come first: their folders may hold a machine.json too.
        is_comparison = (path / COMPARISON_FILE).is_file()
        if is_comparison:
            self._add_comparison(path / COMPARISON_FILE)
        if (path / SWEEP_FILE).is_file():
            self._add_sweep(path / SWEEP_FILE)
            return
        if is_run(path) and not is_comparison:
            self.runs.setdefault(path.resolve(), path)
            return
        if depth:
            for entry in sorted(path.iterdir()):
                if not entry.name.startswith("."):
                    self._add_folder(entry, depth - 1)

    def _add_comparison(self, path: Path) -> None:
        try:
            self.comparisons.setdefault(path.resolve(), read_comparison(path))
        except RunFolderError as error:
            self.problems.append(f"{error}.")

    def _add_sweep(self, path: Path) -> None:
        try:
            self.sweeps.setdefault(path.resolve(), read_sweep(path))
        except RunFolderError as error:
            self.problems.append(f"{error}.")


def _names(paths: Sequence[Path] | dict[Path, Comparison] | dict[Path, SweepRecord]) -> list[str]:
    """Names of files of studies: those of their folders, or of files that were renamed."""
    named = [
        (path.parent if path.name in (COMPARISON_FILE, SWEEP_FILE) else path.with_suffix(""))
        for path in paths
    ]
    return unique_names([path.name for path in named], named)
