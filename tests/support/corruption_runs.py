"""Small runs on crops of photographs, for benchmarks of corruptions."""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_sample_images

from protosphere.recipes.build import load_dataset
from protosphere.recipes.loading import read_recipe
from protosphere.recipes.runner import run_recipe

SIZE = 16
NUM_TEST = 60


def write_crops(path: Path, *, seed: int = 0, names: tuple[str, ...] = ("china", "flower")) -> None:
    """Write square crops of two photographs to an .npz file, half as training images."""
    rng = np.random.default_rng(seed)
    photos = load_sample_images().images
    images, labels = [], []
    for index in range(2 * NUM_TEST):
        photo = photos[index % 2]
        top, left = (rng.integers(0, side - 4 * SIZE) for side in photo.shape[:2])
        images.append(photo[top : top + 4 * SIZE : 4, left : left + 4 * SIZE : 4])
        labels.append(index % 2)
    x, y = np.stack(images), np.array(labels)
    np.savez(
        path,
        x_train=x[NUM_TEST:],
        y_train=y[NUM_TEST:],
        x_test=x[:NUM_TEST],
        y_test=y[:NUM_TEST],
        class_names=np.array(names),
    )


def train_crops(folder: Path, data: Path, *, loss: str = "nonl") -> Path:
    """Train on an .npz file of crops for a few epochs."""
    recipe = read_recipe(
        f"digits-{loss}",
        [
            f"data={{source: arrays, path: {data}}}",
            f"augmentation={{size: {SIZE}}}",
            "schedule.epochs=6",
            "training.batch_size=20",
            "evaluation={every: 6, metrics: cheap}",
        ],
    )
    list(run_recipe(recipe, folder, load_dataset(recipe)))
    return folder
