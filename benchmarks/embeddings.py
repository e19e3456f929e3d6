"""Classifiers on the features of a trained network: accuracy and time to fit.

PrototypeClassifier against NearestCentroid and LogisticRegression of scikit-learn, on two .npz
files with features and labels. The committed results are for the 50,000 + 10,000 features of
CIFAR-100 from the committed run cifar100-nonl (512 numbers each, stored in float16).

    protosphere measure RUN --split train --save train.npz
    protosphere measure RUN --split test --save test.npz
    python benchmarks/embeddings.py train.npz test.npz
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

import harness
from protosphere.classifiers import PrototypeClassifier

CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "PrototypeClassifier": PrototypeClassifier,
    "NearestCentroid": NearestCentroid,
    "NearestCentroid on unit features": lambda: make_pipeline(Normalizer(), NearestCentroid()),
    "LogisticRegression": lambda: LogisticRegression(max_iter=1000),
}
# A fit that takes more seconds than this is timed once.
_MAX_REPEATED_SECONDS = 10.0


def benchmark(create: Callable[[], Any], data: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the median time to fit and the accuracy."""
    seconds: list[float] = []
    while len(seconds) < harness.REPEATS and (not seconds or seconds[0] < _MAX_REPEATED_SECONDS):
        start = time.perf_counter()
        classifier = create().fit(data["x_train"], data["y_train"])
        seconds.append(time.perf_counter() - start)
    accuracy = classifier.score(data["x_test"], data["y_test"])
    return {
        "seconds": statistics.median(seconds),
        "repeats": len(seconds),
        "accuracy": float(accuracy),
    }


def table(record: dict[str, Any]) -> str:
    """Return the results as a Markdown table."""
    own = record["cases"]["PrototypeClassifier"]["seconds"]
    lines = [
        f"| fit on {record['samples']:,} × {record['dim']} features of CIFAR-100 "
        "| test accuracy | seconds | protosphere is |",
        "|---|---:|---:|---:|",
    ]
    for name, result in record["cases"].items():
        ratio = (
            "" if name == "PrototypeClassifier" else f"**{result['seconds'] / own:,.0f}×** as fast"
        )
        lines.append(
            f"| {name} | {100 * result['accuracy']:.2f}% | {result['seconds']:.3g} | {ratio} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run all classifiers, print the results and write ``results/embeddings.json``."""
    if len(sys.argv) != 3:
        sys.exit("usage: python benchmarks/embeddings.py TRAIN.npz TEST.npz")
    data: dict[str, np.ndarray] = {}
    for split, path in zip(("train", "test"), sys.argv[1:], strict=True):
        with np.load(path) as file:
            data[f"x_{split}"] = file["features"].astype(np.float32)
            data[f"y_{split}"] = file["labels"]
    cases = {}
    for name, create in CLASSIFIERS.items():
        cases[name] = benchmark(create, data)
        print(name, json.dumps(cases[name]), flush=True)
    samples, dim = data["x_train"].shape
    record = {"cases": cases, "samples": samples, "dim": dim, "repeats": harness.REPEATS}
    print("written to", harness.write("embeddings", record))


if __name__ == "__main__":
    main()
