"""Named classes and the statistics of their samples: what a prototype classifier has learned."""

import warnings
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from protosphere.classifiers.class_means import ClassMeans, class_means
from protosphere.classifiers.class_scatter import ClassScatter, class_scatter
from protosphere.classifiers.score_forms import Rule, ScoreForm, plain_form, whitened_form
from protosphere.classifiers.whitening import Shrinkage

WhiteningName = Literal["none", "shrunk"]


@dataclass(frozen=True, eq=False)
class ClassTable:
    """Sorted class names with class means, and with the within-class scatter for whitening.

    Attributes:
        names: Sorted class names.
        means: Total weight and weighted sum of the unit features of each class.
        scatter: The same means with the pooled within-class scatter, or None.
    """

    names: NDArray[Any]
    means: ClassMeans
    scatter: ClassScatter | None = None
    _forms: dict[Any, ScoreForm] = field(default_factory=dict, init=False, repr=False)

    def merge(self, other: "ClassTable") -> "ClassTable":
        """Return the classes and the samples of both tables, with a scatter if the other has one.

        Raises:
            ValueError: Only the other table has a scatter.
        """
        if other.scatter is not None and self.scatter is None:
            raise _no_scatter_error()
        own = self.add_names(other.names)
        others = other.add_names(self.names)
        if own.scatter is not None and others.scatter is not None:
            return _table(own.names, own.scatter.merge(others.scatter))
        return _table(own.names, own.means.merge(others.means))

    def add_names(self, names: NDArray[Any]) -> "ClassTable":
        """Return the table with further classes, which have no samples."""
        union = np.unique(np.concatenate([self.names, names]))
        positions = torch.from_numpy(np.searchsorted(union, self.names))
        moments = self.means if self.scatter is None else self.scatter
        return _table(union, moments.expand(positions, num_classes=len(union)))

    def select(self, kept: NDArray[np.bool_]) -> "ClassTable":
        """Return some of the classes; the scatter stays that of all."""
        index = torch.from_numpy(kept.nonzero()[0])
        moments = self.means if self.scatter is None else self.scatter
        return _table(self.names[kept], moments.select(index))

    def without_scatter(self) -> "ClassTable":
        """Return the classes and their means alone."""
        return ClassTable(self.names, self.means)

    def form(self, whitening: WhiteningName, *, rule: Rule, shrinkage: Shrinkage) -> ScoreForm:
        """Return what scores are computed from; a whitening is computed once.

        Raises:
            ValueError: There is no scatter to whiten with.
        """
        if whitening == "none":
            return plain_form(self.means.means.numpy(), rule=rule)
        if self.scatter is None:
            raise _no_scatter_error()
        key = rule, shrinkage
        if key not in self._forms:
            self._forms[key] = whitened_form(self.scatter, rule=rule, shrinkage=shrinkage)
        return self._forms[key]


def fit_table(
    features: NDArray[Any],
    targets: NDArray[Any],
    *,
    weights: NDArray[Any] | None,
    whitening: WhiteningName,
) -> ClassTable:
    """Compute the table of samples.

    Args:
        features: Features of shape (samples, dim).
        targets: Class of each sample.
        weights: Weight of each sample, or None.
        whitening: Whether to compute the scatter.
    """
    names, labels = np.unique(targets, return_inverse=True)
    compute = class_scatter if whitening == "shrunk" else class_means
    moments = compute(
        _as_tensor(features),
        _as_tensor(labels),
        num_classes=len(names),
        weights=None if weights is None else _as_tensor(weights),
    )
    return _table(names, moments)


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
