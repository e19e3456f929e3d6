"""Accuracy of a run on many-, medium- and few-shot classes, by its head and by class means."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from protosphere.classifiers.whitening import Shrinkage
from protosphere.data.datasets import DataError
from protosphere.data.progress import Progress, no_progress, split_progress
from protosphere.data.splits import Split
from protosphere.evaluation.inference import LabeledFeatures
from protosphere.evaluation.long_tail import (
    ClassifierResult,
    class_accuracies,
    classify_long_tail,
    group_accuracy,
    shot_groups,
)
from protosphere.recipes import build
from protosphere.recipes.loading import Run
from protosphere.recipes.schema import Recipe
from protosphere.report.paper import paper_value
from protosphere.runs.results import ResultFile
from protosphere.studies.common import method_of, reported_split, run_settings
from protosphere.studies.data_sources import encode_split


@dataclass(frozen=True)
class LongTailRow:
    """The accuracy of one classifier on one group of classes, or on one class.

    Attributes:
        classifier: Name of the classifier; see
            :func:`protosphere.evaluation.long_tail.classify_long_tail`.
        group: ``"all"``, ``"many"``, ``"medium"`` or ``"few"`` for the classes with so many
            training images; ``"balanced"`` for the mean over classes; ``"class"`` for one class.
        class_name: Name of the class, for group ``"class"``.
        num_classes: Number of classes of the group.
        train_images: Number of training images of the group, by their true labels.
        test_images: Number of test images of the group.
        accuracy: Fraction of the test images that is classified correctly.
        temperature: Temperature of the logits; only for group ``"all"``, None for a classifier
            without one.
        nll: Mean negative log-likelihood; only for group ``"all"``.
        ece: Expected calibration error; only for group ``"all"``.
    """

    classifier: str
    group: str
    class_name: str | None
    num_classes: int
    train_images: int
    test_images: int
    accuracy: float
    temperature: float | None = None
    nll: float | None = None
    ece: float | None = None


def run_long_tail(
    run: Run,
    *,
    logit_adjustment: float = 1.0,
    shrinkage: Shrinkage = "auto",
    recompute: bool = False,
    progress: Progress = no_progress,
) -> tuple[LongTailRow, ...]:
    """Measure accuracy by the number of training images, and keep it in the run folder.

    A run that was trained with logit adjustment, class weights or another sampler than the uniform
    one has no head adjusted afterwards: it would be adjusted twice. The temperature of class means
    is calibrated on the validation images of the run, or on halves of its test images if it has
    none. A folder without test images is measured on its validation images.

    Args:
        run: The run, trained with ``data.long_tail`` or on classes of very different size.
        logit_adjustment: Factor of the log class frequency that is subtracted from the logits of
            the head; greater than 0.
        shrinkage: Shrinkage of the covariance of whitened class means, or ``"auto"``.
        recompute: Whether a result that the folder has is computed again.
        progress: Called with the fraction that is done.

    Returns:
        The rows; ``benchmarks/long_tail.json`` holds them. A group without classes or without test
        images has no row.

    Raises:
        ValueError: The logit adjustment is not a positive number.
        DataError: The run has no test images, or its classes are all of one group.
        RunFolderError: The data are not those of the run.
    """
    if not 0 < logit_adjustment < math.inf:
        raise ValueError(f"logit_adjustment must be a positive number, got {logit_adjustment}")
    split = reported_split(run.recipe)
    dataset = run.dataset(split)
    is_clean = run.recipe.data.label_noise is None
    counts = (
        build.count_classes(dataset) if is_clean else _true_class_counts(run.recipe, run.download)
    )
    if run.recipe.data.long_tail is None:
        _check_groups(run.path, counts)
    has_other = run.recipe.data.has_validation and split == "test"
    validation = run.dataset("validation").test if has_other else None
    is_adjusted = _is_adjusted(run.recipe)
    settings: dict[str, Any] = run_settings(run) | {
        "test": dataset.test.fingerprint(),
        "validation": None if validation is None else validation.fingerprint(),
        "logit_adjustment": None if is_adjusted else logit_adjustment,
        "shrinkage": shrinkage,
    }
    result = ResultFile(run.path, "long_tail", LongTailRow, settings, recompute=recompute)
    if result.rows:
        return result.rows
    splits = [dataset.train, dataset.test, *([] if validation is None else [validation])]
    stages = split_progress(progress, [len(split) for split in splits])
    features = [_encode(run, *pair) for pair in zip(splits, stages, strict=True)]
    rows: list[LongTailRow] = []
    for measured in classify_long_tail(
        run.objective.head,
        features[0],
        features[1],
        validation=None if validation is None else features[2],
        logit_adjustment=settings["logit_adjustment"],
        shrinkage=shrinkage,
    ):
        rows += _rows(measured, features[1], counts, run.class_names)
    result.append(*rows)
    return result.rows


def paper_accuracy(run: Run) -> float | None:
    """Return the paper's accuracy for the head of a long-tailed run in percent.

    Args:
        run: The run; its dataset is CIFAR-10 or CIFAR-100 by its source, or by the name of its
            recipe if the images come from a file of arrays.
    """
    data = run.recipe.data
    source = data.source if data.source != "arrays" else run.recipe.name.partition("-")[0]
    if data.class_groups is not None or data.label_noise is not None:
        return None
    if source != f"cifar{len(run.class_names)}" or data.long_tail is None:
        return None
    return paper_value("table6_long_tail", method_of(run), f"{source}_lt_{data.long_tail:g}")


def check_long_tail(recipe: Recipe, *, download: bool = False) -> None:
    """Check that a recipe trains on classes of very different size.

    Args:
        recipe: The recipe. Its data are loaded if it does not set ``data.long_tail``.
        download: Whether missing data are downloaded.

    Raises:
        DataError: The classes are all many-shot, all medium-shot or all few-shot ones.
    """
    if recipe.data.long_tail is None:
        _check_groups(recipe.name, _true_class_counts(recipe, download))


def _is_adjusted(recipe: Recipe) -> bool:
    """Whether training makes up for the class frequencies."""
    loss = recipe.loss
    return (
        bool(getattr(loss, "logit_adjustment", 0.0))
        or getattr(loss, "class_weights", None) is not None
        or recipe.data.sampler != "uniform"
    )


def _true_class_counts(recipe: Recipe, download: bool) -> tuple[int, ...]:
    """Return the number of training images of each class by their true labels."""
    data = recipe.data.model_copy(update={"label_noise": None})
    clean = recipe.model_copy(update={"data": data})
    return build.count_classes(
        build.load_dataset(clean, download=download, split=reported_split(recipe))
    )


def _check_groups(name: object, counts: tuple[int, ...]) -> None:
    groups = shot_groups(counts)
    if len(groups) == 1:
        (group,) = groups
        raise DataError(
            f"the classes of {name} must be of different size: all have {min(counts)} to "
            f"{max(counts)} training images, so they are all {group}-shot classes (a recipe with "
            "data.long_tail=0.02 trains on a long tail)"
        )


def _encode(run: Run, split: Split, progress: Progress) -> LabeledFeatures:
    features = encode_split(run, split, progress=progress)
    return LabeledFeatures(features, split.labels.to(features.device))


def _rows(
    result: ClassifierResult,
    test: LabeledFeatures,
    counts: tuple[int, ...],
    class_names: tuple[str, ...],
) -> Iterator[LongTailRow]:
    num_classes = len(counts)
    tested = test.labels.cpu().bincount(minlength=num_classes).tolist()
    groups: dict[str, list[int]] = {"all": list(range(num_classes))}
    for name, classes in (groups | shot_groups(counts)).items():
        accuracy = group_accuracy(result.predictions, test.labels, classes)
        if accuracy is None:
            continue
        of_all = (result.temperature, result.nll, result.ece) if name == "all" else ()
        sizes = (len(classes), sum(counts[i] for i in classes), sum(tested[i] for i in classes))
        yield LongTailRow(result.classifier, name, None, *sizes, accuracy, *of_all)
    accuracies = class_accuracies(result.predictions, test.labels, num_classes=num_classes)
    known = [accuracy for accuracy in accuracies if accuracy is not None]
    yield LongTailRow(
        result.classifier,
        "balanced",
        None,
        len(known),
        sum(counts),
        sum(tested),
        sum(known) / len(known),
    )
    for index, accuracy in enumerate(accuracies):
        if accuracy is not None:
            sizes = (1, counts[index], tested[index])
            yield LongTailRow(result.classifier, "class", class_names[index], *sizes, accuracy)
