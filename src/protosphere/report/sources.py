"""What a report shows: runs, comparisons and sweeps, read from their folders."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from protosphere.runs.comparison import Comparison
from protosphere.runs.folder import Record
from protosphere.runs.sweeps import SweepRecord


@dataclass(frozen=True)
class RunData:
    """A run, with whatever could be read of it.

    Attributes:
        name: Name in the report, different for each run.
        path: Folder.
        method: What is the same for runs that differ only in their seed: name of the recipe, with
            the settings that differ if several recipes have the same name.
        seed: Seed of the run; None if there is no recipe.
        state: ``"complete"``, ``"running"``, ``"incomplete"``, or ``"unknown"`` without records.
        recipe: Recipe as plain values; empty if it is missing.
        machine: Content of ``machine.json``; empty if it is missing.
        data: Content of ``data.json``; empty if it is missing.
        class_names: Class names, in the order of class indices; empty if they are missing.
        records: Logged records, in order.
        results: Results of benchmarks by file name, each with ``settings`` and ``rows``.
        arrays: Arrays of the best evaluation if a metric is monitored and they were kept, otherwise
            of the last one, by name; empty if they are missing.
        arrays_step: Step of the evaluation that the arrays are of; None for the last one, whatever
            its step is.
        problems: What is missing or damaged, in one sentence each.
    """

    name: str
    path: Path
    method: str
    seed: int | None
    state: Literal["complete", "running", "incomplete", "unknown"]
    recipe: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    records: tuple[Record, ...] = ()
    results: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    arrays_step: int | None = None
    problems: tuple[str, ...] = ()

    @property
    def evaluations(self) -> tuple[Record, ...]:
        """The records of evaluations, in order."""
        return tuple(record for record in self.records if record.get("kind") == "evaluation")


@dataclass(frozen=True)
class ReportData:
    """Everything that a report shows.

    Attributes:
        runs: The runs.
        comparisons: Comparisons by their name in the report.
        sweeps: Sweeps by their name in the report.
        problems: Sources that could not be read, in one sentence each.
        names_folders: Whether the folders of runs are named; not if they are about to be deleted.
    """

    runs: tuple[RunData, ...]
    comparisons: Mapping[str, Comparison] = field(default_factory=dict)
    sweeps: Mapping[str, SweepRecord] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    names_folders: bool = True
