"""How a number of the paper is read from runs: logged metrics, probes and benchmarks."""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeVar

import torch

from protosphere.data.progress import Progress, no_progress
from protosphere.data.transfer_sets import TransferSet, load_transfer_set, parse_target
from protosphere.evaluation.probes import ProbeName, ProbeResult
from protosphere.recipes.loading import Run, load_run
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.metadata import read_class_names
from protosphere.runs.results import ResultFile, read_result
from protosphere.studies.common import reported_split, run_settings
from protosphere.studies.convergence import TrainingLog, read_log, run_convergence
from protosphere.studies.corruption_summary import (
    CorruptionSummary,
    find_reference,
    reference_of,
    summarize_corruptions,
)
from protosphere.studies.corruptions import CorruptionRow, run_corruptions
from protosphere.studies.reproduce_runs import PaperRun, PlannedRun
from protosphere.studies.transfer import TransferRow, run_transfer

# A number, "never" for what did not happen, or None for what is not known.
Value = float | str | None
PROBES_FILE = "probes"
RowT = TypeVar("RowT")


@dataclass
class RunReader:
    """Reads numbers from the runs of a table; what a benchmark computes stays in the run folder.

    Attributes:
        runs: All runs, by the run of the paper.
        device: Where models compute; ``"auto"`` finds a GPU.
        download: Whether missing sets are downloaded.
        root: Folder of downloaded sets to transfer to.
        sets: Sets to transfer to by name, ``NAME=PATH`` for those that are elsewhere.
        corruption_folder: Folder of ImageNet-C; None computes the corruptions.
        show_progress: Called with what is computed; the context shows how far it is.
    """

    runs: Mapping[PaperRun, PlannedRun]
    device: torch.device | str = "cpu"
    download: bool = False
    root: Path | str = "data"
    sets: Mapping[str, str] = field(default_factory=dict)
    corruption_folder: Path | None = None
    show_progress: Callable[[str], AbstractContextManager[Progress]] = lambda _: nullcontext(
        no_progress
    )
    _loaded: dict[Path, Run] = field(default_factory=dict)
    _targets: dict[str, TransferSet] = field(default_factory=dict)
    # Why benchmarks have failed: numbers of the same one do not compute it again.
    _errors: dict[tuple[Path, str], Exception] = field(default_factory=dict)

    def last_evaluation(self, run: PaperRun) -> dict[str, Any]:
        """Return the last evaluation of a complete run."""
        return RunFolder(self.runs[run].folder).last_evaluation() or {}

    def log(self, run: PaperRun) -> TrainingLog:
        """Return what a run has logged."""
        return read_log(self.runs[run].folder)

    def transfer_set(self, name: str) -> TransferSet:
        """Load a set to transfer to, once.

        Raises:
            DataError: It is not there.
        """
        if name not in self._targets:
            target = parse_target(self.sets.get(name, name))
            self._targets[name] = load_transfer_set(target, root=self.root, download=self.download)
        return self._targets[name]

    def benchmark(
        self,
        run: PaperRun,
        name: str,
        row_type: type[RowT],
        compute: Callable[[Run, Progress], tuple[RowT, ...]],
        *,
        title: str | None = None,
    ) -> tuple[RowT, ...]:
        """Return the rows of a benchmark, computed or read if they are there.

        Of a run whose records were kept without its weights, the file counts as it is.

        Args:
            run: The run.
            name: Name of the file under ``benchmarks``.
            row_type: Kind of its rows.
            compute: Computes and keeps them.
            title: What is computed; None for the name.

        Raises:
            RunFolderError: There are neither weights nor rows, or there are only rows, of probes
                with other settings.
        """
        planned = self.runs[run]
        folder, title = planned.folder, title or name
        if not planned.has_weights:
            return _read_rows(planned, name, row_type)
        if error := self._errors.get((folder, title)):
            raise error
        if folder not in self._loaded:
            self._loaded.clear()  # One model at a time.
            probe = [f"probe.{key}={json.dumps(one)}" for key, one in planned.probe_changes.items()]
            self._loaded[folder] = load_run(
                folder,
                device=self.device,
                overrides=[*planned.locations, *probe],
                download=self.download,
            )
        try:
            with self.show_progress(f"{title}, {folder.name}") as progress:
                return compute(self._loaded[folder], progress)
        except Exception as error:
            self._errors[folder, title] = error
            raise


def _read_rows(planned: PlannedRun, name: str, row_type: type[RowT]) -> tuple[RowT, ...]:
    """Return the rows of a benchmark of a run without weights."""
    path = planned.folder / "benchmarks" / f"{name}.json"
    if not path.exists():
        raise RunFolderError(
            f"{planned.folder} must have a checkpoint or {path.name}; it has neither"
        )
    result = read_result(path, row_type)
    used = result.settings.get("probe", {}) if name == PROBES_FILE else {}
    for key, value in planned.probe_changes.items():
        if key in used and used[key] != value:
            raise RunFolderError(
                f"{planned.folder} must have a checkpoint to change probe.{key} to {value}; it has "
                f"only the results with {used[key]}"
            )
    return result.rows


@dataclass(frozen=True)
class Reading:
    """How one number is read from a run."""

    @property
    def other_runs(self) -> tuple[PaperRun, ...]:
        """Further runs that the number needs."""
        return ()

    @property
    def transfer_sets(self) -> tuple[str, ...]:
        """Sets of images that the number needs beside those of the run."""
        return ()

    @property
    def is_logged(self) -> bool:
        """Whether the number follows from what training has logged."""
        return False

    def read(self, reader: RunReader, run: PaperRun) -> Value:
        """Return the number, as the paper prints it.

        Args:
            reader: The runs.
            run: The run.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class LoggedReading(Reading):
    """A metric of the last evaluation in training.

    Attributes:
        metric: Name of the metric.
        unit: Factor from the logged value to the paper's.
    """

    metric: str
    unit: float = 1.0

    @property
    def is_logged(self) -> bool:
        """It does."""
        return True

    def read(self, reader: RunReader, run: PaperRun) -> Value:
        """Return the logged value."""
        value = reader.last_evaluation(run).get(self.metric)
        return None if value is None else self.unit * float(value)


@dataclass(frozen=True)
class ProbeReading(Reading):
    """The accuracy of a classifier on frozen features, or a collapse metric with its weights.

    Attributes:
        probe: Name of the probe.
        space: Which features, if the encoder has a projection.
        metric: A collapse metric; None for the accuracy in percent.
    """

    probe: ProbeName
    space: Literal["output", "backbone"]
    metric: str | None = None

    def read(self, reader: RunReader, run: PaperRun) -> Value:
        """Return the value, after fitting the probe if that was not done before."""

        def compute(loaded: Run, progress: Progress) -> tuple[ProbeResult, ...]:
            return run_probe(loaded, self.probe, progress=progress)

        title = f"{self.probe} probe"
        rows = reader.benchmark(run, PROBES_FILE, ProbeResult, compute, title=title)
        own = [row for row in rows if row.name == self.probe]
        chosen = [row for row in own if row.features == self.space or len(own) == 1]
        if not chosen:
            return None
        return 100 * chosen[0].accuracy if self.metric is None else chosen[0].metrics[self.metric]


def run_probe(
    run: Run, name: ProbeName, *, progress: Progress = no_progress
) -> tuple[ProbeResult, ...]:
    """Fit a probe and keep its result in RUN/benchmarks/probes.json.

    Args:
        run: The run.
        name: Which probe.
        progress: Called with the fraction that is done.

    Returns:
        All results that the file has.
    """
    split = reported_split(run.recipe)
    settings = run_settings(run) | {
        "test": run.dataset(split).test.fingerprint(),
        "probe": run.recipe.probe.model_dump(mode="json"),
    }
    result = ResultFile(run.path, PROBES_FILE, ProbeResult, settings)
    if all(row.name != name for row in result.rows):
        result.append(*run.probe([name], split=split, progress=progress))
    return result.rows


@dataclass(frozen=True)
class TransferReading(Reading):
    """The test metric of logistic regression on frozen features of other sets, in percent.

    Attributes:
        sets: Names of the sets; the number is the mean over them.
    """

    sets: tuple[str, ...]

    @property
    def transfer_sets(self) -> tuple[str, ...]:
        """The sets."""
        return self.sets

    def read(self, reader: RunReader, run: PaperRun) -> Value:
        """Return the mean over the sets."""
        return fmean(self._read(reader, run, name) for name in self.sets)

    def _read(self, reader: RunReader, run: PaperRun, name: str) -> float:
        def compute(loaded: Run, progress: Progress) -> tuple[TransferRow, ...]:
            target = reader.transfer_set(name)
            return run_transfer(loaded, target, classifiers=["logistic"], progress=progress)

        rows = reader.benchmark(run, f"transfer-{name}", TransferRow, compute)
        return 100 * next(row.value for row in rows if row.classifier == "logistic")


@dataclass(frozen=True)
class CorruptionReading(Reading):
    """An error on corrupted test images in percent, relative to AlexNet's on ImageNet.

    Attributes:
        column: ``clean_error``, ``mce``, or a corruption.
        baseline: Run whose errors are divided by if the classes are not those of ImageNet.
    """

    column: str
    baseline: PaperRun

    @property
    def other_runs(self) -> tuple[PaperRun, ...]:
        """The baseline."""
        return (self.baseline,)

    def read(self, reader: RunReader, run: PaperRun) -> Value:
        """Return the error, after corrupting the test images if that was not done before."""
        reference = find_reference(read_class_names(RunFolder(reader.runs[run].folder)))
        if reference is None:
            reference = reference_of("the baseline", self._rows(reader, self.baseline))
        summary = summarize_corruptions(self._rows(reader, run), reference)
        value = self._select(summary)
        return None if value is None else 100 * value

    def _select(self, summary: CorruptionSummary) -> float | None:
        values = {"clean_error": summary.clean_error, "mce": summary.mce}
        return (values | summary.normalized_errors).get(self.column)

    def _rows(self, reader: RunReader, run: PaperRun) -> tuple[CorruptionRow, ...]:
        folder = reader.corruption_folder

        def compute(loaded: Run, progress: Progress) -> tuple[CorruptionRow, ...]:
            return run_corruptions(loaded, folder=folder, progress=progress)

        name = "corruptions" if folder is None else "corruption-files"
        return reader.benchmark(run, name, CorruptionRow, compute)


@dataclass(frozen=True)
class ConvergenceReading(Reading):
    """When a metric converges, in percent (Table 7).

    Attributes:
        kind: Until 95% of neural collapse, of the run; or until the last value of the baseline,
            of the baseline's own time.
        metric: Name of the metric.
        baseline: The run with cross-entropy.
    """

    kind: Literal["percent_to_collapse", "percent_of_baseline"]
    metric: str
    baseline: PaperRun

    @property
    def is_logged(self) -> bool:
        """It does."""
        return True

    @property
    def other_runs(self) -> tuple[PaperRun, ...]:
        """The baseline."""
        return (self.baseline,)

    def read(self, reader: RunReader, run: PaperRun) -> Value:
        """Return the time, from what both runs have logged."""
        rows = run_convergence(reader.log(run), baseline=reader.log(self.baseline))
        value: Value = getattr(next(row for row in rows if row.metric == self.metric), self.kind)
        return value
