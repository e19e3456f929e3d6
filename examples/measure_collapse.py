"""How close training comes to neural collapse: cross-entropy against NONL.

Trains the two networks of one_line.py (one seed) and measures their features on the training
images, where neural collapse is defined. With a folder as argument it also writes the features,
for `protosphere measure FOLDER/NONL.npz`.

    python examples/measure_collapse.py
    python examples/measure_collapse.py features/
"""

import sys
from pathlib import Path

import numpy as np
import torch

from one_line import DIM, LOSSES, load_data, train
from protosphere.metrics import measure_detailed
from protosphere.metrics.verdicts import verdicts

METRICS = (
    "nc1_ratio",
    "intra_effective_rank",
    "inter_effective_rank",
    "nc2_simplex",
    "weight_class_alignment",
    "nc3_cosine",
    "nc4_agreement",
)


def main(folder: Path | None = None) -> None:
    """Train, measure and print; write the features if a folder is given."""
    x, _, y, _ = load_data()
    results = {}
    for loss in LOSSES:
        encoder, head = train(loss, 0, x, y)
        with torch.no_grad():
            features, prototypes = encoder(x), head.prototypes
        results[loss] = measure_detailed(features, y, prototypes)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            arrays = {"features": features, "labels": y, "prototypes": prototypes.detach()}
            np.savez(folder / f"{loss}.npz", **{name: a.numpy() for name, a in arrays.items()})
    print(f"{'training images, unit sphere':32}" + "".join(f"{loss:>15}" for loss in results))
    for name in METRICS:
        values = "".join(f"{result.values[name]:15.4f}" for result in results.values())
        print(f"{name:32}{values}")
    print()
    all_verdicts = [
        verdicts(result.values, result.absent, len(result.classes), DIM, sign=result.sign)
        for result in results.values()
    ]
    for condition in zip(*all_verdicts, strict=True):
        print(f"{condition[0].condition}  {condition[0].question}")
        for loss, verdict in zip(results, condition, strict=True):
            print(f"     {loss + ':':15} {verdict.answer:8} {verdict.explanation}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
