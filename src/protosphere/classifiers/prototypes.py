"""The prototype classifier: class means on the sphere, fitted in one pass, with scikit-learn's interface."""

import json
import warnings
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from protosphere.classifiers.class_means import ClassMeans, class_means

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_consistent_length,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )
except ImportError as error:  # pragma: no cover
    raise ImportError(
        'PrototypeClassifier needs scikit-learn: pip install "protosphere[train]"'
    ) from error

Rule = Literal["cosine", "nearest"]
_ROWS = 1 << 16
_FORMAT = "protosphere prototypes 1"


class PrototypeClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Class means on the unit sphere as a classifier: nothing is trained, classes come and go.

    With u = x/‖x‖ and μ_c = Σ w_i u_i / Σ w_i over the samples of a class, the score of a class is cos(x, μ_c), or
    −‖u − μ_c‖² by the rule of the nearest mean. Probabilities are the softmax of scores divided by the temperature.

    Args:
        rule: ``"cosine"``, or ``"nearest"`` mean.
        temperature: of the probabilities, until :meth:`calibrate` finds another. It changes no prediction.

    Attributes:
        classes_: sorted.
        weights_: the weight of the samples of each class: their number, if none were given.
        sums_: weighted sums of unit vectors, float64.
        temperature_: of the probabilities: the one given, or the one found.
        n_features_in_: the width of the features.

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
        """Take the means of these samples, and forget earlier ones.

        Args:
            X: features, (samples, dim); float32 is read where it is.
            y: the class of each sample: numbers or texts.
            sample_weight: not negative.
        """
        self._check_options()
        features, targets, weights = self._checked(X, y, sample_weight, reset=True)
        classes, labels = np.unique(targets, return_inverse=True)
        self._take(classes, _means(features, labels, len(classes), weights))
        return self

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> "PrototypeClassifier":
        """Add samples. The result is that of :meth:`fit` on all of them, whatever the batches.

        Args:
            X: features.
            y: the class of each; classes that are new are taken up.
            classes: classes to have from the start, samples or not; one without samples is never predicted.
            sample_weight: not negative.
        """
        self._check_options()
        first = not hasattr(self, "classes_")
        features, targets, weights = self._checked(X, y, sample_weight, reset=first)
        known = np.asarray([] if first else self.classes_, dtype=targets.dtype if first else None)
        for names in (targets,) if classes is None else (targets, np.asarray(classes)):
            _see_that_of_a_kind(names, targets if first else known)
        asked = targets if classes is None else np.concatenate([np.asarray(classes), targets])
        union = np.unique(np.concatenate([known, asked])) if len(known) else np.unique(asked)
        means = _means(features, np.searchsorted(union, targets), len(union), weights)
        if not first:
            own = torch.from_numpy(np.searchsorted(union, known))
            means.weights.index_add_(0, own, torch.from_numpy(self.weights_))
            means.sums.index_add_(0, own, torch.from_numpy(self.sums_))
        self._take(union, means, drop=False)
        return self

    def add_class(self, name: Hashable, X: ArrayLike) -> "PrototypeClassifier":
        """Add a class from samples of it; other classes stay as they are.

        Raises:
            ValueError: there is such a class already; :meth:`partial_fit` adds samples to one.
        """
        check_is_fitted(self)
        if name in self.classes_.tolist():
            raise ValueError(
                f"a class that is added must be new; there is a class {name!r} already"
            )
        features = np.asarray(X)
        return self.partial_fit(features, np.array([name] * len(features)))

    def remove_class(self, name: Hashable) -> "PrototypeClassifier":
        """Take a class out; the others are as if it had never been there.

        Raises:
            ValueError: there is none of that name, or none would be left.
        """
        check_is_fitted(self)
        kept = self.classes_ != name
        if bool(np.all(kept)):
            raise ValueError(f"a class that is removed must be there; there is no {name!r}")
        if not bool(np.any(kept)):
            raise ValueError("a classifier must keep a class; this is its last")
        self.classes_, self.weights_, self.sums_ = (
            self.classes_[kept],
            self.weights_[kept],
            self.sums_[kept],
        )
        return self

    @property
    def prototypes_(self) -> NDArray[np.float64]:
        """The class means; NaN for a class without samples."""
        with np.errstate(invalid="ignore", divide="ignore"):
            means: NDArray[np.float64] = self.sums_ / self.weights_[:, None]
        return means

    def scores(self, X: ArrayLike) -> NDArray[Any]:
        """The score of each class, (samples, classes): cosines, or minus squared distances; −∞ without samples."""
        check_is_fitted(self)
        features = validate_data(
            self, X, reset=False, dtype=[np.float32, np.float64], ensure_all_finite=False
        )
        weight, bias = self._linear()
        weight, bias = weight.astype(features.dtype), bias.astype(features.dtype)
        result = np.empty((len(features), len(bias)), features.dtype)
        for start in range(0, len(features), _ROWS):
            part = features[start : start + _ROWS]
            lengths = np.linalg.norm(part, axis=1, keepdims=True)
            if not bool(np.isfinite(lengths).all()):
                raise ValueError(
                    "Input X contains NaN or infinity, or values too large for its dtype."
                )
            lengths[lengths == 0] = 1
            result[start : start + _ROWS] = part @ weight.T / lengths + bias
        return result

    def decision_function(self, X: ArrayLike) -> NDArray[Any]:
        """The scores; for two classes, as scikit-learn has it, that of the second minus that of the first."""
        scores = self.scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class with the highest score."""
        scores = self.scores(X)
        chosen: NDArray[Any] = self.classes_[scores.argmax(1)]
        return chosen

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """The softmax of scores over the temperature."""
        scores = self.scores(X) / self.temperature_
        scores -= scores.max(1, keepdims=True)
        np.exp(scores, out=scores)
        shares: NDArray[Any] = scores / scores.sum(1, keepdims=True)
        return shares

    def rejection_score(self, X: ArrayLike) -> NDArray[Any]:
        """How far a sample is from every prototype: minus its highest score, larger for stranger inputs."""
        farthest: NDArray[Any] = -self.scores(X).max(1)
        return farthest

    def calibrate(self, X: ArrayLike, y: ArrayLike) -> "PrototypeClassifier":
        """Choose the temperature that makes these samples most likely; best on samples that were not fitted.

        The mean of −log p is convex in 1/τ; its minimum is found by halving an interval.

        Raises:
            ValueError: a label is no class of the classifier.
        """
        scores = torch.from_numpy(self.scores(X).astype(np.float64))
        targets = column_or_1d(y)
        check_consistent_length(scores, targets)
        labels = np.searchsorted(self.classes_, targets).clip(max=len(self.classes_) - 1)
        if not bool(np.all(self.classes_[labels] == targets)):
            raise ValueError(
                "labels to calibrate with must be classes of the classifier; some are not"
            )
        if not bool(np.all(self.weights_[labels] > 0)):
            empty = self.classes_[labels[self.weights_[labels] == 0][0]]
            raise ValueError(
                f"labels to calibrate with must be of classes that have samples; {empty!s} has none"
            )
        self.temperature_ = 1 / _likeliest_scale(scores, torch.from_numpy(labels))
        return self

    def to_linear(self) -> nn.Linear:
        """A plain linear layer: on unit features its outputs are the scores over the temperature.

        By the cosine rule the class is right for features of any length; by that of the nearest mean they must be unit.
        """
        check_is_fitted(self)
        weight, bias = (
            torch.from_numpy(part).float() / self.temperature_ for part in self._linear()
        )
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
        return layer

    def to_module(self) -> nn.Module:
        """A torch module from features of any length to scores over the temperature."""
        return nn.Sequential(_UnitLength(), self.to_linear())

    def save(self, path: Path | str) -> None:
        """Write the classifier as safetensors."""
        Path(path).write_bytes(self.to_bytes())

    def to_bytes(self) -> bytes:
        """The classifier as safetensors: sums, weights, names and options; nothing in it is code."""
        from safetensors.numpy import save  # noqa: PLC0415

        check_is_fitted(self)
        names = self.classes_.tolist()
        if not all(isinstance(name, str | int | float | bool) for name in names):
            raise ValueError(
                f"classes must be texts or numbers to be saved; got {type(names[0]).__name__}"
            )
        facts = {
            "format": _FORMAT,
            "rule": self.rule,
            "temperature": repr(float(self.temperature_)),
        }
        facts |= {"classes": json.dumps(names), "dtype": self.classes_.dtype.str}
        return save({"sums": self.sums_, "weights": self.weights_}, metadata=facts)

    @classmethod
    def load(cls, path: Path | str) -> "PrototypeClassifier":
        """Read a classifier.

        Raises:
            ValueError: the file is none, or damaged.
        """
        from safetensors import safe_open  # noqa: PLC0415

        try:
            with safe_open(str(path), framework="numpy") as file:
                facts = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if facts.get("format") != _FORMAT:
                raise ValueError("another format")
            classifier = cls(rule=facts["rule"], temperature=float(facts["temperature"]))
            names = json.loads(facts["classes"])
            dtype = np.dtype(facts["dtype"])
            classes = np.array(names, dtype=object if dtype.kind == "O" else dtype)
            if (
                arrays["sums"].ndim != 2
                or len(classes) != len(arrays["sums"])
                or len(classes) != len(arrays["weights"])
            ):
                raise ValueError("sizes that do not fit")
        except FileNotFoundError:
            raise ValueError(f"{path} must be a file; there is none") from None
        except Exception as error:  # Whatever a damaged or foreign file makes its parsers raise.
            raise ValueError(
                f"{path} must be a saved PrototypeClassifier; it is damaged or none"
            ) from error
        classifier.classes_, classifier.n_features_in_ = classes, arrays["sums"].shape[1]
        classifier.sums_, classifier.weights_ = arrays["sums"], arrays["weights"]
        classifier.temperature_ = classifier.temperature
        return classifier

    @classmethod
    def from_means(
        cls, means: ClassMeans, classes: ArrayLike, **options: Any
    ) -> "PrototypeClassifier":
        """From means that were streamed, on any device and over any number of processes."""
        names = np.array(classes)
        if names.shape != means.weights.shape:
            raise ValueError(f"classes must be one a mean, {len(means.weights)}; got {names.shape}")
        if len(np.unique(names)) < len(names):
            raise ValueError("classes must all be different; some are not")
        order = np.argsort(names, kind="stable")
        classifier = cls(**options)
        classifier.n_features_in_ = means.sums.shape[1]
        weights, sums = (
            part.double().cpu()[torch.from_numpy(order)] for part in (means.weights, means.sums)
        )
        classifier._take(names[order], ClassMeans(weights, sums), drop=False)
        return classifier

    def _linear(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Scores of unit features are weight @ u + bias."""
        self._check_options()
        means = np.nan_to_num(self.prototypes_)
        absent = np.where(self.weights_ > 0, 0.0, -np.inf)
        if self.rule == "cosine":
            lengths = np.linalg.norm(means, axis=1, keepdims=True)
            return means / np.where(lengths > 0, lengths, 1), absent
        return 2 * means, absent - 1 - (means**2).sum(1)

    def _checked(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        *,
        reset: bool,
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
        # Whether numbers are finite shows in the lengths, without a pass of its own.
        features, targets = validate_data(
            self, X, y, reset=reset, dtype=[np.float32, np.float64], ensure_all_finite=False
        )
        check_classification_targets(targets)
        if sample_weight is None:
            return features, targets, None
        return (
            features,
            targets,
            _check_sample_weight(
                sample_weight, features, dtype=np.float64, ensure_non_negative=True
            ),
        )

    def _check_options(self) -> None:
        if self.rule not in ("cosine", "nearest"):
            raise ValueError(f"rule must be 'cosine' or 'nearest'; got {self.rule!r}")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive; got {self.temperature}")

    def _take(self, classes: NDArray[Any], means: ClassMeans, *, drop: bool = True) -> None:
        weights, sums = means.weights.numpy(), means.sums.numpy()
        if drop:  # A class whose samples all weigh nothing is no class.
            kept = weights > 0
            classes, weights, sums = classes[kept], weights[kept], sums[kept]
        self.classes_, self.weights_, self.sums_ = classes, weights, sums
        if drop or not hasattr(self, "temperature_"):
            self.temperature_ = self.temperature


class _UnitLength(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.normalize(features, dim=-1)


def _means(
    features: NDArray[Any], labels: NDArray[Any], count: int, weights: NDArray[Any] | None
) -> ClassMeans:
    try:
        return class_means(
            _tensor(features),
            _tensor(labels),
            num_classes=count,
            weights=None if weights is None else _tensor(weights),
        )
    except ValueError as error:
        if "finite" in str(error):
            raise ValueError(
                "Input X contains NaN or infinity, or values too large for its dtype."
            ) from None
        raise


def _tensor(array: NDArray[Any]) -> Tensor:
    """The array as a tensor on the same memory; nothing is written to it, so it may be mapped read-only."""
    if min(array.strides, default=0) < 0:  # Of an array turned round, which torch does not take.
        array = array.copy()
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return torch.from_numpy(array)


def _see_that_of_a_kind(names: NDArray[Any], known: NDArray[Any]) -> None:
    """Raise ValueError where texts meet numbers, which do not sort together."""
    if len(names) and len(known) and (names.dtype.kind in "OUS") != (known.dtype.kind in "OUS"):
        example, other = known.tolist()[0], names.tolist()[0]
        raise ValueError(
            f"a class must be named as the others are, such as {example!r}; got {other!r}"
        )


def _likeliest_scale(scores: Tensor, labels: Tensor) -> float:
    """The β > 0 that minimizes mean(lse(β s) − β s_y)."""
    low, high = 1e-3, 1e5  # Temperatures from 1e-5 to 1000.
    middle = 10.0
    own = scores.gather(1, labels[:, None]).squeeze(1)

    def slope(scale: float) -> float:
        return float(
            ((scores * scale).softmax(1) * scores.nan_to_num(neginf=0.0)).sum(1).mean() - own.mean()
        )

    for _ in range(60):  # The slope rises with the scale: halve the interval, in the logarithm.
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
        middle = float(low * high) ** 0.5
    return middle
