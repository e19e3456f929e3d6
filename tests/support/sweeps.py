"""Sweeps over a few digits, whose trials train in a moment."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from protosphere.data.datasets import load_digits
from protosphere.data.splits import ImageSet
from protosphere.recipes.loading import read_recipe
from protosphere.recipes.schema import Recipe
from protosphere.runs import RunFolder
from protosphere.runs.sweeps import SweepRecord
from protosphere.studies.sweep import run_sweep

_TEMPORARY = tempfile.TemporaryDirectory()
_NUM_TRAIN, _NUM_TEST = 200, 40


@cache
def digits_file(*, poisoned: bool = False) -> Path:
    """Write a few digits to an ``.npz`` file.

    Args:
        poisoned: Whether the test images are noise with wrong labels.
    """
    dataset = load_digits()
    train, test = dataset.train, dataset.test
    assert isinstance(train, ImageSet)
    assert isinstance(test, ImageSet)
    x_test, y_test = test.images[:_NUM_TEST].numpy(), test.labels[:_NUM_TEST].numpy()
    if poisoned:
        x_test = np.random.default_rng(0).integers(0, 256, x_test.shape, dtype=np.uint8)
        y_test = (y_test + 1) % 10
    path = Path(_TEMPORARY.name) / f"digits-{poisoned}.npz"
    np.savez(
        path,
        x_train=train.images[:_NUM_TRAIN].numpy(),
        y_train=train.labels[:_NUM_TRAIN].numpy(),
        x_test=x_test,
        y_test=y_test,
    )
    return path


def quick_overrides(*overrides: str, epochs: int = 2, poisoned: bool = False) -> list[str]:
    """Return overrides that make a recipe of digits train in a moment.

    Args:
        overrides: Further overrides, each ``dotted.path=value``.
        epochs: Number of epochs.
        poisoned: Whether the test images are noise with wrong labels.
    """
    return [
        "data.source=arrays",
        f"data.path={digits_file(poisoned=poisoned)}",
        f"schedule.epochs={epochs}",
        "evaluation.every=1",
        "evaluation.metrics=cheap",
        "checkpoint.every=1",
        "training.batch_size=90",
        *overrides,
    ]


def quick_recipe(*overrides: str, epochs: int = 2, poisoned: bool = False) -> Recipe:
    """Return a recipe of NTCE that trains in a moment."""
    return read_recipe("digits-ntce", quick_overrides(*overrides, epochs=epochs, poisoned=poisoned))


def sweep(out: Path, *over: str, recipe: Recipe | None = None, **options: Any) -> SweepRecord:
    """Run a sweep of the quick recipe."""
    return run_sweep(recipe or quick_recipe(), over, out, **options)


def train_nothing(recipe: Recipe, run: RunFolder, *_: object, **__: object) -> list[Any]:
    """Stand for ``run_recipe``: record an accuracy that is the learning rate, and weights."""
    run.checkpoints.mkdir(parents=True)
    (run.checkpoints / "weights").write_text("trained")
    epochs = recipe.schedule.epochs
    run.log({"kind": "evaluation", "step": 1, "epoch": epochs, "accuracy": recipe.optimizer.lr})
    return []
