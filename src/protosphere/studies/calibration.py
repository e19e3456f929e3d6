"""How well calibrated the head and the class means of a run are, before and after scaling."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from protosphere.classifiers import class_means
from protosphere.classifiers.protocol import FittedHead
from protosphere.classifiers.scores import cosine_logits
from protosphere.data.progress import Progress, no_progress, split_progress
from protosphere.data.splits import DataError, Split
from protosphere.evaluation.calibration import Calibration, measure_calibration
from protosphere.evaluation.temperature_scaling import TemperatureFit, fit_temperature
from protosphere.recipes.loading import Run
from protosphere.runs.results import ResultFile
from protosphere.studies.common import reported_split, run_settings
from protosphere.studies.data_sources import encode_split

CalibratedClassifier = Literal["head", "class_means"]
State = Literal["before", "after"]
# Of class means whose run has a head without a temperature; the default of MeanClassifier.
_TEMPERATURE = 0.1


@dataclass(frozen=True)
class CalibrationRow:
    """The calibration of one classifier before or after temperature scaling.

    Attributes:
        classifier: ``"head"``, or ``"class_means"`` of the training features on the sphere.
        state: ``"before"`` or ``"after"`` temperature scaling.
        temperature: Number that the logits are divided by.
        bound: Which bound the fitted temperature lies on; ``"none"`` for a true minimum.
        accuracy: Fraction of correct predictions, which scaling does not change.
        nll: Mean negative log-likelihood.
        brier: Mean squared error of the probabilities, summed over classes.
        ece: Expected calibration error with bins of equal width.
        adaptive_ece: Calibration error with bins of equal mass.
        fitted_on: Images that the temperature is fitted on.
        reported_on: Images that all numbers are of.
        num_fitted: Number of images that the temperature is fitted on.
        num_reported: Number of images that the numbers are of.
    """

    classifier: CalibratedClassifier
    state: State
    temperature: float
    bound: str
    accuracy: float
    nll: float
    brier: float
    ece: float
    adaptive_ece: float
    fitted_on: str
    reported_on: str
    num_fitted: int
    num_reported: int


@dataclass(frozen=True)
class ReliabilityRow:
    """One bin of a reliability diagram.

    Attributes:
        classifier: The classifier.
        state: ``"before"`` or ``"after"`` temperature scaling.
        lower: Lower end of the bin; a confidence must be greater.
        upper: Upper end of the bin, which belongs to it.
        num_samples: Number of images whose confidence is in the bin.
        confidence: Their mean confidence; None without images.
        accuracy: Fraction of them that is classified correctly; None without images.
    """

    classifier: CalibratedClassifier
    state: State
    lower: float
    upper: float
    num_samples: int
    confidence: float | None
    accuracy: float | None


class CalibrationResult(NamedTuple):
    """The result of :func:`run_calibration`.

    Attributes:
        rows: Two rows per classifier, before and after temperature scaling.
        reliability: The bins of their reliability diagrams.
    """

    rows: tuple[CalibrationRow, ...]
    reliability: tuple[ReliabilityRow, ...]


class _Images(NamedTuple):
    """Images for fitting and images for reporting, which are never the same.

    ``halves`` is None for two splits; otherwise both are one split, divided by these indices.
    """

    fit: Split
    report: Split
    halves: tuple[Tensor, Tensor] | None
    fitted_on: str
    reported_on: str


def run_calibration(
    run: Run,
    *,
    seed: int = 0,
    num_bins: int = 15,
    recompute: bool = False,
    progress: Progress = no_progress,
) -> CalibrationResult:
    """Measure calibration before and after temperature scaling, and keep it in the run folder.

    The temperature is fitted on the validation images of the run and everything is reported on its
    test images. A run without validation images is fitted on one random half of its test images
    and reported on the other.

    Args:
        run: The run.
        seed: Seed of the halves.
        num_bins: Number of bins of calibration errors and reliability diagrams.
        recompute: Whether a result that the folder has is computed again.
        progress: Called with the fraction that is done.

    Returns:
        Rows of the head and of the class means; ``benchmarks/calibration.json`` and
        ``benchmarks/reliability.json`` hold them. Of a contrastive run, whose head is its class
        means, there are only these.

    Raises:
        DataError: The data of the run are not there, or there are fewer than two test images.
    """
    images = _choose_images(run, seed)
    settings: dict[str, Any] = run_settings(run) | {
        "fitted_on": images.fitted_on,
        "fit": images.fit.fingerprint(),
        "report": images.report.fingerprint(),
        "seed": None if images.halves is None else seed,
        "num_bins": num_bins,
    }
    result = ResultFile(run.path, "calibration", CalibrationRow, settings, recompute=recompute)
    tables = ResultFile(run.path, "reliability", ReliabilityRow, settings, recompute=recompute)
    if result.rows and tables.rows:
        return CalibrationResult(result.rows, tables.rows)
    rows: list[CalibrationRow] = []
    bins: list[ReliabilityRow] = []
    for measured in _measure(run, images, num_bins, progress):
        rows += measured.rows
        bins += measured.reliability
    # What an interrupted call has left is replaced.
    tables = ResultFile(run.path, "reliability", ReliabilityRow, settings, recompute=True)
    result = ResultFile(run.path, "calibration", CalibrationRow, settings, recompute=True)
    tables.append(*bins)
    result.append(*rows)
    return CalibrationResult(result.rows, tables.rows)


def _choose_images(run: Run, seed: int) -> _Images:
    split = reported_split(run.recipe)
    images = run.dataset(split).test
    if split == "validation" or not run.recipe.data.has_validation:
        return _halves(images, split, seed)
    validation = run.dataset("validation").test
    return _Images(validation, images, None, "validation images", "test images")


def _halves(images: Split, name: str, seed: int) -> _Images:
    if len(images) < 2:
        raise DataError(
            f"there must be at least two {name} images, to fit a temperature on some of them and "
            f"report on the others; got {len(images)}"
        )
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    half = len(images) // 2
    halves = order[:half].sort().values, order[half:].sort().values
    return _Images(images, images, halves, f"half of the {name} images", "the other half")


def _measure(
    run: Run, images: _Images, num_bins: int, progress: Progress
) -> Iterator[CalibrationResult]:
    train = run.dataset(None).train
    splits = [train, images.fit] + ([images.report] if images.halves is None else [])
    stages = split_progress(progress, [len(split) for split in splits])
    features = [
        encode_split(run, split, progress=stage)
        for split, stage in zip(splits, stages, strict=True)
    ]
    device = features[0].device
    head = run.objective.head
    means = class_means(
        features[0], train.labels.to(device), num_classes=len(run.class_names)
    ).means.nan_to_num()
    # A learned temperature is a tensor with a gradient.
    temperature = float(torch.as_tensor(getattr(head, "temperature", _TEMPERATURE)).detach())
    with torch.no_grad():
        logits: dict[CalibratedClassifier, list[Tensor]] = {
            "class_means": [
                cosine_logits(one, means.to(one), temperature=temperature) for one in features[1:]
            ]
        }
        if not isinstance(head, FittedHead):
            on_head = head.prototypes.device
            own = [head(one.to(on_head)).to(device) for one in features[1:]]
            logits = {"head": own, **logits}
    labels = [split.labels.to(device) for split in splits[1:]]
    for name, values in logits.items():
        fit, report = _divide(values, labels, images.halves)
        fitted = fit_temperature(*fit)
        yield _result(name, images, fitted, len(fit[1]), report, num_bins)


def _divide(
    logits: list[Tensor], labels: list[Tensor], halves: tuple[Tensor, Tensor] | None
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Logits and labels for fitting, and for reporting."""
    if halves is None:
        return (logits[0], labels[0]), (logits[1], labels[1])
    first, second = (half.to(labels[0].device) for half in halves)
    return (logits[0][first], labels[0][first]), (logits[0][second], labels[0][second])


def _result(
    name: CalibratedClassifier,
    images: _Images,
    fitted: TemperatureFit,
    num_fitted: int,
    report: tuple[Tensor, Tensor],
    num_bins: int,
) -> CalibrationResult:
    measured: Mapping[State, tuple[TemperatureFit, Calibration]] = {
        "before": _measure_at(TemperatureFit(1.0, 0.0, "none"), report, num_bins),
        "after": _measure_at(fitted, report, num_bins),
    }
    rows = tuple(
        CalibrationRow(
            classifier=name,
            state=state,
            temperature=fit.temperature,
            bound=fit.bound,
            **calibration.metrics._asdict(),
            fitted_on=images.fitted_on,
            reported_on=images.reported_on,
            num_fitted=num_fitted,
            num_reported=len(report[1]),
        )
        for state, (fit, calibration) in measured.items()
    )
    bins = tuple(
        ReliabilityRow(name, state, *one)
        for state, (_, calibration) in measured.items()
        for one in calibration.reliability
    )
    return CalibrationResult(rows, bins)


def _measure_at(
    fit: TemperatureFit, report: tuple[Tensor, Tensor], num_bins: int
) -> tuple[TemperatureFit, Calibration]:
    measured = measure_calibration(*report, temperature=fit.temperature, num_bins=num_bins)
    return fit, measured
