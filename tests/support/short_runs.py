"""Runs on a few digits that train in a second, and run folders that hold only what was logged."""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from protosphere.data.datasets import load_digits
from protosphere.data.splits import ImageSet
from protosphere.recipes.build import load_dataset
from protosphere.recipes.loading import read_recipe
from protosphere.recipes.runner import run_recipe
from protosphere.runs import RunFolder
from protosphere.runs.arrays import write_arrays
from protosphere.runs.metadata import DataMetadata, write_class_names

DIM = 40
_TEMPORARY = tempfile.TemporaryDirectory()
DIGITS = Path(_TEMPORARY.name) / "digits.npz"


def few_digits() -> list[str]:
    """Return overrides that train on 400 digits and evaluate on 160."""
    if not DIGITS.exists():
        dataset = load_digits()
        assert isinstance(dataset.train, ImageSet)
        assert isinstance(dataset.test, ImageSet)
        np.savez(
            DIGITS,
            x_train=dataset.train.images[:400].numpy(),
            y_train=dataset.train.labels[:400].numpy(),
            x_test=dataset.test.images[:160].numpy(),
            y_test=dataset.test.labels[:160].numpy(),
            class_names=np.array(dataset.train.class_names),
        )
    return ["data.source=arrays", f"data.path={DIGITS}", "training.batch_size=50"]


@cache
def _train(loss: str, epochs: int, overrides: tuple[str, ...]) -> Path:
    """Train once per process."""
    settings = [*few_digits(), f"schedule.epochs={epochs}", "evaluation.every=1", *overrides]
    recipe = read_recipe(f"digits-{loss}", settings)
    folder = Path(tempfile.mkdtemp(dir=_TEMPORARY.name)) / loss
    for _ in run_recipe(recipe, folder, load_dataset(recipe)):
        pass
    return folder


def short_run(folder: Path, loss: str, *overrides: str, epochs: int = 3) -> Path:
    """Copy a run that was trained on 400 digits into a folder.

    Args:
        folder: Where the copy goes.
        loss: Name of the loss.
        overrides: Further values of the recipe, each ``dotted.path=value``.
        epochs: Number of epochs.

    Returns:
        The run folder, FOLDER/LOSS.
    """
    copied = folder / loss
    shutil.copytree(_train(loss, epochs, overrides), copied)
    return copied


def logged_run(
    folder: Path,
    metrics: Mapping[str, Sequence[tuple[int, float]]],
    *overrides: str,
    recipe: str = "digits-nonl",
    class_counts: tuple[int, ...] = (30,) * 10,
    fingerprint: str = "digits",
) -> Path:
    """Write a run folder with logged metrics, without data and weights.

    Args:
        folder: Folder to write.
        metrics: Epochs and values of each metric.
        overrides: Values of the recipe, each ``dotted.path=value``.
        recipe: Name of the recipe.
        class_counts: Number of training images of each class.
        fingerprint: Fingerprint of the training images.
    """
    run = RunFolder(folder)
    run.start(read_recipe(recipe, list(overrides)).to_yaml())
    write_class_names(run, [f"class {index}" for index in range(len(class_counts))])
    DataMetadata(
        num_train=sum(class_counts),
        num_eval=10,
        split="test",
        train_fingerprint=fingerprint,
        eval_fingerprint="test",
        channels=1,
        mean=(0.5,),
        std=(0.5,),
        evaluation_crop="resize",
        class_counts=class_counts,
    ).write(run)
    write_arrays(run, {"class_means": np.zeros((len(class_counts), DIM), np.float32)})
    epochs = sorted({epoch for series in metrics.values() for epoch, _ in series})
    records = []
    for epoch in epochs:
        values = {name: dict(series)[epoch] for name, series in metrics.items()}
        records.append({"kind": "train", "step": 10 * epoch, "epoch": epoch, "loss": 1.0})
        records.append({"kind": "evaluation", "step": 10 * epoch, "epoch": epoch} | values)
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder
