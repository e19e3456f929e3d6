"""Classifiers on frozen features with wrong training labels: class means against scikit-learn's.

A fraction of the training labels of every class is replaced by labels of other classes, drawn
uniformly; test labels are right. Everything that is tuned is tuned on training samples, whose
labels are partly wrong too: C of logistic regression (16 values) and the shrinkage of whitened
class means (``shrinkage="cv"``, 15 values) by five-fold cross-validation, the shrinkage of linear
discriminant analysis (the same 15 values) on a fifth of the samples, since five folds would take
minutes per fit. Mean and standard deviation of the test accuracy over three draws of the wrong
labels, and the mean time to fit, one thread each.
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
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import GridSearchCV, StratifiedShuffleSplit
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import Normalizer
from threadpoolctl import threadpool_limits

import harness
from protosphere.classifiers import PrototypeClassifier
from protosphere.classifiers.shrinkage import NUM_FOLDS, SHRINKAGES
from protosphere.data.label_noise import noisy_labels
from whitening import DIGITS, load_features

FRACTIONS = (0.0, 0.2, 0.4, 0.6)
SEEDS = (0, 1, 2)
CHOSEN = "whitened, shrinkage by cross-validation"
BASELINE = "LogisticRegression, C by cross-validation"
# Unit features need larger values than features of unit variance, noisy labels smaller ones.
C_VALUES = (*(digit * 10.0**power for power in range(-2, 3) for digit in (1, 2, 5)), 1000.0)


def create_logistic_regression() -> Pipeline:
    """Return logistic regression on unit features, with C chosen by cross-validation."""
    return make_pipeline(
        Normalizer(),
        LogisticRegressionCV(
            Cs=C_VALUES,
            cv=NUM_FOLDS,
            max_iter=1000,
            scoring="accuracy",
            l1_ratios=(0,),
            use_legacy_attributes=False,
        ),
    )


def create_discriminant_analysis() -> Pipeline:
    """Return discriminant analysis on unit features, with the shrinkage chosen on a fifth."""
    return make_pipeline(
        Normalizer(),
        GridSearchCV(
            LinearDiscriminantAnalysis(solver="lsqr"),
            {"shrinkage": SHRINKAGES},
            cv=StratifiedShuffleSplit(1, test_size=0.2, random_state=0),
        ),
    )


CLASSIFIERS: dict[str, Any] = {
    "class means": PrototypeClassifier,
    "whitened class means": lambda: PrototypeClassifier(whitening="shrunk"),
    CHOSEN: lambda: PrototypeClassifier(whitening="shrunk", shrinkage="cv"),
    "LinearDiscriminantAnalysis, tuned": create_discriminant_analysis,
    BASELINE: create_logistic_regression,
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
            results[name] |= chosen_setting(classifier)
    return results


def chosen_setting(classifier: Any) -> dict[str, float]:
    """Return the shrinkage or C of a fitted classifier, if it has one.

    Args:
        classifier: One of the classifiers of this benchmark.
    """
    if isinstance(classifier, PrototypeClassifier):
        value = classifier.shrinkage_
        return {} if value is None else {"shrinkage": round(value, 4)}
    model = classifier[-1]
    if isinstance(model, GridSearchCV):
        return {"shrinkage": float(model.best_params_["shrinkage"])}
    return {"C": float(model.C_)}


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
        for key, plural in (("shrinkage", "shrinkages"), ("C", "Cs")):
            values = [run[name][key] for run in runs if key in run[name]]
            if values:
                summary[name][plural] = values
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
                f"| {first if row is entry['rows'][0] else ''} | {100 * row['fraction']:.0f}% "
                f"| {' | '.join(cells)} | {accuracies[CHOSEN] - accuracies[BASELINE]:+.1f} "
                f"| {results[CHOSEN]['seconds']:.2g}, {results[BASELINE]['seconds']:.2g} |"
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
