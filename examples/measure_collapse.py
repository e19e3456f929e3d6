"""How near training has come to neural collapse: cross-entropy against NONL, in the four questions of the theory.

Trains the two networks of one_line.py (one seed) and measures their features on the training images, where collapse is
defined. Without arguments it prints; with a folder it also writes the features, for `protosphere measure FOLDER/….npz`.

    python examples/measure_collapse.py
    python examples/measure_collapse.py features/
"""

import sys
from pathlib import Path

import numpy as np
import torch

from one_line import DIM, LOSSES, data, train
from protosphere.metrics import examine
from protosphere.metrics.verdicts import verdicts

SHOWN = (
    "nc1_ratio",
    "intra_effective_rank",
    "inter_effective_rank",
    "nc2_simplex",
    "weight_class_alignment",
    "nc3_cosine",
    "nc4_agreement",
)


def main(folder: Path | None = None) -> None:
    """Train, measure, print; and write the features if there is a folder for them."""
    x, _, y, _ = data()
    found = {}
    for loss in LOSSES:
        encoder, head = train(loss, 0, x, y)
        with torch.no_grad():
            features, prototypes = encoder(x), head.weight
        found[loss] = examine(features, y, prototypes)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            np.savez(
                folder / f"{loss}.npz", features=features, labels=y, prototypes=prototypes.detach()
            )
    print("on the sphere, training images  " + "".join(f"{loss:>15}" for loss in found))
    for name in SHOWN:
        print(
            f"{name:32}" + "".join(f"{measured.values[name]:15.4f}" for measured in found.values())
        )
    print()
    judged = [
        verdicts(one.values, one.absent, len(one.classes), DIM, sign=one.sign)
        for one in found.values()
    ]
    for answers in zip(*judged, strict=True):
        print(f"{answers[0].condition}  {answers[0].question}")
        for loss, verdict in zip(found, answers, strict=True):
            print(f"     {loss + ':':15} {verdict.answer:8} {verdict.sentence}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
