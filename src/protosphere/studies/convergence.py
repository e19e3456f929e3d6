"""How fast runs reach neural collapse: both parts of the paper's Table 7, from logged metrics."""

import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from protosphere.metrics.convergence import (
    Never,
    Series,
    Time,
    collapse_thresholds,
    compare_to_baseline,
    convergence_time,
    moving_average,
    percent,
)
from protosphere.recipes import build
from protosphere.recipes.loading import read_recipe
from protosphere.recipes.schema import Recipe
from protosphere.report.paper import paper_value
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.arrays import read_arrays
from protosphere.runs.metadata import DataMetadata, read_class_names
from protosphere.runs.results import ResultFile
from protosphere.studies.common import method_name

# In the order of the paper's table.
CONVERGENCE_METRICS = (
    "weight_instance_alignment",
    "weight_class_alignment",
    "weights_effective_rank",
    "intra_effective_rank",
    "inter_effective_rank",
)
_PAPER_TABLE = "table7_convergence_percent"
# Keys of a recipe's data that do not change which images are trained on.
_WITHOUT_EFFECT = {"root", "workers", "in_memory", "sampler"}
# A percentage, "never", or None where it could not be computed.
Percentage = float | str | None


@dataclass(frozen=True)
class TrainingLog:
    """What a run has logged about its convergence.

    Attributes:
        path: The run folder.
        recipe: The recipe.
        data: What the run has recorded about its data.
        class_names: Class names.
        dim: Dimension of the features.
        length: Epoch of the last evaluation.
        series: Epoch and value of each metric that was logged.
        missing: Why a metric has no series.
    """

    path: Path
    recipe: Recipe
    data: DataMetadata
    class_names: tuple[str, ...]
    dim: int
    length: int
    series: dict[str, Series] = field(repr=False)
    missing: dict[str, str]

    @property
    def method(self) -> str:
        """The loss, as the paper's tables name it."""
        return method_name(self.recipe)

    @property
    def is_complete(self) -> bool:
        """Whether the run was evaluated after the last epoch of its recipe."""
        return self.length == self.recipe.schedule.epochs

    @property
    def has_paper_values(self) -> bool:
        """Whether the run is of the paper's setting: the 100 classes of CIFAR-100, balanced."""
        data = self.recipe.data
        is_cifar100 = "cifar100" in (data.source, self.recipe.name.split("-")[0])
        is_balanced = len(set(self.data.class_counts or (1,))) == 1
        is_changed = data.class_groups is not None or data.label_noise is not None
        return is_cifar100 and len(self.class_names) == 100 and is_balanced and not is_changed

    @property
    def digest(self) -> str:
        """A digest of the series."""
        return hashlib.sha256(json.dumps(self.series).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ConvergenceRow:
    """When one metric of a run converges. Percentages are numbers from 0 to 100 or ``"never"``.

    Attributes:
        metric: Name of the metric.
        final: Its last value; None if it was not logged.
        threshold: Value at 95% of neural collapse.
        side: Whether the metric must be ``"at least"`` or ``"at most"`` the threshold.
        percent_to_collapse: Percentage of the run until 95% of neural collapse.
        baseline_final: Last value of the baseline, which the second part asks for.
        percent_of_baseline: Time until then in percent of the time of the baseline itself.
        percent_of_run: Time until then in percent of the run.
        baseline_percent_of_run: Time of the baseline itself in percent of its run.
        paper_percent_to_collapse: The paper's first part, for runs of its setting.
        paper_percent_of_baseline: The paper's second part, for runs of its setting and a baseline
            with cross-entropy.
        missing: Why numbers are missing.
    """

    metric: str
    final: float | None
    threshold: float
    side: str
    percent_to_collapse: Percentage
    baseline_final: float | None = None
    percent_of_baseline: Percentage = None
    percent_of_run: Percentage = None
    baseline_percent_of_run: Percentage = None
    paper_percent_to_collapse: float | None = None
    paper_percent_of_baseline: float | None = None
    missing: str | None = None


@dataclass(frozen=True)
class CurveRow:
    """One point of a logged metric.

    Attributes:
        metric: Name of the metric.
        epoch: Epoch of the evaluation.
        value: Value of the metric on the training images.
        moving_average: Moving average of the values, with a time constant of 1% of the run.
    """

    metric: str
    epoch: float
    value: float
    moving_average: float


def read_log(path: Path | str) -> TrainingLog:
    """Read what a run has logged; neither its data nor its weights are needed.

    Args:
        path: The run folder.

    Raises:
        RunFolderError: The folder is not a run, or has no evaluations.
        RecipeError: Its recipe is not valid.
    """
    folder = RunFolder(path)
    if not folder.recipe.is_file():
        raise RunFolderError(f"{folder.path} is not a run folder: it has no recipe")
    recipe = read_recipe(str(folder.recipe))
    records = [record for record in folder.records() if record.get("kind") == "evaluation"]
    if not records:
        raise RunFolderError(f"{folder.path} must have evaluations in metrics.jsonl; it has none")
    data, class_names = DataMetadata.read(folder), tuple(read_class_names(folder))
    series: dict[str, Series] = {}
    missing: dict[str, str] = {}
    for metric in CONVERGENCE_METRICS:
        points = [(record["epoch"], record[metric]) for record in records if metric in record]
        unlogged = "not logged"
        if recipe.evaluation.metrics == "cheap":
            unlogged += " (the recipe has evaluation.metrics: cheap)"
        unfinished = [epoch for epoch, value in points if not math.isfinite(value)]
        if not points:
            missing[metric] = unlogged
        elif unfinished:
            missing[metric] = f"not finite at epoch {unfinished[0]}"
        else:
            series[metric] = points
    return TrainingLog(
        path=folder.path,
        recipe=recipe,
        data=data,
        class_names=class_names,
        dim=_find_dim(folder, recipe, data, len(class_names)),
        length=records[-1]["epoch"],
        series=series,
        missing=missing,
    )


def check_baseline(log: TrainingLog, baseline: TrainingLog) -> None:
    """Check that a baseline was trained on the data of a run.

    Other images of the same data are accepted: those of a validation split depend on the seed.

    Args:
        log: The run.
        baseline: The baseline.

    Raises:
        ValueError: The baseline has other classes or another dataset.
    """
    num_classes, others = len(log.class_names), len(baseline.class_names)
    if num_classes != others:
        raise ValueError(
            f"a baseline must have the classes of the run: {log.path} has {num_classes} classes "
            f"and {baseline.path} has {others}"
        )
    same_images = log.data.train_fingerprint == baseline.data.train_fingerprint
    same_data = _describe_data(log) == _describe_data(baseline)
    if log.class_names != baseline.class_names or not (same_images or same_data):
        raise ValueError(
            f"a baseline must be trained on the data of the run: {log.path} and {baseline.path} "
            "were trained on different data"
        )


def run_convergence(
    log: TrainingLog, *, baseline: TrainingLog | None = None, recompute: bool = False
) -> tuple[ConvergenceRow, ...]:
    """Compute when the metrics of a run converge, and keep rows and curves in its folder.

    Part I: percentage of the run until the moving average of a metric enters 95% of neural
    collapse and stays there. Part II: 100·t/t_B, t being when the run reaches the last value of the
    baseline and t_B when the baseline's own average comes within 2% of it, each to stay.

    Args:
        log: The run.
        baseline: The baseline, such as a run with cross-entropy; None leaves out part II.
        recompute: Whether the result in the folder is replaced even if nothing has changed.

    Returns:
        One row per metric; ``benchmarks/convergence.json`` and
        ``benchmarks/convergence_curves.json`` hold rows and curves.

    Raises:
        ValueError: The baseline is of other data.
        StorageError: The result could not be written.
    """
    if baseline is not None:
        check_baseline(log, baseline)
    settings: dict[str, Any] = {
        "recipe": log.recipe.name,
        "log": log.digest,
        "epochs": log.length,
        "classes": len(log.class_names),
        "dim": log.dim,
    }
    curves = ResultFile(log.path, "convergence_curves", CurveRow, settings, recompute=recompute)
    if not curves.rows:
        curves.append(*_curves(log))
    settings["baseline"] = None if baseline is None else baseline.digest
    result = ResultFile(log.path, "convergence", ConvergenceRow, settings, recompute=recompute)
    if not result.rows:
        result.append(*_rows(log, baseline))
    return result.rows


def _rows(log: TrainingLog, baseline: TrainingLog | None) -> list[ConvergenceRow]:
    thresholds = collapse_thresholds(len(log.class_names), log.dim)
    rows = []
    for metric in CONVERGENCE_METRICS:
        threshold, series = thresholds[metric], log.series.get(metric)
        missing = [] if series is not None else [f"{metric}: {log.missing[metric]}"]
        if baseline is not None and metric in baseline.missing:
            missing.append(f"{metric} of the baseline: {baseline.missing[metric]}")
        to_collapse: Time | None = None
        if series is not None:
            to_collapse = percent(
                convergence_time(series, threshold, length=log.length), log.length
            )
        rows.append(
            ConvergenceRow(
                metric=metric,
                final=None if series is None else float(series[-1][1]),
                threshold=float(threshold.value),
                side=threshold.side,
                percent_to_collapse=_percentage(to_collapse),
                missing="; ".join(missing) or None,
                **_compare(log, baseline, metric, threshold.side),
                **_paper(log, baseline, metric),
            )
        )
    return rows


def _compare(
    log: TrainingLog,
    baseline: TrainingLog | None,
    metric: str,
    side: Literal["at least", "at most"],
) -> dict[str, Any]:
    """The columns of part II."""
    reference = None if baseline is None else baseline.series.get(metric)
    if baseline is None or reference is None:
        return {}
    # Without a series of its own, what is said about the baseline is still known.
    series = log.series.get(metric)
    compared = compare_to_baseline(reference if series is None else series, reference, side)
    columns: dict[str, Any] = {
        "baseline_final": float(compared.target),
        "baseline_percent_of_run": _percentage(percent(compared.baseline_time, baseline.length)),
    }
    if series is not None:
        columns["percent_of_baseline"] = _percentage(compared.percent_of_baseline)
        columns["percent_of_run"] = _percentage(compared.percent_of_run)
    return columns


def _paper(log: TrainingLog, baseline: TrainingLog | None, metric: str) -> dict[str, float | None]:
    if not log.has_paper_values:
        return {}
    columns = {
        "paper_percent_to_collapse": paper_value(
            _PAPER_TABLE, "to_95_percent_nc", log.method, metric
        )
    }
    # The paper's baseline is cross-entropy.
    if baseline is None or baseline.method == "ce":
        value = paper_value(_PAPER_TABLE, "to_ce_final", log.method, metric)
        columns["paper_percent_of_baseline"] = value
    return columns


def _curves(log: TrainingLog) -> list[CurveRow]:
    return [
        CurveRow(metric, float(epoch), float(value), float(average))
        for metric, series in log.series.items()
        for (epoch, value), (_, average) in zip(
            series, moving_average(series, length=log.length), strict=True
        )
    ]


def _percentage(time: Time | None) -> Percentage:
    """A percentage as JSON can hold it; a baseline that starts where it ends has no time."""
    if time is None or isinstance(time, Never):
        return None if time is None else str(time)
    return float(time) if math.isfinite(time) else "infinite"


def _find_dim(folder: RunFolder, recipe: Recipe, data: DataMetadata, num_classes: int) -> int:
    """The dimension of the features, from the arrays of the last evaluation or from the model."""
    try:
        return int(read_arrays(folder)["class_means"].shape[1])
    except (RunFolderError, KeyError, IndexError):
        objective = build.create_objective(
            recipe,
            num_classes=num_classes,
            in_channels=data.channels,
            class_counts=data.class_counts,
            pretrained="none",
        )
        return int(objective.head.prototypes.shape[1])


def _describe_data(log: TrainingLog) -> dict[str, Any]:
    return log.recipe.data.model_dump(exclude=_WITHOUT_EFFECT)
