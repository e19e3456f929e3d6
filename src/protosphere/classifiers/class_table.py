"""Named classes and the statistics of their samples: what a prototype classifier has learned."""

import warnings
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from protosphere.classifiers.class_means import ClassMeans, class_means
from protosphere.classifiers.class_scatter import ClassScatter, class_scatter
from protosphere.classifiers.score_forms import ScoreForm, plain_form, whitened_form
from protosphere.classifiers.shrinkage import ChosenShrinkage, cross_validated_shrinkage
from protosphere.classifiers.whitening import Rule, Shrinkage

WhiteningName = Literal["none", "shrunk"]


@dataclass(frozen=True, eq=False)
class ClassTable:
    """Sorted class names with class means, and with the within-class scatter for whitening.

    Attributes:
        names: Sorted class names.
        means: Total weight and weighted sum of the unit features of each class.
        scatter: The same means with the pooled within-class scatter, or None.
        shrinkage: What cross-validation has chosen, or None.
    """

    names: NDArray[Any]
    means: ClassMeans
    scatter: ClassScatter | None = None
    shrinkage: Shrinkage | None = None
    _forms: dict[Any, ScoreForm] = field(default_factory=dict, init=False, repr=False)

    def merge(self, other: "ClassTable") -> "ClassTable":
        """Return the classes and the samples of both tables, with a scatter if the other has one.

        What cross-validation has chosen for this table stays.

        Raises:
            ValueError: Only the other table has a scatter.
        """
        if other.scatter is not None and self.scatter is None:
            raise _no_scatter_error()
        own = self.add_names(other.names)
        others = other.add_names(self.names)
        if own.scatter is not None and others.scatter is not None:
            return self._with(own.names, own.scatter.merge(others.scatter))
        return self._with(own.names, own.means.merge(others.means))

    def add_names(self, names: NDArray[Any]) -> "ClassTable":
        """Return the table with further classes, which have no samples."""
        union = np.unique(np.concatenate([self.names, names]))
        positions = torch.from_numpy(np.searchsorted(union, self.names))
        moments = self.means if self.scatter is None else self.scatter
        return self._with(union, moments.expand(positions, num_classes=len(union)))

    def select(self, kept: NDArray[np.bool_]) -> "ClassTable":
        """Return some of the classes; the scatter stays that of all."""
        index = torch.from_numpy(kept.nonzero()[0])
        moments = self.means if self.scatter is None else self.scatter
        return self._with(self.names[kept], moments.select(index))

    def without_scatter(self) -> "ClassTable":
        """Return the classes and their means alone."""
        return ClassTable(self.names, self.means)

    def _with(self, names: NDArray[Any], moments: ClassMeans | ClassScatter) -> "ClassTable":
        return replace(_table(names, moments), shrinkage=self.shrinkage)

    def resolve(self, shrinkage: ChosenShrinkage) -> Shrinkage:
        """Return the shrinkage in use: for ``"cv"`` what cross-validation has chosen.

        Raises:
            ValueError: The table was made without cross-validation.
        """
        if shrinkage != "cv":
            return shrinkage
        if self.shrinkage is None:
            raise ValueError(
                "shrinkage='cv' must be set before fit, which chooses the value from all samples"
            )
        return self.shrinkage

    def form(
        self, whitening: WhiteningName, *, rule: Rule, shrinkage: ChosenShrinkage
    ) -> ScoreForm:
        """Return what scores are computed from; a whitening is computed once.

        Raises:
            ValueError: There is no scatter to whiten with, or no shrinkage was chosen.
        """
        if whitening == "none":
            return plain_form(self.means.means.numpy(), rule=rule)
        if self.scatter is None:
            raise _no_scatter_error()
        key = rule, self.resolve(shrinkage)
        if key not in self._forms:
            self._forms[key] = whitened_form(self.scatter, rule=rule, shrinkage=key[1])
        return self._forms[key]


def fit_table(
    features: NDArray[Any],
    targets: NDArray[Any],
    weights: NDArray[Any] | None,
    whitening: WhiteningName,
    *,
    cross_validate: Rule | None = None,
) -> ClassTable:
    """Compute the table of samples.

    Args:
        features: Features of shape (samples, dim).
        targets: Class of each sample.
        weights: Weight of each sample, or None.
        whitening: Whether to compute the scatter.
        cross_validate: Decision rule to choose a shrinkage for, of samples with a scatter; or
            None to choose none.
    """
    names, labels = np.unique(targets, return_inverse=True)
    compute = class_scatter if whitening == "shrunk" else class_means
    samples = _as_tensor(features), _as_tensor(labels)
    options: dict[str, Any] = {
        "num_classes": len(names),
        "weights": None if weights is None else _as_tensor(weights),
    }
    table = _table(names, compute(*samples, **options))  # Also checks the values.
    if cross_validate is None:
        return table
    shrinkage = cross_validated_shrinkage(*samples, **options, rule=cross_validate)
    return replace(table, shrinkage=shrinkage)


def name_classes(moments: ClassMeans | ClassScatter, classes: ArrayLike) -> ClassTable:
    """Return a table of statistics from any device, whose classes get sorted.

    Args:
        moments: Class means, or class means and scatter.
        classes: Name of each class.

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
    return _table(names, moments.select(torch.from_numpy(order)))


def _no_scatter_error() -> ValueError:
    return ValueError(
        "whitening='shrunk' must be set before fitting, but this classifier was fitted with "
        "whitening='none'"
    )


def _table(names: NDArray[Any], moments: ClassMeans | ClassScatter) -> ClassTable:
    if isinstance(moments, ClassScatter):
        return ClassTable(names, moments.means, moments)
    return ClassTable(names, moments)


def _as_tensor(array: NDArray[Any]) -> Tensor:
    """Return a tensor that shares the memory of an array where torch can."""
    if min(array.strides, default=0) < 0:  # torch has no negative strides.
        array = array.copy()
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return torch.from_numpy(array)  # Warns about read-only memory, which is never written.
