"""How well the scores of a run tell its own images from those of another source."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from protosphere.classifiers.whitening import Shrinkage
from protosphere.data.progress import Progress, no_progress, split_progress
from protosphere.evaluation.ood import OOD_SCORES, OodDetector, OodScore, fit_detector
from protosphere.evaluation.roc import detection_metrics
from protosphere.recipes.build import EvaluationSplit
from protosphere.recipes.loading import Run
from protosphere.runs.results import ResultFile
from protosphere.studies.common import reported_split, run_settings
from protosphere.studies.data_sources import ImageSource, encode_split, image_digest

_LOG = logging.getLogger("protosphere")


@dataclass(frozen=True)
class OodRow:
    """How well one score separates the images of a run, the positives, from other images.

    Attributes:
        against: Name of the source of the other images.
        fingerprint: Digest of the other images.
        score: Name of the score.
        auroc: Area under the ROC curve; None if the score has no value.
        fpr95: Fraction of the other images that is accepted where 95% of the run's are.
        aupr: Average precision.
        num_known: Number of images of the run.
        num_unknown: Number of other images.
        shared_classes: Number of class names that both have.
        absent: Why the score has no value.
    """

    against: str
    fingerprint: str
    score: OodScore
    auroc: float | None
    fpr95: float | None
    aupr: float | None
    num_known: int
    num_unknown: int
    shared_classes: int
    absent: str | None = None


def run_ood(
    run: Run,
    sources: Sequence[ImageSource],
    *,
    split: EvaluationSplit | None = None,
    num_neighbors: int = 50,
    shrinkage: Shrinkage = "auto",
    recompute: bool = False,
    progress: Progress = no_progress,
) -> tuple[OodRow, ...]:
    """Measure out-of-distribution detection, and keep the rows in the run folder.

    All images go through the run's own evaluation transform. Sources that the folder has rows of
    are not computed again; their rows get the names of these sources.

    Args:
        run: The run.
        sources: Where the other images come from.
        split: Images of the run that count as known; None takes the test images, or the validation
            images of a folder without test images.
        num_neighbors: k of the score ``knn``.
        shrinkage: Shrinkage of the covariance of the score ``mahalanobis``.
        recompute: Whether rows that the folder has of these sources are computed again.
        progress: Called with the fraction that is done.

    Returns:
        One row per source and score, in the order given; ``benchmarks/ood.json`` holds these and
        those of earlier calls.

    Raises:
        DataError: The data of the run are not there, or have no such split.
        ValueError: A source is the images of the run themselves, or those of another source.
        StorageError: The rows could not be written.
    """
    split = reported_split(run.recipe) if split is None else split
    dataset = run.dataset(split)
    known_fingerprint = image_digest(dataset.test)
    settings: dict[str, Any] = run_settings(run) | {
        "known": known_fingerprint,
        "split": split,
        "num_neighbors": num_neighbors,
        "shrinkage": shrinkage,
    }
    fingerprints = [image_digest(source.images) for source in sources]
    requested: dict[str, ImageSource] = {}
    for source, fingerprint in zip(sources, fingerprints, strict=True):
        if fingerprint == known_fingerprint:
            raise ValueError(
                f"the other images must not be the {split} images of {run.path} themselves, "
                f"got {source.name}"
            )
        if fingerprint in requested:
            raise ValueError(
                f"sources must have different images, {requested[fingerprint].name} and "
                f"{source.name} have the same"
            )
        requested[fingerprint] = source
    for source in sources:
        _warn_of_shared_classes(run, source)
    result = ResultFile(
        run.path,
        "ood",
        OodRow,
        settings,
        recompute=recompute and (lambda row: row.fingerprint in requested),
    )
    _rename(run, result, requested)
    done = {row.fingerprint for row in result.rows}
    pending = {
        fingerprint: source for fingerprint, source in requested.items() if fingerprint not in done
    }
    if pending:
        num_images = [len(dataset.train), len(dataset.test)]
        num_images += [len(source.images) for source in pending.values()]
        stages = iter(split_progress(progress, num_images))
        train = encode_split(run, dataset.train, progress=next(stages))
        detector = fit_detector(
            run.objective.head,
            train,
            dataset.train.labels.to(train.device),
            num_neighbors=num_neighbors,
            shrinkage=shrinkage,
        )
        known = detector(encode_split(run, dataset.test, progress=next(stages)))
        for fingerprint, source in pending.items():
            unknown = detector(encode_split(run, source.images, progress=next(stages)))
            result.append(*_rows(run, source, fingerprint, detector, known, unknown))
    order = {fingerprint: index for index, fingerprint in enumerate(fingerprints)}
    selected = [row for row in result.rows if row.fingerprint in order]
    return tuple(sorted(selected, key=lambda row: order[row.fingerprint]))


def _rename(run: Run, result: ResultFile[OodRow], requested: Mapping[str, ImageSource]) -> None:
    """Give rows of earlier calls the names of the sources that have their images now."""
    rows = tuple(
        replace(row, against=source.name, shared_classes=len(_shared_classes(run, source)))
        if (source := requested.get(row.fingerprint))
        else row
        for row in result.rows
    )
    if rows != result.rows:
        result.rows = rows
        result.append()


def _rows(
    run: Run,
    source: ImageSource,
    fingerprint: str,
    detector: OodDetector,
    known: dict[OodScore, Tensor],
    unknown: dict[OodScore, Tensor],
) -> list[OodRow]:
    num_known = len(next(iter(known.values())))
    rows = []
    for name in OOD_SCORES:
        metrics = detection_metrics(known[name], unknown[name]) if name in known else None
        rows.append(
            OodRow(
                against=source.name,
                fingerprint=fingerprint,
                score=name,
                auroc=None if metrics is None else metrics.auroc,
                fpr95=None if metrics is None else metrics.fpr95,
                aupr=None if metrics is None else metrics.aupr,
                num_known=num_known,
                num_unknown=len(source.images),
                shared_classes=len(_shared_classes(run, source)),
                absent=detector.absent.get(name),
            )
        )
    return rows


def _shared_classes(run: Run, source: ImageSource) -> list[str]:
    names = {name.casefold() for name in source.class_names}
    return [name for name in run.class_names if name.casefold() in names]


def _warn_of_shared_classes(run: Run, source: ImageSource) -> None:
    shared = _shared_classes(run, source)
    if shared:
        others = f" and {len(shared) - 1} more" if len(shared) > 1 else ""
        _LOG.warning(
            "%s has classes of %s (%s%s): their images count as unknown although they are not",
            source.name,
            run.path,
            shared[0],
            others,
        )
