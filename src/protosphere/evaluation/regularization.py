"""The choice of the penalty of a logistic regression on a validation split."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor
from torch.nn import functional as F

from protosphere.data.progress import Progress, no_progress
from protosphere.evaluation.average_precision import (
    mean_average_precision,
    mean_per_class_accuracy,
)
from protosphere.evaluation.logistic_checks import check_features, check_labels, check_targets
from protosphere.evaluation.logistic_regression import (
    LogisticRegressionFit,
    fit_logistic_regression,
    fit_one_vs_rest,
    fit_one_vs_rest_path,
    fit_regularization_path,
)

# The splits have different numbers of samples.
Labeled: TypeAlias = tuple[Float[Tensor, "_ dim"], Integer[Tensor, "_"]]
MultiLabeled: TypeAlias = tuple[
    Float[Tensor, "_ dim"], Bool[Tensor, "_ labels"] | Integer[Tensor, "_ labels"]
]
Criterion = Literal["accuracy", "mean_per_class_accuracy"]

# To tell strengths apart takes less precision than the last fit.
_PATH_TOL = 10
# A path ends after as many fits whose loss has clearly risen, relative to the smallest.
_NUM_WORSE, _CLEAR_RISE = 2, 0.05


class ValidationCurve:
    """Scores and losses on a validation split along a path of ever weaker penalties.

    Called with a fit, it evaluates it and returns whether the path may end: whether in this fit and
    in the one before it the cross-entropy exceeds its minimum by a twentieth and the score is not
    better than there by more than its standard error, √(score (1 − score) / samples). Weaker
    penalties than these overfit the most and take the longest to fit.

    Args:
        validation: Features and labels of the validation split.
        score: Function from logits and labels to a fraction, the larger the better.

    Attributes:
        scores: The score of each strength so far.
        losses: The mean cross-entropy of each strength so far.

    >>> features, labels = torch.eye(2), torch.tensor([0, 1])
    >>> curve = ValidationCurve((features, labels), accuracy)
    >>> fit = LogisticRegressionFit(torch.eye(2), torch.zeros(2), 1.0, 1.0, 1, True)
    >>> curve(fit), curve.scores
    (False, {1.0: 1.0})
    """

    def __init__(self, validation: Labeled, score: Callable[[Tensor, Tensor], float]) -> None:
        self.scores: dict[float, float] = {}
        self.losses: dict[float, float] = {}
        self._features, self._labels = validation
        self._score = score
        self._num_worse = 0

    def __call__(self, fit: LogisticRegressionFit) -> bool:
        """Evaluate a fit; return whether the path may end."""
        logits = fit.scores(self._features)
        labels = self._labels.to(logits.device)
        score, loss = self._score(logits, labels), float(F.cross_entropy(logits, labels))
        self.scores[fit.l2], self.losses[fit.l2] = score, loss
        lowest = min(self.losses, key=self.losses.__getitem__)
        error = math.sqrt(self.scores[lowest] * (1 - self.scores[lowest]) / len(labels))
        worse = (
            loss > (1 + _CLEAR_RISE) * self.losses[lowest] and score <= self.scores[lowest] + error
        )
        self._num_worse = self._num_worse + 1 if worse else 0
        return self._num_worse >= _NUM_WORSE


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the fraction of samples whose largest logit is that of their class."""
    return float((logits.argmax(1) == labels).double().mean())


class RegularizationChoice(NamedTuple):
    """The penalty that was best on the validation split, and the fit with it on all samples.

    Attributes:
        l2: The chosen strength, 1/C; of several equally good ones the strongest.
        fit: The classifier with this strength, fitted on training and validation samples.
        grid: The strengths that were compared: without those after a stop.
        scores: The criterion on the validation split for each of them.
        converged: Whether all fits met the tolerance.
    """

    l2: float
    fit: LogisticRegressionFit
    grid: tuple[float, ...]
    scores: tuple[float, ...]
    converged: bool


def regularization_grid(
    *, smallest: float = 1e-6, largest: float = 1e6, num: int = 25
) -> tuple[float, ...]:
    """Return strengths l2 = 1/C at equal ratios, the strongest first.

    Args:
        smallest: Weakest penalty.
        largest: Strongest penalty.
        num: Number of strengths.

    Raises:
        ValueError: The range is empty or not positive, or there are fewer than two strengths.

    >>> regularization_grid(smallest=0.01, largest=100.0, num=3)
    (100.0, 1.0, 0.01)
    """
    if not 0 < smallest < largest or num < 2:
        raise ValueError(
            "smallest must be positive and below largest, and num at least 2; got "
            f"{smallest}, {largest} and {num}"
        )
    ratio = smallest / largest
    return tuple(float(f"{largest * ratio ** (i / (num - 1)):.12g}") for i in range(num))


def choose_regularization(
    train: Labeled,
    validation: Labeled,
    *,
    num_classes: int,
    grid: Sequence[float],
    criterion: Criterion = "accuracy",
    tol: float = 1e-4,
    max_iter: int = 1000,
    progress: Progress = no_progress,
) -> RegularizationChoice:
    """Choose the penalty of multinomial logistic regression on a validation split, then refit.

    The strengths are fitted on the training split from the strongest to the weakest, each from
    those before, until a :class:`ValidationCurve` says that it gets worse. The best one is fitted
    again on both splits together: with the same l2, as scikit-learn keeps C, so that the penalty
    counts less against more samples.

    Args:
        train: Features and labels of the training split.
        validation: Features and labels of the validation split.
        num_classes: Number of classes; some may be absent from either split.
        grid: Strengths of the penalty, l2 = 1/C.
        criterion: What is compared on the validation split.
        tol: Tolerance of the gradient norm of the last fit; three times as large before it.
        max_iter: Largest number of L-BFGS iterations of each fit.
        progress: Called with the fraction that is done.

    Raises:
        ValueError: Shapes, labels or settings are invalid, or features are not finite.

    >>> features, labels = torch.eye(4).repeat(2, 1), torch.tensor([0, 0, 1, 1]).repeat(2)
    >>> split = (features, labels)
    >>> choice = choose_regularization(split, split, num_classes=2, grid=[0.1, 1.0, 10.0])
    >>> choice.l2, choice.scores
    (10.0, (1.0, 1.0, 1.0))
    """
    _check_validation(train[0], validation[0])
    check_labels(*validation, num_classes)
    curve = ValidationCurve(
        validation,
        accuracy
        if criterion == "accuracy"
        else lambda logits, labels: mean_per_class_accuracy(logits.argmax(1), labels),
    )
    path = fit_regularization_path(
        *train,
        num_classes=num_classes,
        grid=grid,
        tol=_PATH_TOL * tol,
        max_iter=max_iter,
        stop=curve,
        progress=_most_of(progress),
    )

    def refit(fit: LogisticRegressionFit) -> LogisticRegressionFit:
        return fit_logistic_regression(
            *_join(train, validation),
            num_classes=num_classes,
            l2=fit.l2,
            init=fit,
            tol=tol,
            max_iter=max_iter,
        )

    return _choose(path, [curve.scores[fit.l2] for fit in path], refit, progress)


def choose_one_vs_rest(
    train: MultiLabeled,
    validation: MultiLabeled,
    *,
    grid: Sequence[float],
    ignore: Bool[Tensor, "samples labels"] | None = None,
    tol: float = 1e-4,
    max_iter: int = 1000,
    progress: Progress = no_progress,
) -> RegularizationChoice:
    """Choose the penalty of one-vs-rest logistic regression on a validation split, then refit.

    One strength is chosen for all labels, by the mean 11-point average precision over labels.

    Args:
        train: Features and targets of the training split.
        validation: Features and targets of the validation split.
        grid: Strengths of the penalty, l2 = 1/C.
        ignore: Samples of training and validation, in this order, that are left out for a label.
        tol: Tolerance of the gradient norm of the last fit; three times as large before it.
        max_iter: Largest number of L-BFGS iterations of each fit.
        progress: Called with the fraction that is done.

    Raises:
        ValueError: Shapes, targets or settings are invalid, or features are not finite.
    """
    weight = None if ignore is None else (~ignore).float()
    num_train = len(train[0])
    _check_validation(train[0], validation[0])
    check_targets(*validation)
    path = fit_one_vs_rest_path(
        *train,
        grid=grid,
        sample_weight=None if weight is None else weight[:num_train],
        tol=_PATH_TOL * tol,
        max_iter=max_iter,
        progress=_most_of(progress),
    )

    def score(fit: LogisticRegressionFit) -> float:
        ignored = None if ignore is None else ignore[num_train:]
        return mean_average_precision(fit.scores(validation[0]), validation[1], ignore=ignored)

    def refit(fit: LogisticRegressionFit) -> LogisticRegressionFit:
        return fit_one_vs_rest(
            *_join(train, validation),
            l2=fit.l2,
            sample_weight=weight,
            init=fit,
            tol=tol,
            max_iter=max_iter,
        )

    return _choose(path, [score(fit) for fit in path], refit, progress)


def _check_validation(train: Tensor, validation: Tensor) -> None:
    # Before the fits on the training split, which may take long.
    check_features(validation)
    if train.shape[1:] != validation.shape[1:]:
        raise ValueError(
            "training and validation features must have the same dimension, got shapes "
            f"{tuple(train.shape)} and {tuple(validation.shape)}"
        )


def _choose(
    path: tuple[LogisticRegressionFit, ...],
    scores: Sequence[float],
    refit: Callable[[LogisticRegressionFit], LogisticRegressionFit],
    progress: Progress,
) -> RegularizationChoice:
    best = path[max(range(len(path)), key=lambda i: (scores[i], path[i].l2))]
    fit = refit(best)
    progress(1.0)
    return RegularizationChoice(
        l2=best.l2,
        fit=fit,
        grid=tuple(one.l2 for one in path),
        scores=tuple(scores),
        converged=all(one.converged for one in (*path, fit)),
    )


def _join(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    features = torch.cat([first[0], second[0].to(first[0])])
    return features, torch.cat([first[1], second[1].to(first[1])])


def _most_of(progress: Progress) -> Progress:
    """Leave a tenth of the progress to the fit on both splits."""
    return lambda fraction: progress(0.9 * fraction)
