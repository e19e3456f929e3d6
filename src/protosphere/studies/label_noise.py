"""Accuracy of a run that was trained with label noise, and how much of the noise it memorized."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from protosphere.classifiers import class_means
from protosphere.classifiers.protocol import FittedHead
from protosphere.classifiers.whitening import Shrinkage, whitened_class_means
from protosphere.data.datasets import DataError
from protosphere.data.progress import Progress, no_progress, split_progress
from protosphere.evaluation.label_noise import measure_noise
from protosphere.geometry import cosines
from protosphere.recipes import build
from protosphere.recipes.datasets import LabelNoise
from protosphere.recipes.loading import Run
from protosphere.recipes.schema import Recipe
from protosphere.runs.results import ResultFile
from protosphere.studies.common import reported_split, run_settings
from protosphere.studies.data_sources import encode_split

_CHUNK_ROWS = 8192


@dataclass(frozen=True)
class LabelNoiseRow:
    """What one classifier makes of label noise; accuracies are fractions.

    Attributes:
        classifier: ``"head"``, ``"class_means"`` or ``"whitened_class_means"``; the means are
            those of the training features with the labels that were trained on.
        noise: ``"symmetric"`` or ``"asymmetric"``.
        fraction: Fraction of wrong labels that the recipe sets.
        num_wrong: Number of training images with a wrong label.
        num_train: Number of training images.
        accuracy: Accuracy on the test images, whose labels are true.
        given_accuracy: Accuracy on the training images with the labels that were trained on.
        true_accuracy: Accuracy on the training images with their true labels.
        memorized: Fraction of the wrongly labeled training images that get their wrong label.
        corrected: Fraction of the wrongly labeled training images that get their true label.
    """

    classifier: str
    noise: str
    fraction: float
    num_wrong: int
    num_train: int
    accuracy: float
    given_accuracy: float
    true_accuracy: float
    memorized: float
    corrected: float


def run_label_noise(
    run: Run,
    *,
    shrinkage: Shrinkage = "auto",
    recompute: bool = False,
    progress: Progress = no_progress,
) -> tuple[LabelNoiseRow, ...]:
    """Measure accuracy and memorization under label noise, and keep it in the run folder.

    A folder without test images is measured on its validation images.

    Args:
        run: The run, trained with ``data.label_noise``.
        shrinkage: Shrinkage of the covariance of whitened class means, or ``"auto"``.
        recompute: Whether a result that the folder has is computed again.
        progress: Called with the fraction that is done.

    Returns:
        One row per classifier; ``benchmarks/label_noise.json`` holds them. Of a contrastive run,
        whose head is its class means, there is no row of the head.

    Raises:
        DataError: The run has no test images or no label noise.
        RunFolderError: The data are not those of the run.
    """
    noise = _noise(run.recipe, run.path)
    dataset = run.dataset(reported_split(run.recipe))
    settings: dict[str, Any] = run_settings(run) | {
        "test": dataset.test.fingerprint(),
        "shrinkage": shrinkage,
    }
    result = ResultFile(run.path, "label_noise", LabelNoiseRow, settings, recompute=recompute)
    if result.rows:
        return result.rows
    stages = split_progress(progress, [len(dataset.train), len(dataset.test)])
    train, test = (
        encode_split(run, split, progress=stage)
        for split, stage in zip((dataset.train, dataset.test), stages, strict=True)
    )
    given, true = dataset.train.labels, _true_labels(run)
    rows = []
    for name, (on_train, on_test) in _predict(run, train, test, given, shrinkage).items():
        measured = measure_noise(on_train, given, true)
        rows.append(
            LabelNoiseRow(
                classifier=name,
                noise=noise.name,
                fraction=noise.fraction,
                num_wrong=measured.num_wrong,
                num_train=len(given),
                accuracy=float((on_test == dataset.test.labels).double().mean()),
                given_accuracy=measured.given_accuracy,
                true_accuracy=measured.true_accuracy,
                memorized=measured.memorized,
                corrected=measured.corrected,
            )
        )
    result.append(*rows)
    return result.rows


def check_label_noise(recipe: Recipe) -> None:
    """Check that a recipe trains with label noise.

    Args:
        recipe: The recipe.

    Raises:
        DataError: It does not.
    """
    _noise(recipe, recipe.name)


def _noise(recipe: Recipe, name: object) -> LabelNoise:
    if recipe.data.label_noise is None:
        raise DataError(
            f"{name} must be trained with label noise (data.label_noise); its recipe has none"
        )
    return recipe.data.label_noise


def _true_labels(run: Run) -> Tensor:
    """Return the true labels of the training images."""
    data = run.recipe.data.model_copy(update={"label_noise": None})
    clean = run.recipe.model_copy(update={"data": data})
    split = reported_split(run.recipe)
    return build.load_dataset(clean, download=run.download, split=split).train.labels


def _predict(
    run: Run, train: Tensor, test: Tensor, labels: Tensor, shrinkage: Shrinkage
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the predictions of each classifier for training and test images, on the CPU."""
    head, num_classes = run.objective.head, len(run.class_names)
    labels = labels.to(train.device)
    means = class_means(train, labels, num_classes=num_classes).means.to(train)
    whitened = whitened_class_means(train, labels, num_classes=num_classes, shrinkage=shrinkage)
    classifiers: dict[str, Callable[[Tensor], Tensor]] = {
        "head": lambda features: head.predict(features.to(head.prototypes.device)),
        "class_means": lambda features: cosines(features, means).argmax(1),
        "whitened_class_means": whitened.predict,
    }
    if isinstance(head, FittedHead):
        del classifiers["head"]
    # In chunks: the scores of all training images may not fit into memory.
    return {
        name: (
            torch.cat([predict(chunk).cpu() for chunk in train.split(_CHUNK_ROWS)]),
            torch.cat([predict(chunk).cpu() for chunk in test.split(_CHUNK_ROWS)]),
        )
        for name, predict in classifiers.items()
    }
