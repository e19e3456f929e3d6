"""Logistic regression on frozen features: L-BFGS on the device, to the optimum of scikit-learn.

The objective is Σ_i w_i loss_i + ½ l2 ‖weight‖², the bias free: scikit-learn's
``LogisticRegression(C=1/l2)``, whose C·Σ_i w_i loss_i + ½ ‖weight‖² is this divided by l2. A
penalty λ of the mean loss, (Σ_i w_i loss_i) / n + ½ λ ‖weight‖², is l2 = n·λ.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor
from torch.nn import functional as F

from protosphere.data.progress import Progress, no_progress
from protosphere.evaluation.inference import measuring_device
from protosphere.evaluation.lbfgs import minimize
from protosphere.evaluation.linear_objective import (
    Coordinates,
    LinearObjective,
    Loss,
    binary_loss,
    full_precision,
    principal_coordinates,
    softmax_loss,
)
from protosphere.evaluation.logistic_checks import (
    check_features,
    check_labels,
    check_settings,
    check_targets,
    check_weights,
)

_TOL = 1e-4
_MAX_ITER = 1000


class LogisticRegressionFit(NamedTuple):
    """A fitted linear classifier.

    Attributes:
        weight: One row per class.
        bias: One number per class; −inf for a class without samples.
        l2: Strength of the penalty.
        loss: Value of the objective, the sum over labels for one-vs-rest.
        iterations: Number of L-BFGS iterations.
        converged: Whether the tolerance was met (for one-vs-rest, for all labels).
    """

    weight: Float[Tensor, "classes dim"]
    bias: Float[Tensor, "classes"]
    l2: float
    loss: float
    iterations: int
    converged: bool

    def scores(self, features: Float[Tensor, "samples dim"]) -> Float[Tensor, "samples classes"]:
        """Return the logits.

        Args:
            features: Features, not standardized or normalized further.
        """
        return torch.addmm(self.bias, features.to(self.weight), self.weight.T)

    def predict(self, features: Float[Tensor, "samples dim"]) -> Integer[Tensor, "samples"]:
        """Return the class index of the largest logit of each sample.

        Args:
            features: Features, not standardized or normalized further.
        """
        return self.scores(features).argmax(1)


class _Problem(NamedTuple):
    """Samples, loss, and how its outputs become logits of the classes."""

    coordinates: Coordinates
    loss: Loss
    kind: Literal["softmax", "sigmoid", "one_vs_rest"]
    prior: Tensor  # bias of each output that is best without a weight
    classes: Tensor  # class indices that the outputs stand for, two for a sigmoid
    other_bias: Tensor  # bias of every class, for those that have no output
    dtype: torch.dtype

    def fit(
        self, start: Tensor | None, l2: float, *, tol: float, max_iter: int
    ) -> tuple[LogisticRegressionFit, Tensor]:
        """Return the fit and its parameters, to start another one from."""
        num_outputs = len(self.prior)
        num_problems = num_outputs if self.kind == "one_vs_rest" else 1
        if start is None:
            start = F.pad(self.prior[:, None], (self.coordinates.values.shape[1], 0))
        found = minimize(
            LinearObjective(self.coordinates, self.loss, l2, num_outputs, num_problems),
            start.view(num_problems, -1),
            tol=tol,
            max_iter=max_iter,
        )
        parameters, loss = found.point.view_as(start), found.values.sum()
        if self.kind == "softmax":
            # A softmax does not see what its classes have in common, but the penalty does.
            common = parameters.mean(0)
            parameters = parameters - common
            common_weight = common[:-1] / self.coordinates.scale
            loss -= l2 / 2 * num_outputs * common_weight.square().sum()
        weight, bias = self.coordinates.to_features(parameters)
        if self.kind == "sigmoid":
            weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
        all_weight = weight.new_zeros((len(self.other_bias), weight.shape[1]))
        all_weight[self.classes] = weight
        all_bias = self.other_bias.clone()
        all_bias[self.classes] = bias
        fit = LogisticRegressionFit(
            weight=all_weight.to(self.dtype),
            bias=all_bias.to(self.dtype),
            l2=l2,
            loss=float(loss),
            iterations=found.iterations,
            converged=bool(found.converged.all()),
        )
        return fit, parameters

    def start(self, init: LogisticRegressionFit) -> Tensor:
        """Return the parameters of an earlier fit."""
        expected = (len(self.other_bias), len(self.coordinates.mean))
        if init.weight.shape != expected:
            raise ValueError(
                f"init must have a weight of shape {expected}, got {tuple(init.weight.shape)}"
            )
        weight = init.weight.to(self.prior)[self.classes]
        bias = init.bias.to(self.prior)[self.classes]
        if self.kind == "sigmoid":
            weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
        parameters = self.coordinates.from_features(weight, bias)
        # A class that had no samples before starts from its prior.
        finite = parameters[:, -1].isfinite()
        parameters[:, -1] = torch.where(finite, parameters[:, -1], self.prior)
        return parameters


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
            square. In float32 smaller ones than the default may not be reached.
        max_iter: Largest number of L-BFGS iterations.

    Returns:
        The classifier, in the dtype of the features (float32 for half precision).

    Raises:
        ValueError: Shapes, labels, weights or settings are invalid, or features are not finite.

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
    progress: Progress = no_progress,
) -> tuple[LogisticRegressionFit, ...]:
    """Fit multinomial logistic regression for several strengths of the penalty.

    The strongest is fitted first and every other one starts from the one before it; the result is
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
        progress: Called with the fraction that is done.

    Returns:
        One classifier per strength, in the order of ``grid``.

    Raises:
        ValueError: Shapes, labels, weights or settings are invalid, or features are not finite.
    """
    check_features(features)
    check_labels(features, labels, num_classes)
    check_weights(sample_weight, [tuple(labels.shape)])
    check_settings(grid, tol, max_iter)
    features = features.detach().to(measuring_device(features.device))
    with full_precision(features.device):
        problem = _softmax_problem(features, labels, num_classes, sample_weight)
        return _fit_path(problem, grid, init, tol, max_iter, progress)


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
        progress: Called with the fraction that is done.

    Returns:
        One classifier per strength, in the order of ``grid``.

    Raises:
        ValueError: Shapes, targets, weights or settings are invalid, or features are not finite.
    """
    check_features(features)
    check_targets(features, targets)
    check_weights(sample_weight, [(len(features),), tuple(targets.shape)])
    check_settings(grid, tol, max_iter)
    features = features.detach().to(measuring_device(features.device))
    with full_precision(features.device):
        problem = _one_vs_rest_problem(features, targets, sample_weight)
        return _fit_path(problem, grid, init, tol, max_iter, progress)


def _fit_path(
    problem: _Problem,
    grid: Sequence[float],
    init: LogisticRegressionFit | None,
    tol: float,
    max_iter: int,
    progress: Progress,
) -> tuple[LogisticRegressionFit, ...]:
    fits: dict[float, LogisticRegressionFit] = {}
    start = None if init is None else problem.start(init)
    for l2 in sorted(set(grid), reverse=True):
        fits[l2], start = problem.fit(start, l2, tol=tol, max_iter=max_iter)
        progress(len(fits) / len(set(grid)))
    return tuple(fits[l2] for l2 in grid)


def _softmax_problem(
    features: Tensor, labels: Tensor, num_classes: int, sample_weight: Tensor | None
) -> _Problem:
    device = features.device
    labels = labels.to(device).long()
    weights = None if sample_weight is None else sample_weight.detach().to(device)[:, None]
    counts = torch.bincount(
        labels, None if weights is None else weights[:, 0].double(), minlength=num_classes
    ).double()
    classes = counts.nonzero()[:, 0]
    # Samples of weight zero may have a class that has no other samples: any index will do.
    compact = torch.zeros(num_classes, dtype=torch.long, device=device)
    compact[classes] = torch.arange(len(classes), device=device)
    labels, prior = compact[labels], counts[classes].log()
    coordinates = principal_coordinates(features, weights)
    other_bias = prior.new_full((num_classes,), -torch.inf)
    dtype = _result_dtype(features)
    if len(classes) == 2:
        loss, log_odds = binary_loss(labels[:, None]), prior[1:] - prior[:1]
        return _Problem(coordinates, loss, "sigmoid", log_odds, classes, other_bias, dtype)
    loss = softmax_loss(labels)
    return _Problem(coordinates, loss, "softmax", prior, classes, other_bias, dtype)


def _one_vs_rest_problem(
    features: Tensor, targets: Tensor, sample_weight: Tensor | None
) -> _Problem:
    device = features.device
    positive = targets.to(device).bool()
    weights = None
    if sample_weight is not None:
        weights = sample_weight.detach().to(device).view(len(features), -1)
    mass = torch.ones((), device=device) if weights is None else weights
    positives = (positive * mass).sum(0, dtype=torch.float64)
    negatives = (~positive * mass).sum(0, dtype=torch.float64)
    classes = ((positives > 0) & (negatives > 0)).nonzero()[:, 0]
    if not len(classes):
        raise ValueError("targets must have a label with positive and negative samples, got none")
    if weights is not None and weights.shape[1] > 1:
        weights = weights[:, classes]
    return _Problem(
        principal_coordinates(features, weights),
        binary_loss(positive[:, classes]),
        "one_vs_rest",
        (positives / negatives).log()[classes],
        classes,
        torch.where(positives > 0, torch.inf, -torch.inf).double(),
        _result_dtype(features),
    )


def _result_dtype(features: Tensor) -> torch.dtype:
    return torch.float64 if features.dtype == torch.float64 else torch.float32
