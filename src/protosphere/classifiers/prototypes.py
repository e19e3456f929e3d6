"""The prototype classifier: class means on the sphere, with the interface of scikit-learn."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from protosphere.classifiers.array_scores import (
    array_class_means,
    array_scores,
    likeliest_temperature,
    linear_form,
)
from protosphere.classifiers.checks import check_temperature
from protosphere.classifiers.class_means import ClassMeans
from protosphere.classifiers.prototype_files import PrototypeFile, read_prototypes
from protosphere.classifiers.validation import (
    BaseEstimator,
    ClassifierMixin,
    check_is_fitted,
    check_same_kind,
    class_indices,
    validate_features,
    validate_labels,
    validate_sample_weight,
)
from protosphere.storage import write_atomically

Rule = Literal["cosine", "nearest"]


class PrototypeClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose prototypes are class means of unit features.

    With u = x/‖x‖ and μ_c = Σ w_i u_i / Σ w_i over the samples of class c, the score of a class is
    cos(x, μ_c) under the rule ``"cosine"`` and −‖u − μ_c‖² under the rule ``"nearest"``.
    Probabilities are the softmax of the scores divided by the temperature. Fitting is one pass over
    the data; classes can be added and removed at any time without another pass.

    Args:
        rule: Decision rule: ``"cosine"`` or ``"nearest"`` (nearest class mean).
        temperature: Temperature of the probabilities, until :meth:`calibrate` is called. It does
            not change predictions.

    Attributes:
        classes_: Sorted class names.
        weights_: Total sample weight of each class; the number of samples if no weights were given.
        sums_: Weighted sum of the unit features of each class, in float64.
        temperature_: Temperature in use: the given one, or the result of :meth:`calibrate`.
        n_features_in_: Dimension of the features.

    >>> features = np.array([[1.0, 0.1], [1.0, -0.1], [0.0, 1.0]])
    >>> classifier = PrototypeClassifier().fit(features, ["right", "right", "up"])
    >>> classifier.predict([[5.0, 1.0]]).tolist()
    ['right']
    >>> classifier.add_class("left", [[-1.0, 0.0]]).predict([[-3.0, 1.0]]).tolist()
    ['left']
    """

    classes_: NDArray[Any]
    weights_: NDArray[np.float64]
    sums_: NDArray[np.float64]
    temperature_: float
    n_features_in_: int

    def __init__(self, *, rule: Rule = "cosine", temperature: float = 0.1) -> None:
        self.rule = rule
        self.temperature = temperature

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
    ) -> "PrototypeClassifier":
        """Compute the class means; the results of earlier calls are discarded.

        Args:
            X: Features of shape (samples, dim). Float32 arrays are not copied.
            y: Class of each sample, strings or whole numbers.
            sample_weight: Weight of each sample, not negative. A class whose samples all have
                weight 0 is dropped.

        Returns:
            The classifier itself.

        Raises:
            ValueError: The arrays do not match or are not valid.
        """
        features, targets, weights = self._validate(X, y, sample_weight, reset=True)
        classes, labels = np.unique(targets, return_inverse=True)
        means = array_class_means(features, labels, len(classes), weights)
        weights_, sums_ = means.weights.numpy(), means.sums.numpy()
        present = weights_ > 0
        self.classes_ = classes[present]
        self.weights_, self.sums_ = weights_[present], sums_[present]
        self.temperature_ = self.temperature
        return self

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> "PrototypeClassifier":
        """Add samples; the result equals :meth:`fit` on all samples, for any batches and order.

        Args:
            X: Features of shape (samples, dim).
            y: Class of each sample. New classes are added.
            classes: Further classes to add. A class without samples is never predicted.
            sample_weight: Weight of each sample, not negative.

        Returns:
            The classifier itself.

        Raises:
            ValueError: The arrays do not match or are not valid, or strings and numbers are mixed
                as class names.
        """
        first = not hasattr(self, "classes_")
        features, targets, weights = self._validate(X, y, sample_weight, reset=first)
        requested = targets[:0] if classes is None else np.asarray(classes)
        known = targets[:0] if first else self.classes_
        check_same_kind(targets, known)
        check_same_kind(requested, targets if first else known)
        union = np.unique(np.concatenate([known, requested, targets]))
        means = array_class_means(features, np.searchsorted(union, targets), len(union), weights)
        if not first:
            position = torch.from_numpy(np.searchsorted(union, known))
            means.weights.index_add_(0, position, torch.from_numpy(self.weights_))
            means.sums.index_add_(0, position, torch.from_numpy(self.sums_))
        self.classes_ = union
        self.weights_, self.sums_ = means.weights.numpy(), means.sums.numpy()
        if first:
            self.temperature_ = self.temperature
        return self

    def add_class(self, name: Hashable, X: ArrayLike) -> "PrototypeClassifier":
        """Add a class; the other classes do not change.

        Args:
            name: Name of the new class.
            X: Features of its samples, of shape (samples, dim).

        Returns:
            The classifier itself.

        Raises:
            ValueError: The class exists already.
        """
        check_is_fitted(self)
        if not isinstance(name, Hashable):
            raise ValueError(f"name must be one class name, got {type(name).__name__}")
        if name in self.classes_.tolist():
            raise ValueError(f"there is already a class {name!r}; partial_fit adds samples to it")
        features = np.asarray(X)
        return self.partial_fit(features, np.array([name] * len(features)))

    def remove_class(self, name: Hashable) -> "PrototypeClassifier":
        """Remove a class; the other classes do not change.

        Args:
            name: Name of the class.

        Returns:
            The classifier itself.

        Raises:
            ValueError: The class does not exist, or it is the only one.
        """
        check_is_fitted(self)
        kept = np.array([existing != name for existing in self.classes_.tolist()])
        if bool(kept.all()):
            raise ValueError(f"there is no class {name!r} to remove")
        if not bool(kept.any()):
            raise ValueError(f"a classifier needs at least one class, and {name!r} is its last")
        self.classes_ = self.classes_[kept]
        self.weights_, self.sums_ = self.weights_[kept], self.sums_[kept]
        return self

    @property
    def prototypes_(self) -> NDArray[np.float64]:
        """The class means, of shape (classes, dim); NaN for a class without samples."""
        with np.errstate(invalid="ignore", divide="ignore"):
            means: NDArray[np.float64] = self.sums_ / self.weights_[:, None]
        return means

    def scores(self, X: ArrayLike) -> NDArray[Any]:
        """Return the score of each class.

        Args:
            X: Features of shape (samples, dim).

        Returns:
            Cosines or negative squared distances, of shape (samples, classes); −∞ for a class
            without samples.

        Raises:
            ValueError: The features are not finite or have another dimension.
        """
        check_is_fitted(self)
        return array_scores(validate_features(self, X), *self._weight_and_bias())

    def decision_function(self, X: ArrayLike) -> NDArray[Any]:
        """Return the scores; for two classes, the second score minus the first.

        The shape for two classes is (samples,), as scikit-learn requires.

        Args:
            X: Features of shape (samples, dim).
        """
        scores = self.scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class with the highest score for each sample.

        Args:
            X: Features of shape (samples, dim).
        """
        indices = self.scores(X).argmax(1)
        predictions: NDArray[Any] = self.classes_[indices]
        return predictions

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Return class probabilities: the softmax of the scores divided by the temperature.

        Args:
            X: Features of shape (samples, dim).

        Returns:
            Probabilities of shape (samples, classes), in the order of ``classes_``.
        """
        probabilities = self.scores(X) / self.temperature_
        probabilities -= probabilities.max(1, keepdims=True)
        np.exp(probabilities, out=probabilities)
        probabilities /= probabilities.sum(1, keepdims=True)
        return probabilities

    def rejection_score(self, X: ArrayLike) -> NDArray[Any]:
        """Return minus the highest score of each sample; larger for samples far from all classes.

        Under the rule ``"cosine"`` this is :func:`protosphere.classifiers.rejection_score` of the
        class means, under ``"nearest"`` the smallest squared distance.

        Args:
            X: Features of shape (samples, dim).
        """
        rejection_scores: NDArray[Any] = -self.scores(X).max(1)
        return rejection_scores

    def calibrate(self, X: ArrayLike, y: ArrayLike) -> "PrototypeClassifier":
        """Choose the temperature that minimizes the mean of −log p of the true classes.

        Use samples that were not fitted; on the fitted ones the temperature comes out too small.

        Args:
            X: Features of shape (samples, dim).
            y: Class of each sample.

        Returns:
            The classifier itself.

        Raises:
            ValueError: A label is not a class of the classifier, or its class has no samples.
        """
        scores = self.scores(X)
        targets = validate_labels(y, num_samples=len(scores))
        labels = class_indices(targets, self.classes_)
        empty = self.weights_[labels] == 0
        if bool(empty.any()):
            name = targets[empty][0]
            raise ValueError(f"labels must be of classes with samples, but {name!s} has none")
        self.temperature_ = likeliest_temperature(scores, labels)
        return self

    def to_linear(self) -> nn.Linear:
        """Return a linear layer whose outputs on unit features are the scores over the temperature.

        Under the rule ``"cosine"`` its predictions are right for features of any norm; under
        ``"nearest"`` the features must be normalized.
        """
        check_is_fitted(self)
        weight, bias = (
            torch.from_numpy(array).float() / self.temperature_ for array in self._weight_and_bias()
        )
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
        return layer

    def to_module(self) -> nn.Module:
        """Return a module from features of any norm to the scores over the temperature."""
        return nn.Sequential(_Normalize(), self.to_linear())

    def save(self, path: Path | str) -> None:
        """Save the classifier as safetensors; an existing file is replaced.

        Args:
            path: File to write.

        Raises:
            StorageError: The file cannot be written; an existing file is left unchanged.
        """
        write_atomically(Path(path), self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the classifier in the format of :meth:`save`."""
        check_is_fitted(self)
        return PrototypeFile(
            self.rule, self.temperature_, self.classes_, weights=self.weights_, sums=self.sums_
        ).to_bytes()

    @classmethod
    def load(cls, path: Path | str) -> "PrototypeClassifier":
        """Load a classifier that :meth:`save` wrote.

        Args:
            path: The file.

        Raises:
            ValueError: The file does not exist, is damaged or is not a saved classifier.
        """
        content = read_prototypes(path)
        means = ClassMeans(torch.from_numpy(content.weights), torch.from_numpy(content.sums))
        options: dict[str, Any] = {"rule": content.rule, "temperature": content.temperature}
        return cls.from_means(means, content.classes, **options)

    @classmethod
    def from_means(
        cls,
        means: ClassMeans,
        classes: ArrayLike,
        *,
        rule: Rule = "cosine",
        temperature: float = 0.1,
    ) -> "PrototypeClassifier":
        """Create a classifier from class means that were computed with :func:`class_means`.

        Args:
            means: Class means, from any device and any number of processes.
            classes: Name of each class, in the order of the means.
            rule: Decision rule.
            temperature: Temperature of the probabilities.

        Raises:
            ValueError: The number of names does not match, or two names are equal.
        """
        names = np.array(classes)
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
        index = torch.from_numpy(order)
        classifier = cls(rule=rule, temperature=temperature)
        classifier.classes_, classifier.n_features_in_ = names, means.sums.shape[1]
        classifier.weights_ = means.weights.double().cpu()[index].numpy()
        classifier.sums_ = means.sums.double().cpu()[index].numpy()
        classifier.temperature_ = temperature
        return classifier

    def _weight_and_bias(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the linear form of the scores on unit features: weight @ u + bias."""
        self._check_arguments()
        return linear_form(self.prototypes_, rule=self.rule)

    def _validate(
        self, X: ArrayLike, y: ArrayLike | None, sample_weight: ArrayLike | None, *, reset: bool
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
        self._check_arguments()
        features = validate_features(self, X, reset=reset)
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        labels = validate_labels(y, num_samples=len(features))
        return features, labels, validate_sample_weight(sample_weight, features)

    def _check_arguments(self) -> None:
        if self.rule not in ("cosine", "nearest"):
            raise ValueError(f"rule must be 'cosine' or 'nearest', got {self.rule!r}")
        check_temperature(self.temperature)


class _Normalize(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.normalize(features, dim=-1)
