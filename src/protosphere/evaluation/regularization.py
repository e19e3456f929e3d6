"""The choice of the penalty of a logistic regression on a validation split."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

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


class RegularizationChoice(NamedTuple):
    """The penalty that was best on the validation split, and the fit with it on all samples.

    Attributes:
        l2: The chosen strength, 1/C; of several equally good ones the strongest.
        fit: The classifier with this strength, fitted on training and validation samples.
        grid: The strengths that were compared.
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

    The strengths are fitted on the training split from the strongest to the weakest, each from the
    one before. The best one is fitted again on both splits together: with the same l2, as
    scikit-learn keeps C, so that the penalty counts less against more samples.

    Args:
        train: Features and labels of the training split.
        validation: Features and labels of the validation split.
        num_classes: Number of classes; some may be absent from either split.
        grid: Strengths of the penalty, l2 = 1/C.
        criterion: What is compared on the validation split.
        tol: Tolerance of the gradient norm.
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
    path = fit_regularization_path(
        *train,
        num_classes=num_classes,
        grid=grid,
        tol=tol,
        max_iter=max_iter,
        progress=_most_of(progress),
    )
    labels = validation[1].to(path[0].weight.device)

    def score(fit: LogisticRegressionFit) -> float:
        predictions = fit.predict(validation[0])
        if criterion == "accuracy":
            return float((predictions == labels).double().mean())
        return mean_per_class_accuracy(predictions, labels)

    def refit(fit: LogisticRegressionFit) -> LogisticRegressionFit:
        return fit_logistic_regression(
            *_join(train, validation),
            num_classes=num_classes,
            l2=fit.l2,
            init=fit,
            tol=tol,
            max_iter=max_iter,
        )

    return _choose(path, score, refit, progress)


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
        tol: Tolerance of the gradient norm.
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
        tol=tol,
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

    return _choose(path, score, refit, progress)


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
    score: Callable[[LogisticRegressionFit], float],
    refit: Callable[[LogisticRegressionFit], LogisticRegressionFit],
    progress: Progress,
) -> RegularizationChoice:
    scores = tuple(score(fit) for fit in path)
    best = path[max(range(len(path)), key=lambda i: (scores[i], path[i].l2))]
    fit = refit(best)
    progress(1.0)
    return RegularizationChoice(
        l2=best.l2,
        fit=fit,
        grid=tuple(one.l2 for one in path),
        scores=scores,
        converged=all(one.converged for one in (*path, fit)),
    )


def _join(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    features = torch.cat([first[0], second[0].to(first[0])])
    return features, torch.cat([first[1], second[1].to(first[1])])


def _most_of(progress: Progress) -> Progress:
    """Leave a tenth of the progress to the fit on both splits."""
    return lambda fraction: progress(0.9 * fraction)
