"""The training runs that a table of the paper needs: recipe, folder, length and cost."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from protosphere.data.long_tail import long_tail_counts
from protosphere.recipes import catalog
from protosphere.recipes.datasets import DataSettings, FolderData, TorchvisionData
from protosphere.recipes.loading import read_run_recipe
from protosphere.recipes.schema import Recipe, apply_overrides, find_difference
from protosphere.recipes.schema.text import parse_value
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.checkpoints import has_checkpoint
from protosphere.runs.metadata import DataMetadata, read_class_names
from protosphere.runs.recipe_keys import flatten
from protosphere.studies.compare_records import is_complete

# Training images per second on one H200 by backbone and image size, rounded from
# benchmarks/results/training-gpu.json and large_batches-gpu.json. The deeper networks were not
# measured: their numbers are that of ResNet-50 times the ratio of the multiplications.
IMAGES_PER_SECOND = {
    ("resnet18", 32): 83_000,
    ("resnet50", 224): 4_700,
    ("resnet101", 224): 2_500,
    ("resnet152", 224): 1_700,
}
MEASURED_BACKBONES = ("resnet18", "resnet50")
# Small batches are limited by the steps that Python and the driver can issue: ResNet-18 at 32
# pixels in batches of 128 (benchmarks/results/reproduce).
STEPS_PER_SECOND = 430
# Evaluations of a long run, and epochs between those of a short one.
_EVALUATIONS = 100
_FEW_EPOCHS = 4
_LENGTH = "schedule.epochs"
# Keys of the datasets of the paper's recipes.
_DATA_KEYS = {*TorchvisionData.model_fields, *FolderData.model_fields}
# Keys that say where data are.
_LOCATIONS = ("root", "path", "classes")


@dataclass(frozen=True)
class PaperData:
    """A dataset of the paper.

    Attributes:
        title: Its name in the paper.
        num_classes: Number of classes.
        num_images: Number of training images; that of ImageNet-100 depends on the list of classes.
        source: How to get it.
        has_class_list: Whether a list of classes selects it from a larger dataset.
    """

    title: str
    num_classes: int
    num_images: int
    source: str
    has_class_list: bool = False


# By the first word of the names of recipes.
PAPER_DATA = {
    "cifar10": PaperData("CIFAR-10", 10, 50_000, "--download"),
    "cifar100": PaperData("CIFAR-100", 100, 50_000, "--download"),
    "imagenet100": PaperData(
        "ImageNet-100", 100, 130_000, "--set data.path=FOLDER --set data.classes=FILE", True
    ),
    "imagenet1k": PaperData("ImageNet-1K", 1000, 1_281_167, "--set data.path=FOLDER"),
}


@dataclass(frozen=True)
class PaperRun:
    """A training run of the paper.

    Attributes:
        recipe: Name of the recipe with the paper's settings.
        overrides: What this run changes, each ``dotted.path=value``.
    """

    recipe: str
    overrides: tuple[str, ...] = ()

    @property
    def data(self) -> PaperData:
        """The dataset that the paper trains it on."""
        return PAPER_DATA[self.recipe.partition("-")[0]]


@dataclass(frozen=True)
class PlannedRun:
    """A run as it is trained here.

    Attributes:
        run: The run of the paper.
        recipe: The recipe with the number of epochs of this reproduction.
        folder: The run folder.
        epochs_done: Number of epochs that the folder has.
        is_complete: Whether it has all of them, with the last evaluation.
        gpu_hours: Estimated hours of training on one H200; None for a backbone that was not
            measured.
        overrides: What was changed in the recipe, each ``dotted.path=value``.
    """

    run: PaperRun
    recipe: Recipe
    folder: Path
    epochs_done: int
    is_complete: bool
    gpu_hours: float | None
    overrides: tuple[str, ...] = ()

    @property
    def has_weights(self) -> bool:
        """Whether the folder has a checkpoint, not only records."""
        return has_checkpoint(RunFolder(self.folder).checkpoints)

    @property
    def hours_left(self) -> float | None:
        """Estimated hours that training still takes."""
        if self.gpu_hours is None:
            return None
        left = 0 if self.is_complete else self.recipe.schedule.epochs - self.epochs_done
        return self.gpu_hours * left / self.recipe.schedule.epochs

    @property
    def locations(self) -> list[str]:
        """Overrides of a run that say where its data are."""
        data = self.recipe.data.model_dump(mode="json")
        return [f"data.{key}={json.dumps(data[key])}" for key in _LOCATIONS if key in data]

    @property
    def probe_changes(self) -> dict[str, Any]:
        """Keys of the linear probe that were changed, and their values."""
        probe = self.recipe.probe.model_dump(mode="json")
        keys = [_key_of(override) for override in self.overrides]
        names = [key.removeprefix("probe.") for key in keys if key.startswith("probe.")]
        return {name: probe[name] for name in names}

    @property
    def command(self) -> str:
        """The arguments of ``protosphere`` that train this run."""
        before = flatten(get_base_recipe(self.run.recipe).model_dump(mode="json"))
        after = flatten(self.recipe.model_dump(mode="json"))
        words = ["train", self.run.recipe, "--out", str(self.folder), "--resume"]
        for key, value in after.items():
            if key not in before or before[key] != value:
                text = value if isinstance(value, str) else json.dumps(value)
                words += ["--set", f"{key}={text}"]
        return shlex.join(words)


@cache
def get_base_recipe(name: str) -> Recipe:
    """Return the recipe with the paper's settings, which runs are changes of.

    Args:
        name: Name of the recipe.
    """
    return catalog.get_recipe(name)


def plan_run(
    run: PaperRun, *, out: Path, scale: float = 1.0, overrides: Sequence[str] = ()
) -> PlannedRun:
    """Return a run with its recipe and what its folder has.

    Args:
        run: The run of the paper.
        out: Folder of all runs.
        scale: Fraction of the paper's epochs.
        overrides: Values of the recipe to replace, each ``dotted.path=value``. Keys of data that
            this recipe's dataset does not have are left out.

    Raises:
        RecipeError: An override is not valid.
        RunFolderError: The folder holds a run of another recipe.
        ValueError: The scale leaves no epoch, or an override is of a key that the run sets.
    """
    recipe = create_recipe(run, scale=scale, overrides=overrides)
    folder = RunFolder(out / f"{_name(run)}-{recipe.schedule.epochs}-epochs")
    epochs_done, is_done = 0, False
    if folder.recipe.exists():
        stored = read_run_recipe(folder)
        is_done = is_complete(folder.path)
        if is_done and _has_images_of(run, recipe, folder):
            stored = _move_data(stored, recipe)
        if folder.records() and (changed := find_difference(stored, recipe)):
            raise RunFolderError(
                f"{folder.path} holds a run of another recipe: {changed}; choose another --out"
            )
        epochs = [record["epoch"] for record in folder.records() if "epoch" in record]
        epochs_done = max(epochs, default=0)
    hours = _estimate_hours(run, recipe)
    return PlannedRun(run, recipe, folder.path, epochs_done, is_done, hours, tuple(overrides))


def _has_images_of(run: PaperRun, recipe: Recipe, folder: RunFolder) -> bool:
    """Whether a folder has only records, of as many images and classes as the paper's.

    They are only read, so that the images may come from where the table would not look for them.
    """
    if has_checkpoint(folder.checkpoints):
        return False
    try:
        num_images, num_classes = DataMetadata.read(folder).num_train, len(read_class_names(folder))
    except RunFolderError:
        return False
    expected = _count_images(run, recipe), run.data.num_classes
    return (num_images, num_classes) == expected


def _move_data(stored: Recipe, recipe: Recipe) -> Recipe:
    """Return the recipe of a run as if its images came from where another recipe says."""
    keys = [key for key in DataSettings.model_fields if key != "source"]
    kept = {key: getattr(stored.data, key) for key in keys}
    return stored.model_copy(update={"data": recipe.data.model_copy(update=kept)})


def create_recipe(run: PaperRun, *, scale: float = 1.0, overrides: Sequence[str] = ()) -> Recipe:
    """Return the recipe of a run, shortened.

    Args:
        run: The run of the paper.
        scale: Fraction of the paper's epochs, of the warmup and of the epochs of linear probes.
        overrides: Values of the recipe to replace; those of the warmup and of linear probes are not
            scaled.

    Raises:
        RecipeError: An override is not valid.
        ValueError: The scale leaves no epoch, or an override is of a key that the run sets.
    """
    base = get_base_recipe(run.recipe)
    fixed = {_key_of(override) for override in run.overrides} | {_LENGTH}
    keys = {_key_of(override) for override in overrides}
    if taken := sorted(keys & fixed):
        instead = "; --scale changes it" if taken[0] == _LENGTH else ""
        raise ValueError(f"{taken[0]} must not be overridden: the table itself sets it{instead}")
    own = [override for override in overrides if _applies(run, base, override, keys)]
    recipe = apply_overrides(base, changed) if (changed := [*own, *run.overrides]) else base
    epochs = int(recipe.schedule.epochs * scale + 1e-9)
    if epochs < 1:
        raise ValueError(
            f"scale must leave at least one epoch; {scale:g} of the {recipe.schedule.epochs} "
            f"epochs of {run.recipe} is none"
        )
    changes = [] if scale == 1 else [f"{_LENGTH}={epochs}", *_scale(recipe, scale, keys)]
    if "evaluation.every" not in keys:
        every = max(1, epochs // _EVALUATIONS, min(_FEW_EPOCHS, epochs // 25))
        if recipe.evaluation.metrics == "cheap":
            every = max(1, int(recipe.evaluation.every * scale))
        if every != recipe.evaluation.every:
            changes.append(f"evaluation.every={every}")
    return apply_overrides(recipe, changes) if changes else recipe


def _key_of(override: str) -> str:
    return override.partition("=")[0].strip()


def _applies(run: PaperRun, base: Recipe, override: str, keys: set[str]) -> bool:
    """Whether an override is for a recipe: a key of the paper's other data is not."""
    section, _, key = _key_of(override).partition(".")
    if section != "data" or "data.source" in keys:
        return True
    if key == "classes" and not run.data.has_class_list:
        return False
    return key in type(base.data).model_fields or key not in _DATA_KEYS


def _scale(recipe: Recipe, scale: float, keys: set[str]) -> list[str]:
    """Return overrides that shorten the warmup and linear probes, where ``keys`` does not."""
    changes: dict[str, object] = {}
    if recipe.schedule.warmup_epochs and "schedule.warmup_epochs" not in keys:
        changes["schedule.warmup_epochs"] = warmup = int(recipe.schedule.warmup_epochs * scale)
        if not warmup and "schedule.warmup_lr" not in keys:
            changes["schedule.warmup_lr"] = "null"
    epochs = recipe.probe.epochs
    if "probe.epochs" not in keys:
        changes["probe.epochs"] = epochs = max(2, int(epochs * scale))
    if not {"probe.epochs", "probe.milestones"} & keys:
        scaled = {min(max(1, int(one * scale)), epochs - 1) for one in recipe.probe.milestones}
        changes["probe.milestones"] = sorted(scaled)
    return [f"{key}={value}" for key, value in changes.items()]


def _name(run: PaperRun) -> str:
    """The name of a run: the same for runs of different tables that are trained alike."""
    content = flatten(get_base_recipe(run.recipe).model_dump(mode="json"))
    words = [run.recipe]
    for override in run.overrides:
        key, _, value = override.partition("=")
        if key not in content or content[key] != parse_value(value):
            words.append(f"{key.rpartition('.')[2].replace('_', '-')}-{value}")
    return "-".join(words)


def _estimate_hours(run: PaperRun, recipe: Recipe) -> float | None:
    speed = IMAGES_PER_SECOND.get((recipe.model.backbone.name, recipe.augmentation.size))
    if speed is None:
        return None
    num_views, epochs = recipe.augmentation.num_views, recipe.schedule.epochs
    speed = min(speed, STEPS_PER_SECOND * recipe.training.batch_size * num_views)
    return _count_images(run, recipe) * num_views * epochs / speed / 3600


def _count_images(run: PaperRun, recipe: Recipe) -> int:
    """The number of training images that the paper's data have, after a long tail is cut."""
    num_images, num_classes = run.data.num_images, run.data.num_classes
    if recipe.data.long_tail is None:
        return num_images
    return sum(long_tail_counts(num_images // num_classes, num_classes, recipe.data.long_tail))
