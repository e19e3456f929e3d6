"""Class means of handwritten digits before and after training, with cross-entropy and NONL.

Records the cosines between centered class means of the training features and their singular
values, which ``pictures.py`` draws. A minute on a CPU:

    python benchmarks/digits_geometry.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

import harness
from protosphere.classifiers import class_means
from protosphere.evaluation import collect_outputs
from protosphere.geometry import cosines
from protosphere.metrics import measure
from protosphere.recipes.build import create_loaders, create_objective, load_dataset
from protosphere.recipes.loading import load_run, read_recipe
from protosphere.recipes.runner import run_recipe

EPOCHS = 60
_OVERRIDES = [f"schedule.epochs={EPOCHS}", f"evaluation.every={EPOCHS}"]


def main() -> None:
    """Train both losses and write ``results/digits_geometry.json``."""
    torch.set_num_threads(1)
    cases = {"before training": _before()}
    with TemporaryDirectory() as folder:
        for loss, title in (("ce", "after cross-entropy"), ("nonl", "after NONL")):
            recipe = read_recipe(f"digits-{loss}", _OVERRIDES)
            path = Path(folder) / loss
            list(run_recipe(recipe, path, load_dataset(recipe)))
            file = load_run(path).features("train")
            cases[title] = _describe(file.features, file.labels)
    harness.write("digits_geometry", {"epochs": EPOCHS, "cases": cases})


def _before() -> dict[str, Any]:
    """Describe the features of the initial weights, which both losses share."""
    recipe = read_recipe("digits-nonl", _OVERRIDES)
    dataset = load_dataset(recipe)
    objective = create_objective(recipe, num_classes=10, in_channels=1)
    train, _ = create_loaders(recipe, dataset, "cpu")
    outputs = collect_outputs(objective, train)
    return _describe(outputs.features, outputs.labels)


def _describe(features: Tensor, labels: Tensor) -> dict[str, Any]:
    means = class_means(features, labels, num_classes=10).means.double()
    centered = means - means.mean(dim=0)
    table = cosines(centered, centered).tolist()
    return {
        "cosines": [[round(value, 4) for value in row] for row in table],
        "singular_values": [round(value, 4) for value in torch.linalg.svdvals(centered).tolist()],
        "metrics": {name: round(value, 4) for name, value in measure(features, labels).items()},
    }


if __name__ == "__main__":
    main()
