"""Accuracy of each class of CIFAR-100: which classes a loss gains or loses against cross-entropy.

``write_class_accuracy`` writes class_accuracy.json into the folder of a complete run. The other
functions compare the runs of a folder, GROUP/GROUP-METHOD-SEED, with those of cross-entropy of the
same seeds; class_tables.py shows them. All runs are tested on the same images, so that standard
errors over seeds say nothing about other test images.
"""

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from protosphere.data.class_groups import CIFAR100_SUPERCLASSES
from protosphere.geometry import normalize
from protosphere.recipes import registry
from protosphere.recipes.loading import load_run
from protosphere.runs import RunFolder
from protosphere.runs.arrays import read_arrays

FILE = "class_accuracy.json"
BASELINE = "ce"
# Mean cosines in the file, and the arrays that they are of.
COSINES = {
    "superclass_cosines": "class_cosines",
    "superclass_prototype_cosines": "prototype_cosines",
}
# Pairs of classes that are confused most often, of the 4,950 of CIFAR-100.
NUM_PAIRS = 100

Array = NDArray[np.float64]


class Estimate(NamedTuple):
    """A mean over seeds.

    Attributes:
        mean: The mean.
        error: Its standard error; None for one seed.
    """

    mean: float
    error: float | None


class ClassDifferences(NamedTuple):
    """How a loss differs from cross-entropy, class by class, over the seeds that both have.

    Attributes:
        method: Name of the loss.
        num_seeds: Number of seeds.
        accuracy: Difference of the test accuracies.
        nearest_mean_accuracy: Difference of the accuracies of the nearest class mean.
        classes: Difference of the test accuracies of each class.
        agreement: Correlation over classes of the differences of one seed with those of another,
            the mean over pairs of seeds; None for one seed. About 0 if the differences are noise.
        with_accuracy: Correlation of the differences of a seed with the accuracy under
            cross-entropy of the other seeds, the mean over seeds; None for one seed. With the
            accuracy of the same seed, noise alone would make it negative.
        with_cosine: The same with the largest cosine of the centered class mean with another one,
            under cross-entropy.
        with_nearest_means: The same with the differences of the nearest class mean.
        within_superclasses: Difference of the fraction of test images that are taken for another
            class of the same superclass.
        between_superclasses: Difference of the fraction that is taken for a class of another
            superclass.
        confused_pairs: Difference of the fraction that is confused within the pairs of classes that
            are confused most often, by all losses together.
    """

    method: str
    num_seeds: int
    accuracy: Estimate
    nearest_mean_accuracy: Estimate
    classes: list[Estimate]
    agreement: float | None
    with_accuracy: float | None
    with_cosine: float | None
    with_nearest_means: float | None
    within_superclasses: Estimate
    between_superclasses: Estimate
    confused_pairs: Estimate


class ClassComparison(NamedTuple):
    """All losses of a group of runs.

    Attributes:
        class_names: Name of each class.
        accuracy: Accuracy of each class under cross-entropy, the mean over seeds.
        errors: Fractions of test images that cross-entropy takes for another class of the same
            superclass, of another superclass, and confuses within the most confused pairs.
        differences: The other losses.
    """

    class_names: list[str]
    accuracy: list[float]
    errors: tuple[float, float, float]
    differences: list[ClassDifferences]


def write_class_accuracy(folder: Path, device: str) -> None:
    """Write accuracies and confusions of each class into the folder of a complete run.

    The file has, in the order of the classes: ``num_images``, the number of test images;
    ``accuracy`` of the head and ``nearest_mean_accuracy`` on them; ``nearest_class``, the class
    whose centered mean of training features has the largest cosine with that of the class, and
    ``nearest_cosine``; the mean cosine of centered class means within superclasses and between
    them, ``superclass_cosines``, and of prototypes, ``superclass_prototype_cosines``. The list
    ``errors`` has a triple for each kind of error: true class, predicted class, number.

    Args:
        folder: The run folder.
        device: Device to compute on.
    """
    run, arrays = load_run(folder, device=device), read_arrays(RunFolder(folder))
    test = run.features("test")
    features, labels = torch.as_tensor(test.features), torch.as_tensor(test.labels).cpu()
    # As in the evaluation during training.
    means = torch.as_tensor(arrays["class_means"], device=features.device)
    nearest = torch.cdist(normalize(features), means).argmin(1).cpu()
    counts = torch.bincount(labels, minlength=len(means))
    hits = torch.bincount(labels[nearest == labels], minlength=len(means))
    confusion = arrays["confusion"]
    cosines = arrays["class_cosines"].astype(np.float64)
    np.fill_diagonal(cosines, -np.inf)
    wrong = np.argwhere(confusion * (1 - np.eye(len(confusion), dtype=int)))
    columns = {
        "class_names": list(run.class_names),
        "num_images": counts.tolist(),
        "accuracy": (np.diag(confusion) / confusion.sum(1)).tolist(),
        "nearest_mean_accuracy": (hits / counts).tolist(),
        "nearest_class": cosines.argmax(1).tolist(),
        "nearest_cosine": cosines.max(1).round(4).tolist(),
        **{
            name: superclass_cosines(run.class_names, arrays[array])
            for name, array in COSINES.items()
        },
        "errors": [[int(i), int(j), int(confusion[i, j])] for i, j in wrong],
    }
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in columns.items()]
    (folder / FILE).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def superclass_cosines(names: Sequence[str], cosines: NDArray[Any]) -> list[float | None]:
    """Return the mean cosine of two classes of the same superclass, and of different ones.

    None stands for a mean over no classes, as with classes that are not of CIFAR-100.

    Args:
        names: Name of each class.
        cosines: Cosine of each pair of classes.
    """
    return [
        round(float(cosines[mask].mean(dtype=np.float64)), 4) if mask.any() else None
        for mask in _superclass_masks(original_names(names))
    ]


def read_records(folder: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """Return the files of a group of runs by method, in the order of the registry, and seed.

    Args:
        folder: Folder of the runs; their names are those of the folder, of a method and a seed.

    Raises:
        FileNotFoundError: There is no file of a run with cross-entropy.
    """
    found: dict[str, dict[int, dict[str, Any]]] = {BASELINE: {}}
    for path in sorted(folder.glob(f"{folder.name}-*/{FILE}")):
        method, _, seed = path.parent.name.removeprefix(f"{folder.name}-").rpartition("-")
        found.setdefault(method, {})[int(seed)] = json.loads(path.read_text())
    if not found[BASELINE]:
        raise FileNotFoundError(f"{folder} must have a {FILE} of cross-entropy; it has none")
    return {method: found[method] for method in registry.LOSSES if method in found}


def compare(records: dict[str, dict[int, dict[str, Any]]]) -> ClassComparison:
    """Compare losses with cross-entropy, class by class.

    Args:
        records: What :func:`read_records` returns.
    """
    baseline = records[BASELINE]
    names = original_names(next(iter(baseline.values()))["class_names"])
    confusions = {
        method: {seed: _confusion(record) for seed, record in seeds.items()}
        for method, seeds in records.items()
    }
    kinds = _kinds_of_errors(names, confusions)
    errors = np.mean([_fractions(one, kinds) for one in confusions[BASELINE].values()], axis=0)
    differences = []
    for method, own in records.items():
        seeds = sorted(own.keys() & baseline.keys())
        if method != BASELINE and seeds:
            pairs = [(confusions[method][s], confusions[BASELINE][s]) for s in seeds]
            changes = [_fractions(one, kinds) - _fractions(other, kinds) for one, other in pairs]
            differences.append(_compare_method(method, seeds, own, baseline, np.array(changes)))
    accuracy = _columns(baseline, sorted(baseline), "accuracy").mean(0)
    within, between, confused = errors.tolist()
    return ClassComparison(names, accuracy.tolist(), (within, between, confused), differences)


def _compare_method(
    method: str,
    seeds: list[int],
    own: dict[int, dict[str, Any]],
    baseline: dict[int, dict[str, Any]],
    changes: Array,
) -> ClassDifferences:
    classes, nearest = (
        _columns(own, seeds, name) - _columns(baseline, seeds, name)
        for name in ("accuracy", "nearest_mean_accuracy")
    )
    by_seed = dict(zip(seeds, classes, strict=True))
    levels, cosines = (
        {seed: np.array(record[name]) for seed, record in baseline.items()}
        for name in ("accuracy", "nearest_cosine")
    )
    return ClassDifferences(
        method=method,
        num_seeds=len(seeds),
        accuracy=_estimate(classes.mean(1)),
        nearest_mean_accuracy=_estimate(nearest.mean(1)),
        classes=[_estimate(column) for column in classes.T],
        agreement=_mean([_correlation(*pair) for pair in itertools.combinations(classes, 2)]),
        with_accuracy=_correlate_seeds(by_seed, levels),
        with_cosine=_correlate_seeds(by_seed, cosines),
        with_nearest_means=_correlate_seeds(by_seed, dict(zip(seeds, nearest, strict=True))),
        within_superclasses=_estimate(changes[:, 0]),
        between_superclasses=_estimate(changes[:, 1]),
        confused_pairs=_estimate(changes[:, 2]),
    )


def original_names(names: Sequence[str]) -> list[str]:
    """Return the class names of CIFAR-100 for arrays without names, whose classes are numbered.

    Args:
        names: Name of each class.
    """
    if list(names) != [f"class {index}" for index in range(100)]:
        return list(names)
    return sorted(name for members in CIFAR100_SUPERCLASSES.values() for name in members)


def _kinds_of_errors(names: Sequence[str], confusions: dict[str, dict[int, Array]]) -> Array:
    """Return a mask of confusions for each kind of error: (3, classes, classes)."""
    within, between = _superclass_masks(names)
    # Every loss has the same weight: the pairs of one of them would suit the others too well.
    mean = np.mean([np.mean(list(seeds.values()), axis=0) for seeds in confusions.values()], axis=0)
    both = np.triu(mean + mean.T, 1)
    first, second = np.unravel_index(np.argsort(-both, axis=None)[:NUM_PAIRS], both.shape)
    pairs = np.zeros_like(within)
    pairs[first, second] = both[first, second] > 0
    return np.array([within, between, pairs | pairs.T], dtype=np.float64)


def _superclass_masks(names: Sequence[str]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return masks of the pairs of classes within superclasses and between them."""
    group = {name: key for key, members in CIFAR100_SUPERCLASSES.items() for name in members}
    # A class that is not of CIFAR-100 is a superclass of its own.
    groups = np.array([group.get(name, name) for name in names])
    off_diagonal = ~np.eye(len(names), dtype=bool)
    within = (groups[:, None] == groups[None]) & off_diagonal
    return within, ~within & off_diagonal


def _confusion(record: dict[str, Any]) -> Array:
    """Return the errors as fractions of all test images."""
    matrix = np.zeros((len(record["class_names"]),) * 2)
    for true, predicted, count in record["errors"]:
        matrix[true, predicted] = count
    return matrix / sum(record["num_images"])


def _fractions(confusion: Array, kinds: Array) -> Array:
    fractions: Array = (confusion * kinds).sum((1, 2))
    return fractions


def _columns(records: dict[int, dict[str, Any]], seeds: Sequence[int], name: str) -> Array:
    return np.array([records[seed][name] for seed in seeds], dtype=np.float64)


def _estimate(values: Array) -> Estimate:
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
    return Estimate(float(values.mean()), error)


def _correlation(first: Array, second: Array) -> float:
    if not (first.std() and second.std()):  # A constant has no correlation with anything.
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def _correlate_seeds(differences: dict[int, Array], values: dict[int, Array]) -> float | None:
    """Return the mean correlation of the differences of a seed with the values of the others."""
    return _mean(
        [
            _correlation(own, np.mean([values[other] for other in values if other != seed], axis=0))
            for seed, own in differences.items()
            if values.keys() - {seed}
        ]
    )


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
