"""A classifier from a million embeddings: PrototypeClassifier beside scikit-learn's NearestCentroid.

python benchmarks/prototypes.py
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.neighbors import NearestCentroid

import harness
from protosphere.classifiers import PrototypeClassifier

SAMPLES, DIM, CLASSES = 1_000_000, 512, 1000


def _data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, CLASSES, SAMPLES)
    features = generator.standard_normal((SAMPLES, DIM), dtype=np.float32)
    return features, labels


def _fits(classifier: Any) -> harness.Case:
    def case() -> Callable[[], None]:
        features, labels = _data()
        return lambda: classifier.fit(features, labels)

    return case


CASES: dict[str, harness.Case] = {
    "PrototypeClassifier": _fits(PrototypeClassifier()),
    "NearestCentroid": _fits(NearestCentroid()),
}


def table(record: dict[str, Any]) -> str:
    """The results as Markdown."""
    cases = record["cases"]
    own = cases["PrototypeClassifier"]["seconds"]
    lines = [
        f"| fit on {SAMPLES:,} × {DIM} float32, {CLASSES:,} classes | seconds | protosphere is | extra memory |",
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
