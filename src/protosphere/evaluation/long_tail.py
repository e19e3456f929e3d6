"""Long-tailed evaluation: accuracy by the number of training images, for several classifiers."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from protosphere.classifiers import FittedHead, class_means
from protosphere.classifiers.protocol import Head
from protosphere.classifiers.whitening import Shrinkage, whitened_class_means
from protosphere.evaluation.calibration import (
    SampleScores,
    expected_calibration_error,
    score_samples,
)
from protosphere.evaluation.inference import LabeledFeatures
from protosphere.evaluation.temperature_scaling import fit_temperature
from protosphere.geometry import cosines

ShotGroup = Literal["many", "medium", "few"]
LongTailClassifier = Literal[
    "head",
    "logit_adjusted_head",
    "class_means",
    "calibrated_class_means",
    "whitened_class_means",
]

# Many-shot classes have more training images than the first number, few-shot ones fewer than the
# second.
_MANY, _FEW = 100, 20
# Temperature of class means of a head without one, as MeanClassifier has it.
_TEMPERATURE = 0.1
_CHUNK_ROWS = 8192


class ClassifierResult(NamedTuple):
    """Predictions of one classifier, and how well its probabilities fit.

    Attributes:
        classifier: Name of the classifier.
        predictions: Predicted class index of each test image.
        temperature: Temperature of the logits; None for a head without one.
        nll: Mean negative log-likelihood of the true classes; None for a classifier without
            probabilities.
        ece: Expected calibration error; None for a classifier without probabilities.
    """

    classifier: LongTailClassifier
    predictions: Integer[Tensor, "samples"]
    temperature: float | None
    nll: float | None
    ece: float | None


def shot_groups(class_counts: Sequence[int]) -> dict[ShotGroup, list[int]]:
    """Return the classes with many, medium and few training images.

    Many are more than 100, medium 20 to 100, few fewer than 20. A group without classes is absent.

    Args:
        class_counts: Number of training images of each class.

    >>> shot_groups([500, 100, 20, 19])
    {'many': [0], 'medium': [1, 2], 'few': [3]}
    >>> shot_groups([500, 50])
    {'many': [0], 'medium': [1]}

    Reference:
        Liu et al., Large-Scale Long-Tailed Recognition in an Open World, CVPR 2019.
    """
    groups: dict[ShotGroup, list[int]] = {"many": [], "medium": [], "few": []}
    for index, count in enumerate(class_counts):
        groups["many" if count > _MANY else "medium" if count >= _FEW else "few"].append(index)
    return {name: classes for name, classes in groups.items() if classes}


def class_accuracies(
    predictions: Integer[Tensor, "samples"],
    labels: Integer[Tensor, "samples"],
    *,
    num_classes: int,
) -> list[float | None]:
    """Return the accuracy within each class; None for a class without samples.

    Args:
        predictions: Predicted class index of each sample.
        labels: True class index of each sample.
        num_classes: Number of classes.

    >>> class_accuracies(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), num_classes=3)
    [0.5, 1.0, None]
    """
    labels, correct = labels.cpu(), (predictions == labels).cpu()
    counts = torch.bincount(labels, minlength=num_classes).tolist()
    hits = torch.bincount(labels[correct], minlength=num_classes).tolist()
    return [hit / count if count else None for hit, count in zip(hits, counts, strict=True)]


def group_accuracy(
    predictions: Integer[Tensor, "samples"],
    labels: Integer[Tensor, "samples"],
    classes: Sequence[int],
) -> float | None:
    """Return the fraction of correctly classified samples of some classes; None without samples.

    Args:
        predictions: Predicted class index of each sample, of all classes.
        labels: True class index of each sample.
        classes: Indices of the classes whose samples count.

    >>> group_accuracy(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 0, 1, 1]), [1])
    0.5
    """
    selected = torch.isin(labels, torch.tensor(list(classes), device=labels.device))
    if not bool(selected.any()):
        return None
    return float((predictions == labels)[selected].cpu().double().mean())


def classify_long_tail(
    head: Head,
    train: LabeledFeatures,
    test: LabeledFeatures,
    *,
    validation: LabeledFeatures | None = None,
    logit_adjustment: float | None = 1.0,
    shrinkage: Shrinkage = "auto",
) -> Iterator[ClassifierResult]:
    """Classify test images by a trained head and by class means of its features.

    The classifiers are

    - ``head``: the trained head.
    - ``logit_adjusted_head``: the class with the largest z_c − a log π_c, where z are the logits
      of the head and π the class frequencies of the training images. It follows from Bayes' rule
      for a head trained by cross-entropy, and is a heuristic for other losses.
    - ``class_means``: the class mean on the sphere with the largest cosine, exact and without
      training; its temperature is that of the head, or 0.1.
    - ``calibrated_class_means``: the same class means with the temperature of
      :func:`balanced_temperature`, fitted to validation images; without any, to one half of the
      test images of each class for the other half, and vice versa. Training images would not do:
      their features are closer to the class means than those of new images. A temperature
      changes probabilities, not predictions: the accuracy is that of ``class_means``.
    - ``whitened_class_means``: class means of features whitened by the shrunk within-class
      covariance; see :func:`protosphere.classifiers.whitening.whitened_class_means`.

    Args:
        head: The trained head.
        train: Features and labels of the training images.
        test: Features and labels of the test images.
        validation: Features and labels of validation images, for the temperature.
        logit_adjustment: Factor a; None, and a head that was not trained, have no adjusted head.
        shrinkage: Shrinkage of the within-class covariance, between 0 and 1 or ``"auto"``.

    Yields:
        The result of each classifier, in this order.
    """
    device = head.prototypes.device
    num_classes = len(head.prototypes)
    temperature = _head_temperature(head)
    logits = _apply(head, test.features.to(device)).to(test.labels.device)
    yield _result("head", logits, test.labels, temperature)
    if logit_adjustment is not None and not isinstance(head, FittedHead):
        counts = torch.bincount(train.labels, minlength=num_classes).to(logits)
        adjusted = logits - logit_adjustment * (counts / counts.sum()).log()
        yield _result("logit_adjusted_head", adjusted, test.labels, temperature)
    means = class_means(train.features, train.labels, num_classes=num_classes).means
    values = cosines(test.features, means.to(test.features))
    temperature = temperature or _TEMPERATURE
    yield _result("class_means", values / temperature, test.labels, temperature)
    if validation is None:
        temperatures = _cross_fit(values, test.labels)
    else:
        held_out = cosines(validation.features, means.to(validation.features))
        temperature = balanced_temperature(held_out, validation.labels)
        temperatures = torch.full_like(values[:, 0], temperature)
    logits = values / temperatures[:, None]
    yield _result("calibrated_class_means", logits, test.labels, float(temperatures.mean()))
    whitened = whitened_class_means(
        train.features, train.labels, num_classes=num_classes, shrinkage=shrinkage
    )
    predictions = whitened.predict(test.features)
    yield ClassifierResult("whitened_class_means", predictions, None, None, None)


def balanced_temperature(
    logits: Float[Tensor, "samples classes"], labels: Integer[Tensor, "samples"]
) -> float:
    """Fit a temperature so that all classes count alike.

    It minimizes the negative log-likelihood of the logits divided by it, in which a sample of
    class c has the weight 1/n_c, n_c being the number of samples of the class.

    Args:
        logits: One logit per sample and class, such as the cosines with class means.
        labels: True class index of each sample.

    Returns:
        The temperature, between 0.001 and 1000.

    >>> logits = torch.tensor([[1.0, 0], [1, 0], [1, 0], [0, 1], [1, 0]])
    >>> temperature = balanced_temperature(logits, torch.tensor([0, 0, 0, 1, 1]))
    >>> round(1 / temperature, 4)  # Balanced accuracy 3/4, so that the odds are 3: log 3.
    1.0986
    """
    counts = torch.bincount(labels, minlength=logits.shape[1])
    return fit_temperature(logits, labels, weights=1 / counts[labels].to(logits)).temperature


def _cross_fit(
    values: Float[Tensor, "samples classes"], labels: Integer[Tensor, "samples"]
) -> Float[Tensor, "samples"]:
    """Return a temperature for each sample, fitted to the half that the sample is not part of."""
    half = class_halves(labels)
    temperatures = torch.empty(len(labels), dtype=values.dtype, device=values.device)
    for one in (True, False):
        other = half != one
        temperatures[half == one] = balanced_temperature(values[other], labels[other])
    return temperatures


def class_halves(labels: Integer[Tensor, "samples"]) -> Bool[Tensor, "samples"]:
    """Divide samples into two halves that have equally many samples of each class, or one more.

    Args:
        labels: Class index of each sample; the order of the samples of a class decides.

    Returns:
        Whether each sample is in the first half.

    Raises:
        ValueError: There are fewer than two samples.

    >>> class_halves(torch.tensor([0, 0, 1, 0, 0, 1]))
    tensor([ True, False,  True,  True, False, False])
    """
    if len(labels) < 2:
        raise ValueError(f"there must be at least 2 samples to divide, got {len(labels)}")
    order = labels.argsort(stable=True)
    ranks = torch.empty_like(order)
    # Counted through over all classes, so that no half gets the odd sample of every class.
    ranks[order] = torch.arange(len(order), device=order.device)
    return ranks % 2 == 0


@torch.no_grad()
def _head_temperature(head: Head) -> float | None:
    temperature = getattr(head, "temperature", None)
    return None if temperature is None else float(temperature)


@torch.no_grad()
def _apply(head: Head, features: Float[Tensor, "samples dim"]) -> Float[Tensor, "samples classes"]:
    return torch.cat([head(chunk) for chunk in features.split(_CHUNK_ROWS)])


def _result(
    name: LongTailClassifier, logits: Tensor, labels: Tensor, temperature: float | None
) -> ClassifierResult:
    scores: SampleScores = score_samples(logits, labels)
    error = expected_calibration_error(scores.confidences, scores.predictions == labels)
    nll = float(scores.losses.cpu().double().mean())
    return ClassifierResult(name, scores.predictions, temperature, nll, error)
