"""Classifiers on frozen features: class means, plain and whitened, against those of scikit-learn.

Accuracy on the test features, seconds to fit (also the time of all cores together, which other
programs on the machine change less) and peak memory beyond the features, each in a process of its
own; and the time to fit a million samples. A feature file is an .npz file with the arrays
features_train, labels_train, features_test and labels_test; benchmarks/encode_features.py writes
them for images. Digits (pixels, from scikit-learn) are always part of it.

    python benchmarks/whitening.py --features flowers=flowers.npz cifar100=cifar100.npz
    python benchmarks/whitening.py --only "class means"  # writes no results
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.covariance import OAS, ledoit_wolf_shrinkage
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NearestCentroid
from sklearn.preprocessing import normalize

import harness
from protosphere.classifiers import PrototypeClassifier

NUM_SAMPLES, DIM, NUM_CLASSES = 1_000_000, 512, 1000
MILLION = "random"
DIGITS = "digits"
# A fit that takes more seconds than this is timed once.
_MAX_REPEATED_SECONDS = 10.0
_REPEATS = 3
_SHRINKAGE_GRID = (0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class TunedLogisticRegression:
    """Logistic regression on unit features, with C chosen on a fifth of the training samples."""

    # Unit features: the best C is larger than for features of unit variance.
    grid = (1.0, 10.0, 100.0, 1000.0)

    def fit(self, features: np.ndarray, labels: np.ndarray) -> "TunedLogisticRegression":
        """Choose C on a validation part and fit on everything."""
        unit = normalize(features)
        counts = np.bincount(np.unique(labels, return_inverse=True)[1])
        parts = train_test_split(
            unit,
            labels,
            test_size=max(len(unit) // 5, len(counts)),
            random_state=0,
            stratify=labels if counts.min() > 1 else None,
        )
        train, validation, train_labels, validation_labels = parts
        accuracies = [
            self._create(c).fit(train, train_labels).score(validation, validation_labels)
            for c in self.grid
        ]
        self.c = self.grid[int(np.argmax(accuracies))]
        self.model = self._create(self.c).fit(unit, labels)
        return self

    def score(self, features: np.ndarray, labels: np.ndarray) -> float:
        """Return the accuracy."""
        return float(self.model.score(normalize(features), labels))

    @staticmethod
    def _create(c: float) -> LogisticRegression:
        return LogisticRegression(C=c, max_iter=1000)


CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "class means": PrototypeClassifier,
    "whitened class means": lambda: PrototypeClassifier(whitening="shrunk"),
    "whitened, rule nearest": lambda: PrototypeClassifier(whitening="shrunk", rule="nearest"),
    "NearestCentroid": NearestCentroid,
    "LinearDiscriminantAnalysis, svd": LinearDiscriminantAnalysis,
    "LinearDiscriminantAnalysis, shrinkage auto": lambda: LinearDiscriminantAnalysis(
        solver="lsqr", shrinkage="auto"
    ),
    "LogisticRegression, tuned": TunedLogisticRegression,
}
# The others would take minutes or tens of gigabytes.
_OF_A_MILLION = ("class means", "whitened class means", "NearestCentroid")


def measure(name: str, source: str) -> dict[str, Any]:
    """Fit one classifier on one set of features in this process."""
    data = load_features(source)
    seconds: list[float] = []
    cpu_seconds: list[float] = []

    def fit() -> Any:
        start, cpu_start = time.perf_counter(), time.process_time()
        classifier = CLASSIFIERS[name]().fit(data["features_train"], data["labels_train"])
        # The whitening is computed when the first scores are asked for: part of the fit.
        if isinstance(classifier, PrototypeClassifier):
            classifier.predict(data["features_train"][:1])
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
        return classifier

    classifier, peak_mib = _with_peak_memory(fit)
    while len(seconds) <= _REPEATS and seconds[0] < _MAX_REPEATED_SECONDS:
        classifier = fit()
    # The first fit also starts threads and loads libraries; it counts if it is the only one.
    result: dict[str, Any] = {
        "seconds": round(statistics.median(seconds[1:] or seconds), 4),
        "cpu_seconds": round(statistics.median(cpu_seconds[1:] or cpu_seconds), 4),
        "peak_mib": peak_mib,
    }
    if source != MILLION:
        accuracy = classifier.score(data["features_test"], data["labels_test"])
        result["accuracy"] = round(float(accuracy), 5)
    if getattr(classifier, "shrinkage_", None) is not None:
        result["shrinkage"] = round(classifier.shrinkage_, 4)
    if isinstance(classifier, TunedLogisticRegression):
        result["C"] = classifier.c
    return result


def compare_shrinkages(data: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Return shrinkage and accuracy for ``"auto"``, two estimators of scikit-learn and a grid."""
    labels = np.unique(data["labels_train"], return_inverse=True)[1]
    unit = normalize(data["features_train"].astype(np.float64))
    means = np.stack([unit[labels == label].mean(0) for label in range(labels.max() + 1)])
    deviations = unit - means[labels]
    shrinkages: dict[str, Any] = {
        "auto": "auto",
        "OAS": float(OAS(assume_centered=True).fit(deviations).shrinkage_),
        "Ledoit-Wolf": float(ledoit_wolf_shrinkage(deviations, assume_centered=True)),
    } | {f"{value:g}": value for value in _SHRINKAGE_GRID}
    classifier = CLASSIFIERS["whitened class means"]()
    results = {}
    for name, value in shrinkages.items():
        classifier.set_params(shrinkage=value)
        classifier.fit(data["features_train"], data["labels_train"])
        accuracy = classifier.score(data["features_test"], data["labels_test"])
        results[name] = {
            "shrinkage": round(float(classifier.shrinkage_), 4),
            "accuracy": round(float(accuracy), 5),
        }
    return results


def shrinkage_table(record: dict[str, Any]) -> str:
    """Return the accuracies with each shrinkage as a Markdown table."""
    lines = [
        "| features | class means | whitened, d/(d + ν) | OAS | Ledoit–Wolf | best of a grid |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, entry in record["sets"].items():
        results = entry["shrinkages"]
        best = max((results[f"{value:g}"] for value in _SHRINKAGE_GRID), key=_accuracy)
        cells = [
            f"{100 * result['accuracy']:.1f}% (a = {result['shrinkage']:.2g})"
            for result in (results["auto"], results["OAS"], results["Ledoit-Wolf"], best)
        ]
        plain = entry["cases"]["class means"]["accuracy"]
        lines.append(f"| {name} | {100 * plain:.1f}% | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _accuracy(result: dict[str, float]) -> float:
    return result["accuracy"]


def _with_peak_memory(fit: Callable[[], Any]) -> tuple[Any, float | None]:
    """Return the result of a fit and its peak memory in MiB, None where Linux does not tell."""
    try:
        with harness.PeakMemory() as peak:
            result = fit()
    except OSError:
        return fit(), None
    return result, round(peak.bytes / 2**20, 1)


def _memory(result: dict[str, Any]) -> str:
    return "–" if result["peak_mib"] is None else f"{result['peak_mib']:,.0f} MiB"


def load_features(source: str) -> dict[str, np.ndarray]:
    """Return the arrays of a feature file, of digits, or of a million random samples.

    Args:
        source: The file, ``digits`` or ``random``.
    """
    if source == MILLION:
        generator = np.random.default_rng(0)
        return {
            "labels_train": generator.integers(0, NUM_CLASSES, NUM_SAMPLES),
            "features_train": generator.standard_normal((NUM_SAMPLES, DIM), dtype=np.float32),
        }
    if source == DIGITS:
        features, labels = load_digits(return_X_y=True)
        parts = train_test_split(
            features.astype(np.float32), labels, test_size=1 / 3, random_state=0, stratify=labels
        )
        names = ("features_train", "features_test", "labels_train", "labels_test")
        return dict(zip(names, parts, strict=True))
    with np.load(source) as file:
        arrays = {
            name: file[name]
            for name in ("features_train", "labels_train", "features_test", "labels_test")
        }
    for name in ("features_train", "features_test"):
        arrays[name] = arrays[name].astype(np.float32)
    return arrays


def table(record: dict[str, Any]) -> str:
    """Return the accuracies as a Markdown table, with seconds and memory in parentheses."""
    lines = ["| features | " + " | ".join(CLASSIFIERS) + " |", "|---|" + "---:|" * len(CLASSIFIERS)]
    for name, entry in record["sets"].items():
        cells = []
        for classifier in CLASSIFIERS:
            result = entry["cases"][classifier]
            cells.append(
                f"{100 * result['accuracy']:.1f}% ({result['seconds']:.2g} s, {_memory(result)})"
            )
        title = f"{name} ({entry['samples']:,} × {entry['dim']})"
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def million_table(record: dict[str, Any]) -> str:
    """Return the times of a million samples as a Markdown table."""
    lines = [
        f"| fit on {NUM_SAMPLES:,} × {DIM} float32, {NUM_CLASSES:,} classes, all cores | seconds | "
        "extra memory |",
        "|---|---:|---:|",
    ]
    for name, result in record["million"].items():
        lines.append(f"| {name} | {result['seconds']:.3g} | {_memory(result)} |")
    return "\n".join(lines)


def _measure_apart(name: str, source: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", name, "--source", source]
    # The other fits are too small for several threads; logistic regression is slower with two.
    threads = os.cpu_count() if source == MILLION else 1
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    completed = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment
    )
    if completed.returncode:
        sys.exit(f"{name} on {source} failed:\n{completed.stderr}")
    result: dict[str, Any] = json.loads(completed.stdout)
    print(f"{source}: {name}: {json.dumps(result)}", flush=True)
    return result


def main() -> None:
    """Measure all classifiers on all sets of features and write ``results/whitening.json``."""
    # Everything runs on the CPU, also in the processes of the cases: memory is that of the machine.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    parser = argparse.ArgumentParser(description="Benchmark whitening.")
    parser.add_argument("--features", nargs="*", default=[], metavar="NAME=FILE.npz")
    parser.add_argument("--only", default="", help="classifiers whose name contains this text")
    parser.add_argument("--no-million", action="store_true", help="without the million samples")
    parser.add_argument("--case", choices=CLASSIFIERS, help=argparse.SUPPRESS)
    parser.add_argument("--source", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(arguments.case, arguments.source)))
        return
    sources = {DIGITS: DIGITS} | dict(item.split("=", 1) for item in arguments.features)
    for path in list(sources.values())[1:]:
        if not Path(path).is_file():
            sys.exit(f"--features needs NAME=FILE of an existing file, got {path}")
    names = [name for name in CLASSIFIERS if arguments.only in name]
    sets = {}
    for label, source in sources.items():
        data = load_features(source)
        sets[label] = {
            "samples": len(data["features_train"]),
            "dim": data["features_train"].shape[1],
            "classes": len(np.unique(data["labels_train"])),
            "test_samples": len(data["features_test"]),
            "shrinkages": compare_shrinkages(data),
            "cases": {name: _measure_apart(name, source) for name in names},
        }
    million = [] if arguments.no_million else [name for name in _OF_A_MILLION if name in names]
    record = {"sets": sets, "million": {name: _measure_apart(name, MILLION) for name in million}}
    if arguments.only:
        return
    print("written to", harness.write("whitening", record))
    print(table(record))
    print(shrinkage_table(record))
    print(million_table(record))


if __name__ == "__main__":
    main()
