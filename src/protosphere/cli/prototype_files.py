"""Files that ``protosphere prototypes`` reads and writes: features, labels, classifiers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from protosphere.cli.output_files import check_new_file
from protosphere.data.feature_files import FeatureFile, read_features

if TYPE_CHECKING:
    from protosphere.classifiers import PrototypeClassifier

# A mean of unit features below this norm is rounding noise.
_MIN_NORM = 1e-6


def read_labeled(
    path: Path, features: str, labels: str, *, like: "PrototypeClassifier | None" = None
) -> tuple[np.ndarray, np.ndarray]:
    """Read features and labels; labels become class names where the file has names.

    Args:
        path: File with features and labels.
        features: Key of the features.
        labels: Key of the labels.
        like: Classifier whose dimension the features must have, and a class of which must be
            among the labels.

    Raises:
        ValueError: The arrays are not features and labels, or do not fit the classifier.
    """
    content = read_features(path, features=features, labels=labels)
    inputs = _check_features(path, content, like)
    return inputs, _read_labels(path, content, inputs, like)


def _read_labels(
    path: Path, content: FeatureFile, inputs: np.ndarray, like: "PrototypeClassifier | None"
) -> np.ndarray:
    """Return the labels of a file; at least one must be a class of the classifier."""
    targets = _check_labels(path, content, inputs)
    if like is not None and set(targets.tolist()).isdisjoint(like.classes_.tolist()):
        raise ValueError(
            f"no label in {path.name} is a class of the classifier; its classes include "
            f"{like.classes_[0]}, the labels {targets[0]}"
        )
    return targets


def _check_labels(path: Path, content: FeatureFile, inputs: np.ndarray) -> np.ndarray:
    """Return the labels of a file, as class names where the file has names."""
    targets = _to_numpy(content.labels)
    if targets.dtype.kind == "f" and np.array_equal(targets, np.floor(targets)):
        targets = targets.astype(np.int64)
    if targets.shape != inputs.shape[:1] or targets.dtype.kind not in "biuUSO":
        raise ValueError(
            f"labels in {path.name} must be whole numbers or strings, one per sample, shape "
            f"({len(inputs)},), got {targets.shape} of {targets.dtype}"
        )
    if targets.dtype.kind == "S":
        return np.char.decode(targets, "utf-8")
    names = content.class_names
    if names is None or targets.dtype.kind not in "iu":
        return targets
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= len(names):
        got = low if low < 0 else high
        raise ValueError(
            f"labels in {path.name} must be between 0 and {len(names) - 1}, one for each class "
            f"name, got {got}"
        )
    named: np.ndarray = np.array(names)[targets]
    return named


class ClassifierInput(NamedTuple):
    """Features to classify.

    Attributes:
        inputs: The features.
        targets: The labels; None if there are none, or none that can be used.
        problem: Why labels that are there cannot be used; None if they can.
    """

    inputs: np.ndarray
    targets: np.ndarray | None
    problem: str | None


def read_samples(
    path: Path, features: str, labels: str | None, *, like: "PrototypeClassifier"
) -> ClassifierInput:
    """Read features of the dimension of a classifier, and their labels if there are any.

    Args:
        path: File with features.
        features: Key of the features.
        labels: Key of the labels, which the file must have. None reads ``"labels"`` if the file
            has this key.
        like: The classifier.

    Raises:
        ValueError: The array is not features of this dimension, or labels of the given key are
            missing or cannot be used.
    """
    if labels is not None:
        return ClassifierInput(*read_labeled(path, features, labels, like=like), None)
    content = read_features(path, features=features, labels=None)
    inputs = _check_features(path, content, like)
    if not len(content.labels):
        return ClassifierInput(inputs, None, None)
    try:
        return ClassifierInput(inputs, _read_labels(path, content, inputs, like), None)
    except ValueError as error:
        return ClassifierInput(inputs, None, str(error))


def compute_accuracies(predicted: ArrayLike, targets: np.ndarray) -> dict[str, Any]:
    """Return number of samples, accuracy, and balanced accuracy: the mean over classes.

    Args:
        predicted: Predicted classes.
        targets: Labels; a class without samples does not count in the mean.

    >>> compute_accuracies(["a", "a", "b"], np.array(["a", "b", "b"]))["balanced_accuracy"]
    0.75
    """
    correct = np.asarray(predicted) == targets
    _, index, counts = np.unique(targets, return_inverse=True, return_counts=True)
    num_correct = np.bincount(index, weights=correct)
    return {
        "num_samples": len(targets),
        "accuracy": float(correct.mean()),
        "balanced_accuracy": float((num_correct / counts).mean()),
    }


def read_unlabeled(path: Path, features: str, *, like: "PrototypeClassifier") -> np.ndarray:
    """Read features of the dimension of a classifier; the file needs no labels.

    Raises:
        ValueError: The array is not features of this dimension.
    """
    return _check_features(path, read_features(path, features=features, labels=None), like)


def _check_features(
    path: Path, content: FeatureFile, like: "PrototypeClassifier | None"
) -> np.ndarray:
    inputs = _to_numpy(content.features)
    if inputs.ndim != 2 or inputs.dtype.kind not in "iuf":
        raise ValueError(
            f"features in {path.name} must be numbers of shape (samples, dim), "
            f"got {inputs.shape} of {inputs.dtype}"
        )
    if 0 in inputs.shape:
        raise ValueError(
            f"features in {path.name} must have samples and dimensions, got shape {inputs.shape}"
        )
    if not inputs.any():
        raise ValueError(f"features in {path.name} must not all be zero")
    if like is not None and inputs.shape[1] != like.n_features_in_:
        raise ValueError(
            f"features in {path.name} must have {like.n_features_in_} dimensions as those of the "
            f"classifier, got {inputs.shape[1]}"
        )
    return inputs


def _to_numpy(array: np.ndarray | torch.Tensor) -> np.ndarray:
    if isinstance(array, np.ndarray):
        return array
    converted: np.ndarray = (array.float() if array.is_floating_point() else array).numpy()
    return converted


def check_directions(classifier: "PrototypeClassifier") -> None:
    """Check that no class mean of unit features vanishes, since its predictions would be chance.

    With whitening, features are centered first and the mean of a class may be zero.

    Raises:
        ValueError: The samples of a class are zero or cancel each other out.
    """
    if classifier.whitening != "none":
        return
    norms = np.linalg.norm(classifier.prototypes_, axis=1)
    vanishing = classifier.classes_[norms < _MIN_NORM]
    if len(vanishing):
        raise ValueError(
            f"samples of a class must have a common direction, got class {vanishing[0]}, whose "
            "samples are zero or cancel each other out"
        )


def parse_shrinkage(text: str, *, whitening: str) -> Any:
    """Return the value of ``--shrinkage``: ``"auto"``, ``"cv"`` or a number between 0 and 1.

    Raises:
        ValueError: The text is something else, or there is no whitening to shrink for.
    """
    if text == "auto":
        return text
    if whitening == "none":
        raise ValueError(f"--shrinkage {text} must come with --whitening shrunk")
    if text == "cv":
        return text
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount <= 1:
        raise ValueError(f"--shrinkage must be auto, cv or a number between 0 and 1, got {text}")
    return amount


def parse_class(classifier: "PrototypeClassifier", name: str) -> Any:
    """Return a class of the command line in the type of the classes of a classifier.

    Raises:
        ValueError: The classes are numbers or Booleans and the name is not one.
    """
    kind = classifier.classes_.dtype.kind
    if kind == "b":
        if name not in ("True", "False"):
            raise ValueError(f"classes of this classifier are True and False, got {name}")
        return name == "True"
    if kind not in "iuf":
        return name
    try:
        return int(name) if kind in "iu" else float(name)
    except ValueError:
        raise ValueError(
            f"classes of this classifier are numbers, such as {classifier.classes_[0]}, got {name}"
        ) from None


def load_classifier(path: Path) -> "PrototypeClassifier":
    """Load a saved classifier.

    Raises:
        ValueError: The file is not a saved classifier.
    """
    from protosphere.classifiers import PrototypeClassifier

    return PrototypeClassifier.load(path)


def check_output(out: Path, *, overwrite: bool) -> None:
    """Check that a classifier may be saved to a path.

    Raises:
        ValueError: The suffix is another one, the file exists or is not a classifier, or its folder
            cannot be written to.
    """
    check_new_file("--out", out, suffixes=(".safetensors",), overwrite=overwrite)
    if not out.exists():
        return
    try:
        load_classifier(out)
    except ValueError:
        raise ValueError(f"--overwrite replaces a saved classifier, got {out}") from None


def check_export(out: Path, names: Path, *, overwrite: bool) -> None:
    """Check that a classifier may be exported to a path, and its class names to another.

    Raises:
        ValueError: The suffix is another one, a file exists, or is not of an earlier export.
    """
    if out.suffix != ".onnx":
        raise ValueError(f"OUT must be an .onnx file, got {out}")
    for path in (out, names):
        check_new_file("OUT", path, suffixes=(path.suffix,), overwrite=overwrite)
    existing = [path for path in (out, names) if path.exists()]
    if len(existing) == 1:
        raise ValueError(
            f"--overwrite replaces an earlier export, {out.name} and {names.name}, got "
            f"{existing[0]} alone"
        )
