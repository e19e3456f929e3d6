"""The prototype classifier: class means on the sphere, with the interface of scikit-learn."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

from protosphere.classifiers.class_means import ClassMeans
from protosphere.classifiers.class_scatter import ClassScatter
from protosphere.classifiers.class_table import ClassTable, WhiteningName, fit_table, name_classes
from protosphere.classifiers.prototype_files import PrototypeFile, read_prototypes
from protosphere.classifiers.score_forms import ScoreForm
from protosphere.classifiers.shrinkage import ChosenShrinkage
from protosphere.classifiers.temperatures import likeliest_temperature, log_softmax, softmax
from protosphere.classifiers.validation import (
    BaseEstimator,
    ClassifierMixin,
    available_if,
    can_add_samples,
    check_is_fitted,
    check_names,
    class_indices,
    fitted_table,
    label_new_class,
    other_classes,
    validate_classes,
    validate_features,
    validate_labels,
    validate_options,
    validate_samples,
)
from protosphere.classifiers.whitening import Rule, Shrinkage
from protosphere.storage import write_atomically


class PrototypeClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose prototypes are class means of unit features.

    With u = x/‖x‖ and μ_c = Σ w_i u_i / Σ w_i over the samples of class c, the score of a class is
    cos(x, μ_c) under the rule ``"cosine"`` and −‖u − μ_c‖² under the rule ``"nearest"``.
    Probabilities are the softmax of the scores divided by the temperature. Fitting is one pass over
    the data; classes can be added and removed at any time without another pass.

    With ``whitening="shrunk"`` u and μ_c are replaced by A (u − m) and A (μ_c − m), where m is the
    mean of all unit features and AᵀA the inverse of the pooled within-class covariance S shrunk
    toward a multiple of the identity, (1 − a) S + a tr(S)/d I. On features that were not trained
    for class means this is worth several points of accuracy. The scatter comes from the same pass
    and adds up in the same way; a sample weight counts as that many samples.

    Arguments that :meth:`set_params` changes take effect at the next :meth:`fit`. Until then all
    methods, :meth:`partial_fit` and :meth:`add_class` among them, keep those of the last fit, and
    the temperature of :meth:`calibrate`.

    Args:
        rule: Decision rule: ``"cosine"`` or ``"nearest"`` (nearest class mean).
        temperature: Temperature of the probabilities, until :meth:`calibrate` is called. It does
            not change predictions.
        whitening: ``"none"``, or ``"shrunk"`` to whiten by the shrunk within-class covariance.
        shrinkage: Shrinkage a between 0 and 1; ``"auto"``, see
            :meth:`protosphere.classifiers.Whitening.from_scatter`; or ``"cv"``, which :meth:`fit`
            chooses for the rule and :meth:`partial_fit` keeps, see
            :func:`protosphere.classifiers.cross_validated_shrinkage`.

    Attributes:
        temperature_: Temperature in use: the given one, or the result of :meth:`calibrate`.
        n_features_in_: Dimension of the features.

    >>> features = np.array([[1.0, 0.1], [1.0, -0.1], [0.0, 1.0]])
    >>> classifier = PrototypeClassifier().fit(features, ["right", "right", "up"])
    >>> classifier.predict([[5.0, 1.0]]).tolist()
    ['right']
    >>> classifier.add_class("left", [[-1.0, 0.0]]).predict([[-3.0, 1.0]]).tolist()
    ['left']
    """

    temperature_: float
    n_features_in_: int
    _table: ClassTable

    def __init__(
        self,
        *,
        rule: Rule = "cosine",
        temperature: float = 0.1,
        whitening: WhiteningName = "none",
        shrinkage: ChosenShrinkage = "auto",
    ) -> None:
        self.rule = rule
        self.temperature = temperature
        self.whitening = whitening
        self.shrinkage = shrinkage

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
        options = validate_options(self)
        table = fit_table(*validate_samples(self, X, y, sample_weight, reset=True), **options)
        self._table = table.select(table.means.weights.numpy() > 0)
        self.temperature_ = float(self.temperature)
        return self

    @available_if(can_add_samples)  # type: ignore[untyped-decorator]
    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> "PrototypeClassifier":
        """Add samples; the result equals :meth:`fit` on all samples, for any batches and order.

        With ``shrinkage="cv"`` this method exists only after :meth:`fit`, which chooses the
        shrinkage from all samples.

        Args:
            X: Features of shape (samples, dim).
            y: Class of each sample. New classes are added.
            classes: Further classes to add. A class without samples is never predicted.
            sample_weight: Weight of each sample, not negative.

        Returns:
            The classifier itself.

        Raises:
            ValueError: The arrays do not match or are not valid, or class names differ in type.
        """
        first = not self.__sklearn_is_fitted__()
        options = validate_options(self) if first else {}
        samples = validate_samples(self, X, y, sample_weight, reset=first)
        known = samples[1][:0] if first else self.classes_
        requested = validate_classes(classes, samples[1], known)
        table = fit_table(*samples, **options) if first else self._table.add_samples(*samples)
        self._table = table.add_names(requested)
        if first:
            self.temperature_ = float(self.temperature)
        return self

    def add_class(self, name: Hashable, X: ArrayLike) -> "PrototypeClassifier":
        """Add a class; the means of the other classes do not change.

        With whitening, the samples of the new class also count for the common center and the
        within-class covariance, as in :meth:`fit`.

        Args:
            name: Name of the new class.
            X: Features of its samples, of shape (samples, dim).

        Returns:
            The classifier itself.

        Raises:
            ValueError: The class exists already.
        """
        check_is_fitted(self)
        self.partial_fit(X, label_new_class(name, X, self.classes_))
        return self

    def remove_class(self, name: Hashable) -> "PrototypeClassifier":
        """Remove a class; the means of the other classes do not change.

        With whitening, the scatter of the removed class stays part of the within-class covariance,
        while the center becomes that of the remaining classes.

        Args:
            name: Name of the class.

        Returns:
            The classifier itself.

        Raises:
            ValueError: The class does not exist, or it is the only one.
        """
        check_is_fitted(self)
        self._table = self._table.select(other_classes(name, self.classes_))
        return self

    @property
    def classes_(self) -> NDArray[Any]:
        """Sorted class names."""
        return fitted_table(self, "classes_").names

    @property
    def weights_(self) -> NDArray[np.float64]:
        """Total sample weight of each class; the number of samples if no weights were given."""
        return np.asarray(fitted_table(self, "weights_").means.weights)

    @property
    def sums_(self) -> NDArray[np.float64]:
        """Weighted sum of the unit features of each class, in float64."""
        return np.asarray(fitted_table(self, "sums_").means.sums)

    @property
    def prototypes_(self) -> NDArray[np.float64]:
        """The class means, of shape (classes, dim); NaN for a class without samples."""
        return np.asarray(fitted_table(self, "prototypes_").means.means)

    @property
    def shrinkage_(self) -> float | None:
        """The shrinkage in use; None without whitening."""
        whitening = fitted_table(self, "shrinkage_").form().whitening
        return None if whitening is None else whitening.shrinkage

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
        return self.score_form().scores(validate_features(self, X))

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
        indices, _ = self.score_form().best(validate_features(self, X))
        return np.asarray(self.classes_[indices])

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Return class probabilities: the softmax of the scores divided by the temperature.

        Args:
            X: Features of shape (samples, dim).

        Returns:
            Probabilities of shape (samples, classes), in the order of ``classes_``.
        """
        return softmax(self.scores(X), self.temperature_)

    def predict_log_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Return the logarithms of :meth:`predict_proba`, also where those are rounded to zero.

        Args:
            X: Features of shape (samples, dim).
        """
        return log_softmax(self.scores(X), self.temperature_)

    def rejection_score(self, X: ArrayLike) -> NDArray[Any]:
        """Return minus the highest score of each sample; larger for samples far from all classes.

        Under the rule ``"cosine"`` this is :func:`protosphere.classifiers.rejection_score` of the
        class means, under ``"nearest"`` the smallest squared distance.

        Args:
            X: Features of shape (samples, dim).
        """
        _, highest = self.score_form().best(validate_features(self, X))
        return -highest

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
        labels = class_indices(targets, self.classes_, self.weights_)
        self.temperature_ = likeliest_temperature(scores, labels)
        return self

    def to_linear(self) -> nn.Linear:
        """Return a float32 linear layer with the predictions of the classifier for unit features.

        Without whitening its outputs on unit features are the scores over the temperature, and
        under the rule ``"cosine"`` the predictions are right for features of any norm. With
        whitening the predictions on unit features are those of the classifier; under ``"cosine"``
        the outputs of a sample have a common factor, the norm of the whitened feature, under
        ``"nearest"`` a common summand. :meth:`to_module` gives the scores themselves.
        """
        return self.score_form().linear(self.temperature_)

    def to_module(self) -> nn.Module:
        """Return a float32 module from features of any norm to the scores over the temperature."""
        return self.score_form().module(self.temperature_)

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
        names = getattr(self, "feature_names_in_", None)
        return PrototypeFile(self.temperature_, self._table, names).to_bytes()

    @classmethod
    def load(cls, path: Path | str) -> "PrototypeClassifier":
        """Load a classifier that :meth:`save` wrote.

        Args:
            path: The file.

        Raises:
            ValueError: The file does not exist, is damaged or is not a saved classifier.
        """
        content = read_prototypes(path)
        classifier = cls._from_table(content.table, content.temperature)
        if content.feature_names is not None:
            classifier.feature_names_in_ = content.feature_names
        return classifier

    @classmethod
    def from_means(
        cls,
        means: ClassMeans | ClassScatter,
        classes: ArrayLike,
        *,
        rule: Rule = "cosine",
        temperature: float = 0.1,
        shrinkage: Shrinkage = "auto",
    ) -> "PrototypeClassifier":
        """Create a classifier from the result of :func:`class_means` or :func:`class_scatter`.

        Args:
            means: Class means, from any device and any number of processes. With a scatter the
                classifier has ``whitening="shrunk"``.
            classes: Name of each class, in the order of the means.
            rule: Decision rule.
            temperature: Temperature of the probabilities.
            shrinkage: Shrinkage of the within-class covariance, if there is one.

        Raises:
            ValueError: The number of names does not match, or names or options are not valid.
        """
        check_names(np.asarray(classes), argument="classes")
        table = name_classes(means, classes, rule=rule, shrinkage=shrinkage)
        return cls._from_table(table, temperature)

    @classmethod
    def _from_table(cls, table: ClassTable, temperature: float) -> "PrototypeClassifier":
        classifier = cls(rule=table.rule, temperature=temperature, shrinkage=table.shrinkage)
        classifier.whitening = "none" if table.scatter is None else "shrunk"
        validate_options(classifier)
        classifier._table, classifier.n_features_in_ = table, table.means.sums.shape[1]
        classifier.temperature_ = float(temperature)
        return classifier

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_table")

    def score_form(self) -> ScoreForm:
        """Return the arrays that scores are computed from."""
        check_is_fitted(self)
        return self._table.form()
