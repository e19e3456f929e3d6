"""Evaluation of a trained objective: accuracies, calibration, collapse metrics and arrays."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Integer
from numpy.typing import NDArray
from torch import Tensor

from protosphere.classifiers import FittedHead, class_means, empty_means
from protosphere.data.loaders import Loader
from protosphere.data.progress import no_progress
from protosphere.evaluation.calibration import (
    adaptive_calibration_error,
    expected_calibration_error,
)
from protosphere.evaluation.geometry_arrays import geometry_arrays
from protosphere.evaluation.inference import (
    Outputs,
    collect_outputs,
    iterate_outputs,
    measuring_device,
    with_progress,
)
from protosphere.geometry import normalize
from protosphere.metrics import CATALOG, measure_detailed
from protosphere.metrics.definition import Sign
from protosphere.metrics.verdicts import Verdict, verdicts
from protosphere.training import Objective


class Evaluation(NamedTuple):
    """The result of :func:`evaluate`.

    Attributes:
        metrics: ``accuracy``, ``balanced_accuracy``, ``loss``, ``ece``, ``adaptive_ece``,
            ``nearest_mean_accuracy`` and ``train_accuracy``, fractions but for the loss, and the
            collapse metrics by name. A metric that could not be computed is absent.
        arrays: Arrays for plots; see :func:`protosphere.evaluation.geometry_arrays`.
        verdicts: Assessment of the four conditions of neural collapse, NC1 to NC4.
    """

    metrics: dict[str, float]
    arrays: dict[str, NDArray[Any]]
    verdicts: tuple[Verdict, ...] = ()


class _TrainingResults(NamedTuple):
    """What is measured on the training images."""

    means: Float[Tensor, "classes dim"]
    accuracy: dict[str, float]
    collapse: dict[str, float]
    absent: dict[str, str]
    sign: Sign


def evaluate(
    objective: Objective,
    train: Loader,
    test: Loader,
    *,
    metrics: Literal["all", "cheap"] = "all",
    batch_size: int = 512,
    progress: Callable[[float], None] = no_progress,
) -> Evaluation:
    """Evaluate an objective on training and evaluation images, without augmentation.

    The collapse metrics are those of the training features on the unit sphere. On the evaluation
    images are computed: ``accuracy``; ``balanced_accuracy``, the mean over the classes that have
    images of the accuracy within the class; ``loss``, the cross-entropy of the softmax of the
    head's logits, whatever loss was trained; ``ece`` and ``adaptive_ece``, the calibration errors
    of that softmax with 15 bins of equal width and of equal mass; ``nearest_mean_accuracy``, with
    the class means of the training features. A :class:`~protosphere.classifiers.FittedHead` is
    fitted to the training images first.

    Args:
        objective: The objective, on the device of the loaders. Its modes are restored at the end.
        train: Training images.
        test: Images of the split that is evaluated, test or validation.
        metrics: ``"all"`` collapse metrics, which holds all training features in memory, or only
            the ``"cheap"`` ones, which are computed batch by batch.
        batch_size: Number of images in a batch.
        progress: Called with the fraction of images that is done.
    """
    train_fraction = len(train) / (len(train) + len(test))

    def train_progress(fraction: float) -> None:
        progress(train_fraction * fraction)

    def test_progress(fraction: float) -> None:
        progress(train_fraction + (1 - train_fraction) * fraction)

    measure_training = {"all": _measure_all, "cheap": _measure_cheap}[metrics]
    training = measure_training(objective, train, batch_size, train_progress)
    outputs = collect_outputs(objective, test, batch_size=batch_size, progress=test_progress)
    correct = outputs.predictions == outputs.labels
    prototypes = objective.head.prototypes.detach()
    num_classes, dim = prototypes.shape
    values = {
        "accuracy": _fraction(correct),
        "balanced_accuracy": _balanced_accuracy(correct, outputs.labels, num_classes),
        # To the CPU first: not every device has float64.
        "loss": float(outputs.losses.cpu().double().mean()),
        "ece": expected_calibration_error(outputs.confidences, correct),
        "adaptive_ece": adaptive_calibration_error(outputs.confidences, correct),
        "nearest_mean_accuracy": _nearest_mean_accuracy(outputs, training.means),
    }
    judged = verdicts(
        training.collapse,
        training.absent,
        num_classes,
        dim,
        sign=training.sign,
        num_samples=len(train),
    )
    return Evaluation(
        values | training.accuracy | training.collapse,
        geometry_arrays(training.means, prototypes, outputs),
        tuple(judged),
    )


def fit_head(
    objective: Objective,
    loader: Loader,
    *,
    batch_size: int = 512,
    progress: Callable[[float], None] = no_progress,
) -> None:
    """Fit the head of an objective to the class means of the images of a loader.

    Args:
        objective: An objective whose head is a :class:`~protosphere.classifiers.FittedHead`.
        loader: Training images; they are not augmented.
        batch_size: Number of images in a batch.
        progress: Called with the fraction of images that is done.

    Raises:
        TypeError: The head is trained, not fitted.
    """
    head = objective.head
    if not isinstance(head, FittedHead):
        raise TypeError(
            "only a head with set_means can be fitted, such as MeanClassifier; "
            f"got {type(head).__name__}"
        )
    means = empty_means(*head.prototypes.shape, device=measuring_device(loader.device))
    batches = iterate_outputs(objective, loader, batch_size=batch_size)
    for batch in with_progress(batches, len(loader), progress):
        means = means.add(batch.features, batch.labels)
    head.set_means(means.means)


def _measure_all(
    objective: Objective, loader: Loader, batch_size: int, progress: Callable[[float], None]
) -> _TrainingResults:
    """Measure all metrics on features that are held in memory."""
    head = objective.head
    outputs = collect_outputs(objective, loader, batch_size=batch_size, progress=progress)
    predictions = outputs.predictions
    if isinstance(head, FittedHead):
        num_classes = len(head.prototypes)
        means = class_means(outputs.features, outputs.labels, num_classes=num_classes)
        head.set_means(means.means)
        predictions = head.predict(outputs.features.to(head.prototypes.device)).to(
            outputs.labels.device
        )
    prototypes = head.prototypes.detach().to(outputs.features.device)
    measurement = measure_detailed(outputs.features, outputs.labels, prototypes)
    accuracy = {"train_accuracy": _fraction(predictions == outputs.labels)}
    return _TrainingResults(
        measurement.statistics.means,
        accuracy,
        measurement.values,
        measurement.absent,
        measurement.sign,
    )


def _measure_cheap(
    objective: Objective, loader: Loader, batch_size: int, progress: Callable[[float], None]
) -> _TrainingResults:
    """Measure the cheap metrics batch by batch."""
    # Importing torchmetrics takes longer than importing torch.
    from protosphere.metrics import NeuralCollapse  # noqa: PLC0415

    head = objective.head
    num_classes, dim = head.prototypes.shape

    def prototypes() -> Tensor:
        return head.prototypes.detach().to(device)

    device = measuring_device(loader.device)
    collapse = NeuralCollapse(dim, num_classes, prototypes, metrics="cheap").to(device)
    num_correct = torch.zeros((), dtype=torch.long, device=device)
    batches = iterate_outputs(objective, loader, batch_size=batch_size)
    for batch in with_progress(batches, len(loader), progress):
        collapse.update(batch.features, batch.labels)
        num_correct += (batch.predictions == batch.labels).sum()
    means = collapse.statistics.means
    if isinstance(head, FittedHead):
        # The predictions were made with other class means, so there is no accuracy to report.
        head.set_means(means)
        accuracy = {}
    else:
        accuracy = {"train_accuracy": int(num_correct) / len(loader)}
    computed = {name: float(value) for name, value in collapse.compute().items()}
    values = {name: value for name, value in computed.items() if not math.isnan(value)}
    # The sign of the features only decides what is attainable, which nothing here reports.
    unselected = dict.fromkeys(CATALOG, "not among the cheap metrics")
    return _TrainingResults(means, accuracy, values, unselected | collapse.absent, "any")


def _balanced_accuracy(
    correct: Bool[Tensor, "samples"], labels: Integer[Tensor, "samples"], num_classes: int
) -> float:
    labels, correct = labels.cpu(), correct.cpu()
    counts = torch.bincount(labels, minlength=num_classes).double()
    num_correct = torch.bincount(labels[correct], minlength=num_classes)
    return float((num_correct[counts > 0] / counts[counts > 0]).mean())


def _nearest_mean_accuracy(outputs: Outputs, means: Float[Tensor, "classes dim"]) -> float:
    unit = normalize(outputs.features)
    return _fraction(torch.cdist(unit, means.to(unit)).argmin(1) == outputs.labels)


def _fraction(values: Bool[Tensor, "samples"]) -> float:
    return float(values.cpu().double().mean())
