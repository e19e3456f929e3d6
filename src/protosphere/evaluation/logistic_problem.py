"""The problems of logistic regression: samples, loss, and how parameters become a classifier."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.nn import functional as F

from protosphere.evaluation.lbfgs import minimize
from protosphere.evaluation.linear_objective import (
    Coordinates,
    LinearObjective,
    Loss,
    binary_loss,
    principal_coordinates,
    softmax_loss,
)


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


class LogisticProblem(NamedTuple):
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


def softmax_problem(
    features: Tensor, labels: Tensor, num_classes: int, sample_weight: Tensor | None
) -> LogisticProblem:
    """Return the problem of the classes that have samples: a softmax, or a sigmoid for two."""
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
        return LogisticProblem(coordinates, loss, "sigmoid", log_odds, classes, other_bias, dtype)
    loss = softmax_loss(labels)
    return LogisticProblem(coordinates, loss, "softmax", prior, classes, other_bias, dtype)


def one_vs_rest_problem(
    features: Tensor, targets: Tensor, sample_weight: Tensor | None
) -> LogisticProblem:
    """Return the problems of the labels that have positive and negative samples."""
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
    return LogisticProblem(
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
