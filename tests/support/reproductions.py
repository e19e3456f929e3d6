"""Tiny color images, and overrides with which the recipes of the paper train in a second."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from protosphere.data.datasets import load_digits
from protosphere.data.splits import ImageSet
from protosphere.recipes.schema import Recipe
from protosphere.studies.reproduce import Reproduction, TargetPlan
from support.short_runs import logged_run

_TEMPORARY = tempfile.TemporaryDirectory()
COLORS = Path(_TEMPORARY.name) / "colors.npz"


def tiny_overrides() -> list[str]:
    """Return overrides that train a small network on 120 digits in color."""
    if not COLORS.exists():
        dataset = load_digits()
        arrays: dict[str, Any] = {"class_names": np.array(dataset.train.class_names)}
        for name, split, number in (("train", dataset.train, 120), ("test", dataset.test, 40)):
            assert isinstance(split, ImageSet)
            arrays[f"x_{name}"] = np.repeat(split.images[:number].numpy(), 3, axis=1)
            arrays[f"y_{name}"] = split.labels[:number].numpy()
        np.savez(COLORS, **arrays)
    return [
        "data.source=arrays",
        f"data.path={COLORS}",
        "model.backbone={name: small}",
        "augmentation.size=8",
        "training.precision=fp32",
        "probe.batch_size=40",
    ]


def write_records(
    plan: TargetPlan,
    values: dict[str, float],
    *,
    metric: str = "accuracy",
    class_counts: tuple[int, ...] = (30,) * 10,
) -> None:
    """Write complete runs without weights into the folders of a plan.

    Args:
        plan: The plan.
        values: Last value of the metric, by the name of the run without its length.
        metric: Name of the metric.
        class_counts: Number of training images of each class.
    """
    for run in plan.runs.values():
        epochs = run.recipe.schedule.epochs
        name = run.folder.name.removesuffix(f"-{epochs}-epochs")
        logged_run(run.folder, {metric: [(epochs, values[name])]}, class_counts=class_counts)
        (run.folder / "recipe.yaml").write_text(run.recipe.to_yaml())


def refuse_training(recipe: Recipe, folder: Path) -> bool:
    """Fail, where all runs are complete."""
    raise AssertionError(f"nothing must be trained, but {folder} was, with {recipe.name}")


def numbers_of(result: Reproduction) -> dict[tuple[str, str], Any]:
    """Return the numbers of a table by row and column."""
    return {(number.row, number.column): number.value for number in result.numbers}
