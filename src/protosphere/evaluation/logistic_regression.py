"""Logistic regression on frozen features: L-BFGS on the device, to the optimum of scikit-learn.

The objective is Σ_i w_i loss_i + ½ l2 ‖weight‖², the bias free: scikit-learn's
``LogisticRegression(C=1/l2)``, whose C·Σ_i w_i loss_i + ½ ‖weight‖² is this divided by l2. A
penalty λ of the mean loss, (Σ_i w_i loss_i) / n + ½ λ ‖weight‖², is l2 = n·λ.
"""

import math
from collections.abc import Callable, Sequence

from jaxtyping import Bool, Float, Integer
from torch import Tensor

from protosphere.data.progress import Progress, no_progress
from protosphere.evaluation.inference import measuring_device
from protosphere.evaluation.linear_objective import full_precision
from protosphere.evaluation.logistic_checks import (
    check_features,
    check_labels,
    check_settings,
    check_targets,
    check_weights,
)
from protosphere.evaluation.logistic_problem import (
    LogisticProblem,
    LogisticRegressionFit,
    one_vs_rest_problem,
    softmax_problem,
)

__all__ = [
    "LogisticRegressionFit",
    "fit_logistic_regression",
    "fit_one_vs_rest",
    "fit_one_vs_rest_path",
    "fit_regularization_path",
]

# The objective is then mostly within 1e-6 of its minimum; weak penalties of nearly collinear
# features may leave more.
_TOL = 1e-4
_MAX_ITER = 1000


def fit_logistic_regression(
    features: Float[Tensor, "samples dim"],
    labels: Integer[Tensor, "samples"],
    *,
    num_classes: int,
    l2: float,
    sample_weight: Float[Tensor, "samples"] | None = None,
    init: LogisticRegressionFit | None = None,
    tol: float = _TOL,
    max_iter: int = _MAX_ITER,
) -> LogisticRegressionFit:
    """Fit multinomial logistic regression on all samples, on the device of the features.

    Minimizes Σ_i w_i CE_i + ½ l2 ‖weight‖² over weight and bias, as scikit-learn's
    ``LogisticRegression(C=1/l2)``. As there, two classes are one sigmoid whose weight, the
    difference of the two rows, is penalized; a softmax with two penalized rows at l2 is that
    at l2/2. A class without samples has zero weight and the bias −inf, the limit that the objective
    approaches: it is never predicted and changes nothing for the others.

    Args:
        features: Features; they need no standardization.
        labels: Class index of each sample.
        num_classes: Number of classes; some may have no samples.
        l2: Strength of the penalty, 1/C.
        sample_weight: Weight of each sample, not negative; all 1 by default.
        init: Earlier fit to start from; only the time depends on it.
        tol: Tolerance of the gradient norm; the relative error of the objective is about its
            square, up to some hundred times more for features that are nearly collinear. In
            float32 smaller ones than the default may not be reached.
        max_iter: Largest number of L-BFGS iterations.

    Returns:
        The classifier, in the dtype of the features (float32 for half precision).

    Raises:
        ValueError: Shapes, labels, weights or settings are invalid, or features are not finite.

    >>> import torch
    >>> features = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> fit = fit_logistic_regression(features, torch.tensor([0, 0, 1, 1]), num_classes=2, l2=1.0)
    >>> fit.predict(features).tolist(), fit.converged
    ([0, 0, 1, 1], True)
    """
    return fit_regularization_path(
        features,
        labels,
        num_classes=num_classes,
        grid=[l2],
        sample_weight=sample_weight,
        init=init,
        tol=tol,
        max_iter=max_iter,
    )[0]


def fit_regularization_path(
    features: Float[Tensor, "samples dim"],
    labels: Integer[Tensor, "samples"],
    *,
    num_classes: int,
    grid: Sequence[float],
    sample_weight: Float[Tensor, "samples"] | None = None,
    init: LogisticRegressionFit | None = None,
    tol: float = _TOL,
    max_iter: int = _MAX_ITER,
    stop: Callable[[LogisticRegressionFit], bool] | None = None,
    progress: Progress = no_progress,
) -> tuple[LogisticRegressionFit, ...]:
    """Fit multinomial logistic regression for several strengths of the penalty.

    The strongest is fitted first and every other one starts from those before it; the result is
    that of :func:`fit_logistic_regression` for each.

    Args:
        features: Features; they need no standardization.
        labels: Class index of each sample.
        num_classes: Number of classes; some may have no samples.
        grid: Strengths of the penalty, l2 = 1/C, in any order.
        sample_weight: Weight of each sample, not negative; all 1 by default.
        init: Earlier fit to start the strongest from.
        tol: Tolerance of the gradient norm.
        max_iter: Largest number of L-BFGS iterations of each fit.
        stop: Called with every fit, the strongest first; if it returns True, no other follows.
        progress: Called with the fraction that is done.

    Returns:
        One classifier per strength, in the order of ``grid``; without those after a stop.

    Raises:
        ValueError: Shapes, labels, weights or settings are invalid, or features are not finite.
    """
    check_features(features)
    check_labels(features, labels, num_classes)
    check_weights(sample_weight, [tuple(labels.shape)])
    check_settings(grid, tol, max_iter)
    features = features.detach().to(measuring_device(features.device))
    with full_precision(features.device):
        problem = softmax_problem(features, labels, num_classes, sample_weight)
        return _fit_path(problem, grid, init, tol, max_iter, stop, progress)


def fit_one_vs_rest(
    features: Float[Tensor, "samples dim"],
    targets: Bool[Tensor, "samples labels"] | Integer[Tensor, "samples labels"],
    *,
    l2: float,
    sample_weight: Float[Tensor, "samples *labels"] | None = None,
    init: LogisticRegressionFit | None = None,
    tol: float = _TOL,
    max_iter: int = _MAX_ITER,
) -> LogisticRegressionFit:
    """Fit one binary logistic regression per label, all at once.

    Minimizes Σ_i w_i log(1 + exp(−y_i s_i)) + ½ l2 ‖weight‖² for every label, y_i = ±1, as
    scikit-learn's ``OneVsRestClassifier(LogisticRegression(C=1/l2))``. A label without positive
    samples has zero weight and the bias −inf, one without negative samples +inf.

    Args:
        features: Features; they need no standardization.
        targets: Whether each sample has each label.
        l2: Strength of the penalty, 1/C.
        sample_weight: Weight of each sample, or of each sample for each label: 0 leaves it out.
        init: Earlier fit to start from; only the time depends on it.
        tol: Tolerance of the gradient norm.
        max_iter: Largest number of L-BFGS iterations.

    Returns:
        The classifier; the probability of a label is the sigmoid of its score.

    Raises:
        ValueError: Shapes, targets, weights or settings are invalid, or features are not finite.

    >>> import torch
    >>> features = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> targets = torch.tensor([[1, 0], [1, 0], [1, 1], [0, 1]])
    >>> (fit_one_vs_rest(features, targets, l2=0.1).scores(features) > 0).int().tolist()
    [[1, 0], [1, 0], [1, 1], [0, 1]]
    """
    return fit_one_vs_rest_path(
        features,
        targets,
        grid=[l2],
        sample_weight=sample_weight,
        init=init,
        tol=tol,
        max_iter=max_iter,
    )[0]


def fit_one_vs_rest_path(
    features: Float[Tensor, "samples dim"],
    targets: Bool[Tensor, "samples labels"] | Integer[Tensor, "samples labels"],
    *,
    grid: Sequence[float],
    sample_weight: Float[Tensor, "samples *labels"] | None = None,
    init: LogisticRegressionFit | None = None,
    tol: float = _TOL,
    max_iter: int = _MAX_ITER,
    stop: Callable[[LogisticRegressionFit], bool] | None = None,
    progress: Progress = no_progress,
) -> tuple[LogisticRegressionFit, ...]:
    """Fit one binary logistic regression per label for several strengths of the penalty.

    Args:
        features: Features; they need no standardization.
        targets: Whether each sample has each label.
        grid: Strengths of the penalty, l2 = 1/C, in any order.
        sample_weight: Weight of each sample, or of each sample for each label: 0 leaves it out.
        init: Earlier fit to start the strongest from.
        tol: Tolerance of the gradient norm.
        max_iter: Largest number of L-BFGS iterations of each fit.
        stop: Called with every fit, the strongest first; if it returns True, no other follows.
        progress: Called with the fraction that is done.

    Returns:
        One classifier per strength, in the order of ``grid``; without those after a stop.

    Raises:
        ValueError: Shapes, targets, weights or settings are invalid, or features are not finite.
    """
    check_features(features)
    check_targets(features, targets)
    check_weights(sample_weight, [(len(features),), tuple(targets.shape)])
    check_settings(grid, tol, max_iter)
    features = features.detach().to(measuring_device(features.device))
    with full_precision(features.device):
        problem = one_vs_rest_problem(features, targets, sample_weight)
        return _fit_path(problem, grid, init, tol, max_iter, stop, progress)


def _fit_path(
    problem: LogisticProblem,
    grid: Sequence[float],
    init: LogisticRegressionFit | None,
    tol: float,
    max_iter: int,
    stop: Callable[[LogisticRegressionFit], bool] | None,
    progress: Progress,
) -> tuple[LogisticRegressionFit, ...]:
    fits: dict[float, LogisticRegressionFit] = {}
    points: list[tuple[float, Tensor]] = []
    for l2 in sorted(set(grid), reverse=True):
        start = None if init is None or points else problem.start(init)
        fits[l2], point = problem.fit(
            _extrapolate(points, l2) if points else start, l2, tol=tol, max_iter=max_iter
        )
        points = [*points[-1:], (l2, point)]
        progress(len(fits) / len(set(grid)))
        if stop is not None and stop(fits[l2]):
            break
    return tuple(fits[l2] for l2 in grid if l2 in fits)


def _extrapolate(points: list[tuple[float, Tensor]], l2: float) -> Tensor:
    """Go half as far beyond the last minimum as a line in log l2 does: the path bends."""
    last_l2, last = points[-1]
    if len(points) == 1:
        return last
    first_l2, first = points[0]
    ratio = math.log(last_l2 / l2) / math.log(first_l2 / last_l2)
    return last + (last - first) * (min(ratio, 1.0) / 2)
