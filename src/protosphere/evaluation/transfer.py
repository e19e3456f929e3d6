"""Transfer: classifiers on frozen features of another set, each by the metric of the set."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from protosphere.classifiers import MeanClassifier, class_means
from protosphere.classifiers.whitening import whitened_class_means
from protosphere.data.progress import Progress, no_progress
from protosphere.data.transfer_sets import TransferMetric
from protosphere.evaluation.average_precision import (
    mean_average_precision,
    mean_per_class_accuracy,
)
from protosphere.evaluation.inference import LabeledFeatures
from protosphere.evaluation.logistic_regression import (
    LogisticRegressionFit,
    fit_logistic_regression,
    fit_one_vs_rest,
    fit_regularization_path,
)
from protosphere.evaluation.probes import NearestNeighbors
from protosphere.evaluation.regularization import ValidationCurve, choose_one_vs_rest

TransferClassifier = Literal["logistic", "class_means", "whitened_class_means", "knn"]
CLASSIFIERS: tuple[TransferClassifier, ...] = get_args(TransferClassifier)
# Ten values of C at equal ratios, for features of standard deviation 1.
DEFAULT_CS: tuple[float, ...] = tuple(
    float(f"{10 ** (-5 + 7 * index / 9):.2g}") for index in range(10)
)
_CHUNK_ROWS = 2048
# To tell values of C apart takes less precision than the last fit.
_PATH_TOL = 1e-3

Classify = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class TransferFeatures:
    """Features of a set, and what is to be predicted from them.

    Attributes:
        train: Features of the training images.
        train_targets: Class index of each; or, for several labels per image, 1 for each class in
            the image, 0 for each other one, and -1 where it does not count.
        test: Features of the test images.
        test_targets: Likewise for the test images.
        is_validation: Which of the training images settings are chosen on.
        num_classes: Number of classes.
        metric: The metric to report.
    """

    train: Float[Tensor, "train_samples dim"]
    train_targets: Integer[Tensor, "train_samples *classes"]
    test: Float[Tensor, "test_samples dim"]
    test_targets: Integer[Tensor, "test_samples *classes"]
    is_validation: Bool[Tensor, "train_samples"]
    num_classes: int
    metric: TransferMetric

    def to(self, device: torch.device | str) -> "TransferFeatures":
        """Return the same features and targets on a device."""
        return replace(
            self,
            train=self.train.to(device),
            train_targets=self.train_targets.to(device),
            test=self.test.to(device),
            test_targets=self.test_targets.to(device),
            is_validation=self.is_validation.to(device),
        )


class TransferScore(NamedTuple):
    """How well a classifier does on the test images, as fractions.

    Attributes:
        value: The metric of the set.
        top1: Fraction of images classified correctly; None for several labels per image.
        mean_per_class: Mean over classes of this fraction; None for several labels per image.
    """

    value: float
    top1: float | None
    mean_per_class: float | None


@dataclass(frozen=True)
class TransferResult:
    """The result of one classifier.

    Attributes:
        classifier: Name of the classifier.
        score: Its score on the test images.
        seconds: Time to fit it to given features, the choice of its settings included.
        chosen_c: Chosen C of the logistic regression, for features divided by their scale.
    """

    classifier: TransferClassifier
    score: TransferScore
    seconds: float
    chosen_c: float | None = None


def classifiers_for(metric: TransferMetric) -> tuple[TransferClassifier, ...]:
    """Return the classifiers that a metric can be computed for.

    With several labels per image, this is one logistic regression per class: class means and
    nearest neighbors stand for one class per image.

    Args:
        metric: The metric.

    >>> classifiers_for("map")
    ('logistic',)
    """
    return ("logistic",) if metric == "map" else CLASSIFIERS


def evaluate_transfer(
    features: TransferFeatures,
    classifier: TransferClassifier,
    *,
    cs: Sequence[float] = DEFAULT_CS,
    progress: Progress = no_progress,
) -> TransferResult:
    """Fit a classifier to the training features and evaluate it on the test features.

    - ``logistic``: multinomial logistic regression with an L2 penalty, for several labels per image
      one logistic regression per class. The features are divided by one number, their
      :func:`feature_scale`, so that the same C suit all encoders. C is chosen on the validation
      images after a fit to the others: among those whose metric is within a standard error of the
      best, the one with the smallest loss. Then all training images are fitted with it. For
      several labels per image, the best mean average precision decides.
    - ``class_means``: the largest cosine to the mean of the unit features of a class.
    - ``whitened_class_means``: the same after whitening by the shrunk pooled within-class
      covariance.
    - ``knn``: the 20 nearest training samples by cosine, with votes of weight exp(cos/0.07).

    Args:
        features: Features and targets, all on one device.
        classifier: Which classifier.
        cs: Values of C to choose from, as in scikit-learn; a single one is not chosen.
        progress: Called with the fraction that is done.

    Raises:
        ValueError: The metric cannot be computed for this classifier, there are no validation
            images to choose C on, or an argument is not valid.
    """
    if classifier not in classifiers_for(features.metric):
        raise ValueError(
            f"classifier must be {' or '.join(classifiers_for(features.metric))} for the metric "
            f"{features.metric}, got {classifier!r}"
        )
    start = time.perf_counter()
    chosen_c = None
    if classifier == "logistic":
        classify, chosen_c = _fit_logistic(features, cs, progress)
    else:
        classify = fit_class_scores(
            classifier, features.train, features.train_targets, num_classes=features.num_classes
        )
    if features.train.device.type == "cuda":
        torch.cuda.synchronize(features.train.device)
    seconds = time.perf_counter() - start
    score = score_transfer(classify, features)
    progress(1.0)
    return TransferResult(classifier, score, seconds, chosen_c)


def check_cs(cs: Sequence[float]) -> None:
    """Raise ValueError unless these are positive numbers, at least one.

    Args:
        cs: Values of C.
    """
    if not cs or not all(0 < c < float("inf") for c in cs):
        raise ValueError(f"C must be positive numbers, at least one; got {list(cs)}")


def feature_scale(features: Float[Tensor, "samples dim"]) -> float:
    """Return the root mean square distance of features from their mean, over √dim.

    Divided by it, the dimensions have a variance of 1 on average. One number for all dimensions
    does not change the geometry; it only stands for another C.

    Args:
        features: Features.

    Returns:
        The scale; 1 for features that are all equal.

    >>> feature_scale(torch.tensor([[2.0, 5.0, 5.0, 5.0], [-2.0, 5.0, 5.0, 5.0]]))
    1.0
    """
    deviations = features - features.mean(0)
    scale = float(deviations.square().mean(dtype=torch.float64).sqrt())
    return scale if scale > 0 else 1.0


def fit_class_scores(
    classifier: TransferClassifier,
    features: Float[Tensor, "samples dim"],
    labels: Integer[Tensor, "samples"],
    *,
    num_classes: int,
) -> Classify:
    """Fit a classifier in closed form, and return the function from features to scores.

    Args:
        classifier: ``"class_means"``, ``"whitened_class_means"`` or ``"knn"``.
        features: Training features.
        labels: Class index of each.
        num_classes: Number of classes.
    """
    if classifier == "knn":
        return NearestNeighbors(LabeledFeatures(features, labels), num_classes)
    if classifier == "whitened_class_means":
        return whitened_class_means(features, labels, num_classes=num_classes).scores
    head = MeanClassifier(features.shape[1], num_classes).to(features.device)
    head.set_means(class_means(features, labels, num_classes=num_classes).means)
    return head


@torch.no_grad()
def score_transfer(classify: Classify, features: TransferFeatures) -> TransferScore:
    """Evaluate a classifier on the test features.

    Args:
        classify: Function from features to scores of the classes.
        features: Features and targets.
    """
    chunks = features.test.split(_CHUNK_ROWS)
    targets = features.test_targets
    if features.metric == "map":
        scores = torch.cat([classify(chunk) for chunk in chunks])
        value = mean_average_precision(scores, targets.clamp_min(0), ignore=targets < 0)
        return TransferScore(value, None, None)
    predictions = torch.cat([classify(chunk).argmax(1) for chunk in chunks])
    return _score_labels(predictions, targets, features.metric)


def _score_labels(predictions: Tensor, labels: Tensor, metric: TransferMetric) -> TransferScore:
    top1 = float((predictions == labels).double().mean())
    mean_per_class = mean_per_class_accuracy(predictions, labels)
    return TransferScore(top1 if metric == "top1" else mean_per_class, top1, mean_per_class)


def _fit_logistic(
    features: TransferFeatures, cs: Sequence[float], progress: Progress
) -> tuple[Classify, float]:
    check_cs(cs)
    scale = feature_scale(features.train)
    train = features.train / scale
    fit = (
        _fit_multi_label(train, features, cs, progress)
        if features.metric == "map"
        else _fit_multinomial(train, features, cs, progress)
    )
    chosen_c = min(cs, key=lambda c: abs(1 / c - fit.l2))
    return lambda test: fit.scores(test / scale), chosen_c


def _fit_multinomial(
    train: Tensor, features: TransferFeatures, cs: Sequence[float], progress: Progress
) -> LogisticRegressionFit:
    labels, num_classes = features.train_targets, features.num_classes
    grid = [1 / c for c in cs]
    if len(grid) == 1:
        return fit_logistic_regression(train, labels, num_classes=num_classes, l2=grid[0])
    held_out = _validation(features)
    curve = ValidationCurve(
        (train[held_out], labels[held_out]),
        lambda logits, labels: _score_labels(logits.argmax(1), labels, features.metric).value,
    )
    path = fit_regularization_path(
        train[~held_out],
        labels[~held_out],
        num_classes=num_classes,
        grid=grid,
        tol=_PATH_TOL,
        stop=curve,
        progress=lambda fraction: progress(0.9 * fraction),
    )
    best = _choose(path, curve, int(held_out.sum()))
    return fit_logistic_regression(train, labels, num_classes=num_classes, l2=best.l2, init=best)


def _choose(
    path: Sequence[LogisticRegressionFit], curve: ValidationCurve, num_samples: int
) -> LogisticRegressionFit:
    """Return the fit of the smallest loss among those whose metric is the best up to its error.

    With a few hundred validation images the best accuracy of ten is mostly luck; the loss hardly
    is. With many, the standard error is small and the metric decides.
    """
    best = max(curve.scores.values())
    error = math.sqrt(best * (1 - best) / num_samples)
    return min(
        (fit for fit in path if curve.scores[fit.l2] >= best - error),
        key=lambda fit: (curve.losses[fit.l2], -curve.scores[fit.l2], -fit.l2),
    )


def _fit_multi_label(
    train: Tensor, features: TransferFeatures, cs: Sequence[float], progress: Progress
) -> LogisticRegressionFit:
    targets, ignore = features.train_targets.clamp_min(0), features.train_targets < 0
    grid = [1 / c for c in cs]
    if len(grid) == 1:
        return fit_one_vs_rest(train, targets, l2=grid[0], sample_weight=(~ignore).float())
    held_out = _validation(features)
    choice = choose_one_vs_rest(
        (train[~held_out], targets[~held_out]),
        (train[held_out], targets[held_out]),
        grid=grid,
        ignore=torch.cat([ignore[~held_out], ignore[held_out]]),
        progress=progress,
    )
    return choice.fit


def _validation(features: TransferFeatures) -> Tensor:
    """Return which training images are held out, if some are and some are not."""
    held_out = features.is_validation
    if held_out.all() or not held_out.any():
        raise ValueError(
            "choosing C needs validation images beside the other training images, at least two "
            "images of some class; one value of C needs none"
        )
    return held_out
