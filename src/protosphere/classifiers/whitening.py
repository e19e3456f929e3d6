"""Whitened class means: cosine to class means after whitening by the within-class covariance."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from protosphere.classifiers.checks import check_feature_dim
from protosphere.classifiers.class_means import Features, Labels, Weights
from protosphere.classifiers.class_scatter import ClassScatter, class_scatter

Shrinkage = Literal["auto"] | float
Rule = Literal["cosine", "nearest"]

# A covariance of unit features with a smaller trace is rounding of float32: 16 eps².
_MIN_TRACE = 16 * torch.finfo(torch.float32).eps ** 2
_CHUNK_ROWS = 1 << 16


@dataclass(frozen=True)
class Whitening:
    """A linear map of unit features after which the within-class covariance is the identity.

    z = A (u − m) with u = x/‖x‖, the center m and AᵀA = ((1 − a) S + a tr(S)/d I)⁻¹, where S is
    the pooled within-class covariance, d the dimension and a the shrinkage.

    Attributes:
        center: Global mean m of the unit features, in float64.
        matrix: Matrix A, lower triangular, in float64.
        shrinkage: Shrinkage a.
    """

    center: Float[Tensor, "dim"]
    matrix: Float[Tensor, "dim dim"]
    shrinkage: float

    @classmethod
    def from_scatter(cls, scatter: ClassScatter, *, shrinkage: Shrinkage = "auto") -> "Whitening":
        """Compute the whitening from class means and scatter.

        If the scatter is zero (one sample per class, or equal samples), nothing is known about the
        covariance: features are centered and not whitened, and the shrinkage is 1.

        Args:
            scatter: Class means and pooled within-class scatter.
            shrinkage: Shrinkage a between 0 and 1, or ``"auto"`` for d/(d + ν) with the degrees of
                freedom ν of the scatter.

        Raises:
            ValueError: The shrinkage is not between 0 and 1, or too small for a covariance that is
                singular; or it is ``"auto"`` and no class has a total weight above 1.
        """
        check_shrinkage(shrinkage)
        dim = len(scatter.within)
        covariance = scatter.within / max(scatter.degrees, 1)
        average = float(covariance.trace()) / dim
        identity = torch.eye(dim, dtype=torch.float64, device=covariance.device)
        if is_without_scatter(scatter):
            return cls(scatter.center, identity, 1.0)
        if shrinkage == "auto" and scatter.degrees <= 0:
            raise ValueError(
                "weights must count as samples, with a sum above 1 in some class, got at most "
                f"{float(scatter.means.weights.max()):g}; or set shrinkage to a number"
            )
        amount = automatic_shrinkage(scatter) if shrinkage == "auto" else float(shrinkage)
        factor, failed = torch.linalg.cholesky_ex(
            (1 - amount) * covariance + amount * average * identity
        )
        if bool(failed):
            raise ValueError(
                "shrinkage must be larger for a singular within-class covariance "
                f"({scatter.degrees:g} degrees of freedom in {dim} dimensions), got {amount:g}"
            )
        matrix = torch.linalg.solve_triangular(factor, identity, upper=False)
        return cls(scatter.center, matrix, amount)

    def apply(self, features: Float[Tensor, "samples dim"]) -> Float[Tensor, "samples dim"]:
        """Normalize, center and whiten features, on their device, in float32 or wider.

        Args:
            features: Features of any norm.

        Raises:
            ValueError: The features have another dimension.
        """
        check_feature_dim(features, len(self.center))
        values = features if features.dtype == torch.float64 else features.float()
        norms = torch.linalg.vector_norm(values, dim=1, keepdim=True)
        unit = values * torch.where(norms > 0, 1 / norms, 0)
        return (unit - self.center.to(unit)) @ self.matrix.to(unit).T


@dataclass(frozen=True)
class WhitenedClassMeans:
    """A classifier by class means of whitened features; see :func:`whitened_class_means`.

    Attributes:
        whitening: The whitening.
        prototypes: Whitened class means, in float64; NaN for a class without samples.
    """

    whitening: Whitening
    prototypes: Float[Tensor, "classes dim"]

    @classmethod
    def from_scatter(
        cls, scatter: ClassScatter, *, shrinkage: Shrinkage = "auto"
    ) -> "WhitenedClassMeans":
        """Create the classifier from statistics accumulated over batches or processes.

        Args:
            scatter: Class means and pooled within-class scatter.
            shrinkage: Shrinkage between 0 and 1, or ``"auto"``; see
                :meth:`Whitening.from_scatter`.
        """
        whitening = Whitening.from_scatter(scatter, shrinkage=shrinkage)
        return cls(whitening, (scatter.means.means - whitening.center) @ whitening.matrix.T)

    def scores(
        self, features: Float[Tensor, "samples dim"], *, rule: Rule = "cosine"
    ) -> Float[Tensor, "samples classes"]:
        """Return the score of each class, in float32 or wider, on the device of the features.

        Args:
            features: Features of any norm.
            rule: ``"cosine"`` for the cosine of whitened feature and whitened class mean,
                ``"nearest"`` for minus their squared distance, which is the squared Mahalanobis
                distance of unit feature and class mean.

        Returns:
            The scores; −∞ for a class without samples.
        """
        absent = self.prototypes.isnan().any(1)
        prototypes = self.prototypes.nan_to_num()
        if rule == "cosine":
            prototypes = torch.nn.functional.normalize(prototypes, dim=1)
        result = []
        for chunk in features.split(_CHUNK_ROWS) if len(features) else (features,):
            whitened = self.whitening.apply(chunk)
            if rule == "cosine":
                whitened = torch.nn.functional.normalize(whitened, dim=1)
                values = whitened @ prototypes.to(whitened).T
            else:
                values = 2 * whitened @ prototypes.to(whitened).T
                values -= prototypes.square().sum(1).to(whitened)
                values -= whitened.square().sum(1, keepdim=True)
            result.append(values.masked_fill_(absent.to(values.device), -torch.inf))
        return torch.cat(result)

    def predict(
        self, features: Float[Tensor, "samples dim"], *, rule: Rule = "cosine"
    ) -> Int[Tensor, "samples"]:
        """Return the index of the class with the highest score.

        Args:
            features: Features of any norm.
            rule: Decision rule, see :meth:`scores`.
        """
        return self.scores(features, rule=rule).argmax(1)


def whitened_class_means(
    features: Features,
    labels: Labels,
    *,
    num_classes: int,
    weights: Weights | None = None,
    shrinkage: Shrinkage = "auto",
) -> WhitenedClassMeans:
    """Fit a classifier by class means of whitened features, in closed form and one pass.

    Unit features are centered on their mean and whitened by the pooled within-class covariance S
    shrunk toward a multiple of the identity, (1 − a) S + a tr(S)/d I; the score of a class is the
    cosine to its mean.

    Args:
        features: Features of any floating dtype, on any device that supports float64, as a tensor
            or a NumPy array.
        labels: Class index of each sample, from 0 to ``num_classes - 1``.
        num_classes: Number of classes.
        weights: Weight of each sample, not negative; 1 if not given.
        shrinkage: Shrinkage a between 0 and 1, or ``"auto"``; see
            :meth:`Whitening.from_scatter`.

    Returns:
        The classifier, with ``scores`` and ``predict``.

    Raises:
        TypeError: An argument is neither a tensor nor an array.
        ValueError: The arguments do not match, or the shrinkage is not valid.

    >>> features = torch.tensor([[9.0, 1], [8, 3], [1, 7], [2, 9]])
    >>> classifier = whitened_class_means(features, torch.tensor([0, 0, 1, 1]), num_classes=2)
    >>> classifier.predict(torch.tensor([[3.0, 1], [1, 3]]))
    tensor([0, 1])
    """
    scatter = class_scatter(features, labels, num_classes=num_classes, weights=weights)
    return WhitenedClassMeans.from_scatter(scatter, shrinkage=shrinkage)


def automatic_shrinkage(scatter: ClassScatter) -> float:
    """Return d/(d + ν) for the dimension d and the degrees of freedom ν of a scatter.

    Args:
        scatter: Class means and pooled within-class scatter.
    """
    dim = len(scatter.within)
    return dim / (dim + scatter.degrees)


def is_without_scatter(scatter: ClassScatter) -> bool:
    """Whether the scatter is zero, up to rounding: one sample per class, or equal samples.

    Args:
        scatter: Class means and pooled within-class scatter.
    """
    return float(scatter.within.trace()) <= _MIN_TRACE * max(scatter.degrees, 1)


def check_rule(rule: str) -> None:
    """Raise ValueError unless this is a decision rule."""
    if rule not in ("cosine", "nearest"):
        raise ValueError(f"rule must be 'cosine' or 'nearest', got {rule!r}")


def check_shrinkage(shrinkage: float | str, *, names: tuple[str, ...] = ("auto",)) -> None:
    """Raise ValueError unless the shrinkage is one of the names or a number between 0 and 1."""
    if isinstance(shrinkage, str):
        valid = shrinkage in names
    else:
        valid = not isinstance(shrinkage, bool) and 0 <= shrinkage <= 1
    if not valid:
        options = ", ".join(map(repr, names))
        raise ValueError(
            f"shrinkage must be {options} or a number between 0 and 1, got {shrinkage!r}"
        )
