"""Classifiers on the features of a trained network: what each is worth and what fitting it takes.

PrototypeClassifier beside scikit-learn's NearestCentroid and LogisticRegression, on two .npz files with features and
labels. The committed results are of the 50,000 + 10,000 features that the committed run cifar100-nonl has of CIFAR-100
(512 numbers each, kept in float16).

    protosphere measure RUN --part train --save train.npz
    protosphere measure RUN --part test --save test.npz
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
# Beyond this a fit is timed once.
_LONG = 10.0


def measured(make: Callable[[], Any], data: dict[str, np.ndarray]) -> dict[str, Any]:
    """Seconds to fit, and the accuracy then."""
    seconds: list[float] = []
    while len(seconds) < harness.REPEATS and (not seconds or seconds[0] < _LONG):
        start = time.perf_counter()
        classifier = make().fit(data["x_train"], data["y_train"])
        seconds.append(time.perf_counter() - start)
    accuracy = classifier.score(data["x_test"], data["y_test"])
    return {
        "seconds": statistics.median(seconds),
        "repeats": len(seconds),
        "accuracy": float(accuracy),
    }


def table(record: dict[str, Any]) -> str:
    """The results as Markdown."""
    own = record["cases"]["PrototypeClassifier"]["seconds"]
    lines = [
        f"| fit on {record['samples']:,} × {record['dim']} features of CIFAR-100 | test accuracy | seconds | "
        "protosphere is |",
        "|---|---:|---:|---:|",
    ]
    for name, result in record["cases"].items():
        ratio = (
            "" if name == "PrototypeClassifier" else f"**{result['seconds'] / own:,.0f}×** as fast"
        )
        lines.append(
            f"| {name} | {100 * result['accuracy']:.2f} % | {result['seconds']:.3g} | {ratio} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write ``results/embeddings.json``."""
    if len(sys.argv) != 3:
        sys.exit("two files must be named: the features to fit and those to score, each an .npz")
    data = {}
    for part, path in zip(("train", "test"), sys.argv[1:], strict=True):
        with np.load(path) as file:
            data |= {f"x_{part}": file["features"].astype(np.float32), f"y_{part}": file["labels"]}
    cases = {}
    for name, make in CLASSIFIERS.items():
        cases[name] = measured(make, data)
        print(name, json.dumps(cases[name]), flush=True)
    samples, dim = data["x_train"].shape
    record = {"cases": cases, "samples": samples, "dim": dim, "repeats": harness.REPEATS}
    print("written to", harness.write("embeddings", record))


if __name__ == "__main__":
    main()
