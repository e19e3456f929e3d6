"""The result of ``protosphere compare``: one JSON file, written and read without torch.

OUT/comparison.json  every value of every run, and what follows from them
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from protosphere.runs.folder import RunFolder, RunFolderError
from protosphere.storage.atomic import write_json

SCHEMA_VERSION = 1
COMPARISON_FILE = "comparison.json"
Direction = Literal["higher", "lower", "target"]
Outcome = Literal["better", "worse", "different", "not clear"]
EntryT = TypeVar("EntryT")


@dataclass(frozen=True)
class ComparedMetric:
    """A metric that runs are compared by.

    Attributes:
        name: Name of the metric.
        direction: Which values are better; ``"target"`` are those nearer to ``target``. None if
            none are.
        target: Best value; None unless the direction is ``"target"``.
    """

    name: str
    direction: Direction | None
    target: float | None = None


@dataclass(frozen=True)
class ComparedMethod:
    """A recipe, whatever its seed.

    Attributes:
        name: Name of the method: that of the recipe, with the keys that differ if other methods
            have the same name.
        recipe: The recipe without its seed, as plain values.
    """

    name: str
    recipe: dict[str, Any]


@dataclass(frozen=True)
class ComparedRun:
    """A complete run.

    Attributes:
        method: Name of the method.
        seed: Seed of the run.
        folder: Run folder, relative to the folder of the comparison if it is inside.
        step: Step of the evaluation that the values are of.
        epoch: Epoch of that evaluation.
        values: Values by metric.
    """

    method: str
    seed: int
    folder: str
    step: int
    epoch: int
    values: dict[str, float]


@dataclass(frozen=True)
class FailedRun:
    """A run without a result.

    Attributes:
        method: Name of the method.
        seed: Seed of the run.
        folder: Run folder, relative to the folder of the comparison if it is inside.
        error: Why there is no result.
    """

    method: str
    seed: int
    folder: str
    error: str


@dataclass(frozen=True)
class PendingRun:
    """A run that has not been trained to its end yet.

    Attributes:
        method: Name of the method.
        seed: Seed of the run.
    """

    method: str
    seed: int


@dataclass(frozen=True)
class MetricSummary:
    """A metric of a method over its seeds.

    Attributes:
        method: Name of the method.
        metric: Name of the metric.
        num_seeds: Number of runs that have the metric.
        mean: Mean over the runs.
        std: Sample standard deviation; None for one run.
    """

    method: str
    metric: str
    num_seeds: int
    mean: float
    std: float | None


@dataclass(frozen=True)
class MetricDifference:
    """The paired difference of a method to the baseline: method minus baseline, seed by seed.

    Of a metric whose direction is ``"target"``, distances from the target are compared.

    Attributes:
        method: Name of the method.
        metric: Name of the metric.
        seeds: Seeds that both have a value of.
        mean: Mean of the differences.
        std: Sample standard deviation of the differences; None for one seed. The rest is None for
            one seed, and for differences that are all equal and not zero.
        low: Lower end of the confidence interval.
        high: Upper end of the confidence interval.
        p_value: p-value of the two-sided paired t-test.
        adjusted_p_value: p-value adjusted for the number of methods (Holm).
        outcome: Whether the method is clearly better or worse than the baseline: the adjusted
            p-value is less than one minus the confidence. ``"different"`` for a metric without a
            direction.
    """

    method: str
    metric: str
    seeds: tuple[int, ...]
    mean: float
    std: float | None
    low: float | None
    high: float | None
    p_value: float | None
    adjusted_p_value: float | None
    outcome: Outcome | None


@dataclass(frozen=True)
class BestMethod:
    """The best method by a metric.

    Attributes:
        metric: Name of the metric.
        seeds: Seeds that all methods have a value of; the means are those over these.
        methods: The method with the best mean, or several with equal ones.
        clearly_better_than: If the baseline is best, methods that are clearly worse; otherwise the
            baseline, if it is clearly worse.
    """

    metric: str
    seeds: tuple[int, ...]
    methods: tuple[str, ...]
    clearly_better_than: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """Methods compared over seeds.

    Attributes:
        split: Images that the accuracies are of.
        num_images: Number of these images.
        num_classes: Number of classes.
        confidence: Confidence of the intervals.
        baseline: Name of the method that the others are compared with.
        seeds: All seeds.
        metrics: Metrics that were measured.
        methods: The methods.
        runs: Complete runs, by method and seed.
        failures: Runs that have failed.
        pending: Runs that are not complete, because the comparison was interrupted.
        summaries: Mean and standard deviation by method and metric.
        differences: Differences to the baseline by method and metric.
        best: The best method by each metric.
        machines: Machines, package versions and commits that the runs were trained with.
        correction: How p-values are adjusted for several methods.
        schema_version: Version of this format.
    """

    split: Literal["test", "validation"]
    num_images: int
    num_classes: int
    confidence: float
    baseline: str
    seeds: tuple[int, ...]
    metrics: tuple[ComparedMetric, ...]
    methods: tuple[ComparedMethod, ...]
    runs: tuple[ComparedRun, ...]
    failures: tuple[FailedRun, ...]
    pending: tuple[PendingRun, ...]
    summaries: tuple[MetricSummary, ...]
    differences: tuple[MetricDifference, ...]
    best: tuple[BestMethod, ...]
    machines: tuple[dict[str, Any], ...]
    correction: str = "holm"
    schema_version: int = SCHEMA_VERSION

    def summary(self, method: str, metric: str) -> MetricSummary | None:
        """Return mean and standard deviation of a metric; None if no run has it.

        Args:
            method: Name of the method.
            metric: Name of the metric.
        """
        rows = [row for row in self.summaries if (row.method, row.metric) == (method, metric)]
        return rows[0] if rows else None

    def difference(self, method: str, metric: str) -> MetricDifference | None:
        """Return the difference of a method to the baseline; None if they have no common seed.

        Args:
            method: Name of the method.
            metric: Name of the metric.
        """
        rows = [row for row in self.differences if (row.method, row.metric) == (method, metric)]
        return rows[0] if rows else None

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain values."""
        content: dict[str, Any] = json.loads(json.dumps(asdict(self), allow_nan=False))
        return {"schema_version": content.pop("schema_version")} | content


def write_comparison(path: Path, comparison: Comparison) -> None:
    """Write a comparison atomically; equal comparisons give equal bytes.

    Args:
        path: File to write or replace.
        comparison: The comparison.

    Raises:
        StorageError: The file could not be written.
    """
    write_json(path, comparison.to_json())


def read_comparison(path: Path | str) -> Comparison:
    """Read a comparison.

    Args:
        path: The file.

    Raises:
        RunFolderError: The file is missing or damaged, or of another version.
    """
    path = Path(path)
    content = RunFolder(path.parent).read_json(path.name)
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise RunFolderError(
            f"{path} must be a comparison of schema version {SCHEMA_VERSION}, got {version}"
        )
    try:
        return Comparison(
            **{
                **content,
                "seeds": tuple(content["seeds"]),
                "metrics": _entries(ComparedMetric, content["metrics"]),
                "methods": _entries(ComparedMethod, content["methods"]),
                "runs": _entries(ComparedRun, content["runs"]),
                "failures": _entries(FailedRun, content["failures"]),
                "pending": _entries(PendingRun, content["pending"]),
                "summaries": _entries(MetricSummary, content["summaries"]),
                "differences": _entries(MetricDifference, content["differences"]),
                "best": _entries(BestMethod, content["best"]),
                "machines": tuple(content["machines"]),
            }
        )
    except (KeyError, TypeError):
        raise RunFolderError(f"{path} is damaged: it is not a comparison") from None


def _entries(kind: type[EntryT], rows: list[Mapping[str, Any]]) -> tuple[EntryT, ...]:
    """Create frozen values of rows of JSON, in which lists stand for tuples."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if any(set(row) != names for row in rows):
        raise TypeError(f"rows must have the fields of {kind.__name__}")
    return tuple(
        kind(**{key: tuple(v) if isinstance(v, list) else v for key, v in row.items()})
        for row in rows
    )
