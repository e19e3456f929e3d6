"""Named classes and the statistics of their samples: what a prototype classifier has learned."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from protosphere.classifiers.class_means import ClassMeans, class_means
from protosphere.classifiers.class_scatter import ClassScatter, class_scatter
from protosphere.classifiers.score_forms import ScoreForm, plain_form, whitened_form
from protosphere.classifiers.shrinkage import ChosenShrinkage, cross_validated_shrinkage
from protosphere.classifiers.whitening import Rule, Shrinkage

WhiteningName = Literal["none", "shrunk"]


@dataclass(frozen=True, eq=False)
class ClassTable:
    """Sorted class names with class means, the within-class scatter for whitening, and options.

    Attributes:
        names: Sorted class names.
        means: Total weight and weighted sum of the unit features of each class.
        scatter: The same means with the pooled within-class scatter; None without whitening.
        rule: Decision rule.
        shrinkage: Shrinkage of the within-class covariance; without effect if there is no scatter.
    """

    names: NDArray[Any]
    means: ClassMeans
    scatter: ClassScatter | None = None
    rule: Rule = "cosine"
    shrinkage: Shrinkage = "auto"

    def add_samples(
        self, features: NDArray[Any], targets: NDArray[Any], weights: NDArray[Any] | None
    ) -> "ClassTable":
        """Return the table with more samples and their classes; the options stay.

        Args:
            features: Features of shape (samples, dim).
            targets: Class of each sample.
            weights: Weight of each sample, or None.

        Raises:
            ValueError: The samples are not valid, or a class name would be rounded.
        """
        whitening: WhiteningName = "none" if self.scatter is None else "shrunk"
        others = fit_table(features, targets, weights, whitening=whitening)
        own, others = self.add_names(others.names), others.add_names(self.names)
        if own.scatter is not None and others.scatter is not None:
            return own._with(own.names, own.scatter.merge(others.scatter))
        return own._with(own.names, own.means.merge(others.means))

    def add_names(self, names: NDArray[Any]) -> "ClassTable":
        """Return the table with further classes, which have no samples.

        Raises:
            ValueError: A class name would be rounded.
        """
        union = np.unique(join_names(self.names, names))
        positions = torch.from_numpy(np.searchsorted(union, self.names))
        moments = self.means if self.scatter is None else self.scatter
        return self._with(union, moments.expand(positions, num_classes=len(union)))

    def select(self, kept: NDArray[np.bool_]) -> "ClassTable":
        """Return some of the classes; the scatter stays that of all."""
        index = torch.from_numpy(kept.nonzero()[0])
        moments = self.means if self.scatter is None else self.scatter
        return self._with(self.names[kept], moments.select(index))

    def form(self) -> ScoreForm:
        """Return what scores are computed from; a whitening is computed once."""
        if self.scatter is None:
            return plain_form(self.means.means.numpy(), rule=self.rule)
        return self._whitened_form

    @cached_property
    def _whitened_form(self) -> ScoreForm:
        assert self.scatter is not None
        return whitened_form(self.scatter, rule=self.rule, shrinkage=self.shrinkage)

    def _with(self, names: NDArray[Any], moments: ClassMeans | ClassScatter) -> "ClassTable":
        return _table(names, moments, rule=self.rule, shrinkage=self.shrinkage)


def fit_table(
    features: NDArray[Any],
    targets: NDArray[Any],
    weights: NDArray[Any] | None,
    *,
    whitening: WhiteningName,
    rule: Rule = "cosine",
    shrinkage: ChosenShrinkage = "auto",
) -> ClassTable:
    """Compute the table of samples.

    Args:
        features: Features of shape (samples, dim).
        targets: Class of each sample.
        weights: Weight of each sample, or None.
        whitening: Whether to compute the scatter.
        rule: Decision rule.
        shrinkage: Shrinkage of the within-class covariance, or ``"cv"`` to choose it for the rule.
    """
    names, labels = np.unique(targets, return_inverse=True)
    compute = class_scatter if whitening == "shrunk" else class_means
    samples: dict[str, Any] = {"num_classes": len(names), "weights": weights}
    moments = compute(features, labels, **samples)  # Also checks the values.
    if shrinkage == "cv":
        shrinkage = cross_validated_shrinkage(features, labels, **samples, rule=rule)
    return _table(names, moments, rule=rule, shrinkage=shrinkage)


def join_names(names: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    """Return the class names of two arrays in one, whose dtype can hold both.

    Raises:
        ValueError: NumPy's common dtype is a floating one that rounds a whole number.
    """
    joined = np.concatenate([names, others])
    if joined.dtype.kind != "f":
        return joined
    for array in (names, others):
        for name in array.tolist() if array.dtype.kind in "iu" else ():
            if float(name) != name:
                raise ValueError(
                    f"class names must be exact in {joined.dtype}, the common type of "
                    f"{names.dtype} and {others.dtype}, got {name}"
                )
    return joined


def name_classes(
    moments: ClassMeans | ClassScatter,
    classes: ArrayLike,
    *,
    rule: Rule,
    shrinkage: Shrinkage = "auto",
) -> ClassTable:
    """Return a table of statistics from any device, whose classes get sorted.

    Args:
        moments: Class means, or class means and scatter.
        classes: Name of each class.
        rule: Decision rule.
        shrinkage: Shrinkage of the within-class covariance; without effect if there is no scatter.

    Raises:
        ValueError: The number of names does not match, or two names are equal.
    """
    names = np.array(classes)
    moments = moments.to("cpu")
    means = moments.means if isinstance(moments, ClassScatter) else moments
    if names.shape != means.weights.shape:
        raise ValueError(
            f"classes must have one name per mean, shape {tuple(means.weights.shape)}; "
            f"got {names.shape}"
        )
    order = np.argsort(names, kind="stable")
    names = names[order]
    duplicates = names[1:] == names[:-1]
    if bool(duplicates.any()):
        raise ValueError(f"classes must be unique, got {names[1:][duplicates][0]!s} twice")
    moments = moments.select(torch.from_numpy(order))
    return _table(names, moments, rule=rule, shrinkage=shrinkage)


def _table(
    names: NDArray[Any], moments: ClassMeans | ClassScatter, *, rule: Rule, shrinkage: Shrinkage
) -> ClassTable:
    scatter = moments if isinstance(moments, ClassScatter) else None
    means = moments.means if isinstance(moments, ClassScatter) else moments
    return ClassTable(names, means, scatter, rule, shrinkage)
