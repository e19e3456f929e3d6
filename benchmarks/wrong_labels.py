"""Classifiers on frozen features with wrong training labels: class means against scikit-learn's.

A fraction of the training labels of every class is replaced by labels of other classes, drawn
uniformly; test labels are right. Everything that is tuned is tuned on training samples, whose
labels are partly wrong too: logistic regression and linear discriminant analysis on a fifth of
them, the shrinkage of whitened class means by ``shrinkage="cv"``. Mean and standard deviation of
the test accuracy over three draws of the wrong labels, and the mean time to fit, one thread each.
Feature files are those of whitening.py; digits are always part of it.

    python benchmarks/wrong_labels.py --features flowers=flowers.npz cifar100=cifar100.npz
"""

import argparse
import json
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import normalize
from threadpoolctl import threadpool_limits

import harness
from protosphere.classifiers import PrototypeClassifier
from protosphere.classifiers.shrinkage import SHRINKAGES
from protosphere.data.label_noise import noisy_labels
from whitening import DIGITS, TunedLogisticRegression, load_features

FRACTIONS = (0.0, 0.2, 0.4, 0.6)
SEEDS = (0, 1, 2)
CHOSEN, RIVAL = "whitened, shrinkage by cross-validation", "LogisticRegression, tuned"


class RegularizedLogisticRegression(TunedLogisticRegression):
    """Logistic regression whose C may be smaller, as wrong labels need it."""

    grid = (0.1, 1.0, 10.0, 100.0)


class TunedDiscriminantAnalysis:
    """Linear discriminant analysis on unit features, with the shrinkage chosen on a fifth."""

    def fit(self, features: np.ndarray, labels: np.ndarray) -> "TunedDiscriminantAnalysis":
        """Choose the shrinkage on a validation part and fit on everything."""
        unit = normalize(features)
        train, validation, train_labels, validation_labels = train_test_split(
            unit, labels, test_size=0.2, random_state=0, stratify=labels
        )
        accuracies = [
            self._create(value).fit(train, train_labels).score(validation, validation_labels)
            for value in SHRINKAGES
        ]
        self.model = self._create(SHRINKAGES[int(np.argmax(accuracies))]).fit(unit, labels)
        return self

    def score(self, features: np.ndarray, labels: np.ndarray) -> float:
        """Return the accuracy."""
        return float(self.model.score(normalize(features), labels))

    @staticmethod
    def _create(shrinkage: float) -> LinearDiscriminantAnalysis:
        return LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage)


CLASSIFIERS: dict[str, Any] = {
    "class means": PrototypeClassifier,
    "whitened class means": lambda: PrototypeClassifier(whitening="shrunk"),
    CHOSEN: lambda: PrototypeClassifier(whitening="shrunk", shrinkage="cv"),
    "LinearDiscriminantAnalysis, tuned": TunedDiscriminantAnalysis,
    RIVAL: RegularizedLogisticRegression,
}


def measure(source: str, fraction: float, seed: int) -> dict[str, dict[str, float]]:
    """Fit all classifiers on one set of features with one draw of wrong labels.

    Args:
        source: File of features, or ``digits``.
        fraction: Fraction of wrong labels.
        seed: Seed of the draw.
    """
    torch.set_num_threads(1)
    data = load_features(source)
    labels = with_wrong_labels(data["labels_train"], fraction, seed)
    results = {}
    with threadpool_limits(1):
        for name, create in CLASSIFIERS.items():
            create().fit(*_warm_up())
            start = time.perf_counter()
            classifier = create().fit(data["features_train"], labels)
            # The whitening is computed when the first scores are asked for: part of the fit.
            if isinstance(classifier, PrototypeClassifier):
                classifier.predict(data["features_train"][:1])
            seconds = time.perf_counter() - start
            accuracy = float(classifier.score(data["features_test"], data["labels_test"]))
            results[name] = {"accuracy": round(accuracy, 5), "seconds": round(seconds, 4)}
            if getattr(classifier, "shrinkage_", None) is not None:
                results[name]["shrinkage"] = round(classifier.shrinkage_, 4)
    return results


def _warm_up() -> tuple[np.ndarray, np.ndarray]:
    """Return samples for a fit before the one that is timed: it loads libraries."""
    generator = np.random.default_rng(0)
    return generator.standard_normal((60, 8), dtype=np.float32), np.arange(60) % 3


def with_wrong_labels(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Return labels of which a fraction of each class is wrong.

    Args:
        labels: The labels.
        fraction: Fraction of wrong labels.
        seed: Seed of the draw.
    """
    if not fraction:
        return labels
    names, indices = np.unique(labels, return_inverse=True)
    wrong = noisy_labels(
        torch.from_numpy(indices),
        num_classes=len(names),
        name="symmetric",
        fraction=fraction,
        seed=seed,
    )
    chosen: np.ndarray = names[wrong.numpy()]
    return chosen


def summarize(runs: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, Any]]:
    """Return mean and standard deviation over the draws, for each classifier.

    Args:
        runs: Results of ``measure``, one per draw.
    """
    summary = {}
    for name in CLASSIFIERS:
        accuracies = [run[name]["accuracy"] for run in runs]
        summary[name] = {
            "accuracies": accuracies,
            "mean": round(statistics.fmean(accuracies), 5),
            "std": round(statistics.stdev(accuracies), 5) if len(runs) > 1 else None,
            "seconds": round(statistics.fmean(run[name]["seconds"] for run in runs), 4),
        }
        shrinkages = [run[name]["shrinkage"] for run in runs if "shrinkage" in run[name]]
        if shrinkages:
            summary[name]["shrinkages"] = shrinkages
    return summary


def table(record: dict[str, Any]) -> str:
    """Return the accuracies as a Markdown table."""
    lines = [
        f"| features | wrong labels | {' | '.join(CLASSIFIERS)} "
        "| cross-validation − LogisticRegression | seconds to fit, the same two |",
        f"|---|---:|{'---:|' * (len(CLASSIFIERS) + 2)}",
    ]
    for name, entry in record["sets"].items():
        for row in entry["rows"]:
            results = row["classifiers"]
            accuracies = {key: 100 * value["mean"] for key, value in results.items()}
            best = max(round(value, 1) for value in accuracies.values())
            cells = [
                f"{_bold(accuracies[key], best)}"
                + ("" if results[key]["std"] is None else f" ± {100 * results[key]['std']:.1f}")
                for key in CLASSIFIERS
            ]
            first = f"{name} ({entry['samples']:,} × {entry['dim']}, {entry['classes']} classes)"
            lines.append(
                f"| {first if row is entry['rows'][0] else ''} | {100 * row['fraction']:.0f} % "
                f"| {' | '.join(cells)} | {accuracies[CHOSEN] - accuracies[RIVAL]:+.1f} "
                f"| {results[CHOSEN]['seconds']:.2g}, {results[RIVAL]['seconds']:.2g} |"
            )
    return "\n".join(lines)


def source(record: dict[str, Any]) -> str:
    """Return the line beneath the table."""
    machine = record["machine"]
    return (
        f"{machine['cpu']}, one thread each, torch {machine['torch']}; mean ± standard deviation "
        f"of {len(SEEDS)} draws of the wrong labels; commit {record['commit']}."
    )


def _bold(value: float, best: float) -> str:
    text = f"{value:.1f}"
    return f"**{text}**" if float(text) >= best else text


def main() -> None:
    """Measure all sets of features and write ``results/wrong_labels.json``."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", nargs="*", default=[], metavar="NAME=FILE.npz")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    arguments = parser.parse_args()
    sources = {DIGITS: DIGITS} | dict(item.split("=", 1) for item in arguments.features)
    for path in list(sources.values())[1:]:
        if not Path(path).is_file():
            parser.error(f"--features needs NAME=FILE of an existing file, got {path}")
    cases = [
        (name, fraction, seed)
        for name in sources
        for fraction in FRACTIONS
        for seed in (SEEDS if fraction else SEEDS[:1])
    ]
    found: dict[tuple[str, float], list[dict[str, dict[str, float]]]] = {}
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        jobs = {
            pool.submit(measure, sources[name], fraction, seed): (name, fraction, seed)
            for name, fraction, seed in cases
        }
        done = {}
        for job in as_completed(jobs):
            done[jobs[job]] = job.result()
            print(*jobs[job], json.dumps(job.result()), flush=True)
    for name, fraction, seed in cases:
        found.setdefault((name, fraction), []).append(done[name, fraction, seed])
    sets = {}
    for name, source in sources.items():
        data = load_features(source)
        sets[name] = {
            "samples": len(data["features_train"]),
            "dim": data["features_train"].shape[1],
            "classes": len(np.unique(data["labels_train"])),
            "test_samples": len(data["features_test"]),
            "rows": [
                {"fraction": fraction, "classifiers": summarize(found[name, fraction])}
                for fraction in FRACTIONS
            ],
        }
    print("written to", harness.write("wrong_labels", {"sets": sets}))
    print(table({"sets": sets}))


if __name__ == "__main__":
    main()
