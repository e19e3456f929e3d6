"""Records of runs for the paper's expected behaviors: read, and grouped by what they share."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from protosphere.recipes import catalog
from protosphere.recipes.loading import read_run_recipe
from protosphere.recipes.schema import Recipe, RecipeError
from protosphere.runs import RunFolder, RunFolderError, find_run_folders
from protosphere.runs.metadata import DataMetadata, read_class_names
from protosphere.studies.common import method_name
from protosphere.studies.convergence import TrainingLog, read_log

_WITHOUT_EFFECT = {"name", "seed", "loss", "evaluation", "checkpoint", "probe"}
_LOCATIONS = {"root", "path", "classes", "workers", "in_memory", "source"}


class _Images(NamedTuple):
    """What tells training images apart, wherever they are; None for what is not known."""

    num_images: int | None
    num_classes: int | None
    class_names: tuple[str, ...] | None


@dataclass(frozen=True)
class RunRecords:
    """What is known of a run without its weights.

    Attributes:
        path: The run folder.
        recipe: Its recipe.
        last: Its last evaluation.
        num_evaluations: Number of evaluations.
    """

    path: Path
    recipe: Recipe
    last: dict[str, Any]
    num_evaluations: int

    @cached_property
    def log(self) -> TrainingLog | None:
        """The metrics over time; None if metadata that this needs were not kept."""
        try:
            return read_log(self.path)
        except RunFolderError:
            return None

    @property
    def loss(self) -> str:
        """The loss, as the paper's tables name it."""
        return method_name(self.recipe)

    @cached_property
    def images(self) -> "_Images":
        """What was kept about the images that it was trained on."""
        folder, num_images, names = RunFolder(self.path), None, None
        with suppress(RunFolderError):
            num_images = DataMetadata.read(folder).num_train
        with suppress(RunFolderError):
            names = tuple(read_class_names(folder))
        if names is None:
            return _Images(num_images, None, None)
        # Arrays without class names get these.
        is_unnamed = names == tuple(f"class {index}" for index in range(len(names)))
        return _Images(num_images, len(names), None if is_unnamed else names)

    def rows(self, benchmark: str) -> list[dict[str, Any]]:
        """Return the rows of a benchmark; none if it was not run."""
        name = f"benchmarks/{benchmark}.json"
        if not (self.path / name).exists():
            return []
        rows: list[dict[str, Any]] = RunFolder(self.path).read_json(name)["rows"]
        return rows


class Setting(NamedTuple):
    """Runs with the same settings but for the loss and the seed.

    Attributes:
        title: Data and number of epochs; other settings may have the same ones.
        number: Number of the setting among those of the same title, from 1.
        runs: The runs by loss.
    """

    title: str
    number: int
    runs: dict[str, list[RunRecords]]


def read_runs(folders: Sequence[Path | str]) -> tuple[list[RunRecords], dict[str, str]]:
    """Read complete runs.

    Args:
        folders: Run folders, or folders that contain run folders.

    Returns:
        The runs, and why others were not read.

    Raises:
        RunFolderError: A folder is no run and contains none.
    """
    runs: list[RunRecords] = []
    skipped: dict[str, str] = {}
    for path in dict.fromkeys(found for folder in folders for found in find_run_folders(folder)):
        folder = RunFolder(path)
        try:
            recipe, last = read_run_recipe(folder), folder.last_evaluation()
        except RecipeError as error:
            skipped[str(path)] = str(error)
            continue
        if last is None or last["epoch"] < recipe.schedule.epochs:
            skipped[str(path)] = "it is not complete"
            continue
        kinds = [record.get("kind") for record in folder.records()]
        runs.append(RunRecords(path, recipe, last, kinds.count("evaluation")))
    return runs, skipped


def group_runs(runs: Sequence[RunRecords], *, across: bool) -> list[Setting]:
    """Return the runs by setting and loss.

    Data with another number of training images or other classes are another setting. Of runs whose
    loss has different settings, such as temperatures, those with the settings of the recipe are
    returned, or else those with the settings of the first one.

    Args:
        runs: The runs.
        across: Whether runs may differ in more than the loss and the seed: only data and number of
            epochs must be the same.
    """
    groups: dict[str, dict[str, list[RunRecords]]] = {}
    titles: dict[str, str] = {}
    for run, images in zip(runs, _identify_images(runs), strict=True):
        content: dict[str, Any] = {"epochs": run.recipe.schedule.epochs}
        if not across:
            content = run.recipe.model_dump(mode="json", exclude={*_WITHOUT_EFFECT, "data"})
        key = json.dumps([_data_key(run), images, content], sort_keys=True)
        groups.setdefault(key, {}).setdefault(run.loss, []).append(run)
        titles[key] = f"{_data_name(run)}, {run.recipe.schedule.epochs} epochs"
    settings = []
    for key, group in groups.items():
        same = [other for other in titles if titles[other] == titles[key]]
        chosen = {loss: _select_settings(found) for loss, found in group.items()}
        settings.append(Setting(titles[key], same.index(key) + 1, chosen))
    return settings


def _identify_images(runs: Sequence[RunRecords]) -> list[_Images]:
    """Return what is known of the images of each run, its own records or those of other runs.

    Records may be kept without metadata, and arrays may have no class names: what is not known is
    taken from the runs on data of the same name that agree in the rest, if these agree.
    """
    known: dict[str, list[_Images]] = {}
    for run in runs:
        known.setdefault(_data_key(run), []).append(run.images)
    return [_complete(run.images, known[_data_key(run)]) for run in runs]


def _complete(images: _Images, known: Sequence[_Images]) -> _Images:
    """Fill in what is not known, if all that agree with the rest have the same."""
    alike = [
        other
        for other in known
        if all(a is None or b is None or a == b for a, b in zip(images, other, strict=True))
    ]
    found = [set(values) - {None} for values in zip(*alike, strict=True)]
    return _Images(*(values.pop() if len(values) == 1 else None for values in found))


def _select_settings(runs: list[RunRecords]) -> list[RunRecords]:
    """Return the runs whose loss has the same settings: those of the recipe, if there are any."""
    known = [run for run in runs if run.recipe.name in catalog.names()]
    own = [run for run in known if run.recipe.loss == catalog.get_recipe(run.recipe.name).loss]
    first = (own or runs)[0].recipe.loss
    return [run for run in runs if run.recipe.loss == first]


def _data_key(run: RunRecords) -> str:
    """The dataset and its settings, wherever the images are."""
    content = run.recipe.data.model_dump(mode="json", exclude=_LOCATIONS)
    return json.dumps([_data_name(run), content], sort_keys=True)


def _data_name(run: RunRecords) -> str:
    """The dataset; images of a file of arrays are known by the name of the recipe."""
    data = run.recipe.data
    name = data.source if data.source != "arrays" else run.recipe.name.partition("-")[0]
    if data.long_tail is not None:
        name += f", long tail {data.long_tail:g}"
    if data.class_groups is not None:
        name += ", groups of classes"
    if data.label_noise is not None:
        name += f", {data.label_noise.fraction:g} wrong labels"
    return name
