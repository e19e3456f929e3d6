"""Fit a million embeddings: PrototypeClassifier against NearestCentroid of scikit-learn.

python benchmarks/prototypes.py
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.neighbors import NearestCentroid

import harness
from protosphere.classifiers import PrototypeClassifier

NUM_SAMPLES, DIM, NUM_CLASSES = 1_000_000, 512, 1000


def _random_samples() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, NUM_CLASSES, NUM_SAMPLES)
    features = generator.standard_normal((NUM_SAMPLES, DIM), dtype=np.float32)
    return features, labels


def _fit_case(classifier: Any) -> harness.Case:
    def case() -> Callable[[], None]:
        features, labels = _random_samples()
        return lambda: classifier.fit(features, labels)

    return case


CASES: dict[str, harness.Case] = {
    "PrototypeClassifier": _fit_case(PrototypeClassifier()),
    "NearestCentroid": _fit_case(NearestCentroid()),
}


def table(record: dict[str, Any]) -> str:
    """Return the results as a Markdown table."""
    cases = record["cases"]
    own = cases["PrototypeClassifier"]["seconds"]
    lines = [
        f"| fit on {NUM_SAMPLES:,} × {DIM} float32, {NUM_CLASSES:,} classes | seconds | "
        "protosphere is | extra memory |",
        "|---|---:|---:|---:|",
    ]
    for name, result in cases.items():
        ratio = (
            "" if name == "PrototypeClassifier" else f"**{result['seconds'] / own:.1f}×** as fast"
        )
        lines.append(
            f"| {name} | {result['seconds']:.3g} | {ratio} | {result['peak_mib']:,.0f} MiB |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    harness.run("prototypes", CASES, table)
