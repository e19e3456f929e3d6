"""A run that has been trained, taken up again: its recipe, data and model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from protosphere.classifiers import MeanClassifier
from protosphere.data.augmentation import Augmentation
from protosphere.data.datasets import DataError, Source
from protosphere.data.loaders import Feed
from protosphere.evaluation import take_means
from protosphere.evaluation.probes import PROBES, Probe, Probed, probe
from protosphere.recipes import build
from protosphere.recipes.runner import (
    fresh_objective,
    objective_of,
    read_facts,
    see_that_classes_agree,
    see_that_images_agree,
)
from protosphere.recipes.schema import Recipe, difference, from_yaml, with_settings
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.checkpoints import Checkpoint, load_checkpoint
from protosphere.training import Objective


@dataclass(frozen=True)
class TrainedRun:
    """What a run folder and the data that it names give.

    Attributes:
        recipe: with the settings that were replaced.
        source: the data.
        objective: with the weights of the last checkpoint, or their moving average where there is one.
        train: the training images.
        test: the test images.
        step: of the checkpoint.
        statistics: mean and standard deviation of each channel, by which images were normalized in training.
    """

    recipe: Recipe
    source: Source
    objective: Objective
    train: Feed
    test: Feed
    step: int
    statistics: build.Statistics

    def probed(
        self,
        names: Sequence[Probe] = PROBES,
        *,
        metrics: Literal["all", "none"] | None = None,
        progress: Callable[[float], None] = lambda _: None,
    ) -> Iterator[Probed]:
        """Classify by other classifiers, as :func:`protosphere.evaluation.probes.probe` does.

        Linear layers see one view of each image, cut and mirrored as in training and not recolored. Metrics are taken
        where the recipe has all of them, unless it is said otherwise.
        """
        plain = {
            "count": 1,
            "jitter": (0.0, 0.0, 0.0, 0.0),
            "gray_probability": 0.0,
            "blur_probability": 0.0,
        }
        recipe = self.recipe.model_copy(
            update={"views": self.recipe.views.model_copy(update=plain)}
        )
        device = self.train.device
        feeds = build.build_feeds(recipe, self.source, device, statistics=self.statistics)
        settings = build.build_probe_settings(recipe, device=device)
        encoder = self.objective.encoder
        assert isinstance(
            encoder, nn.Sequential
        )  # As build_objective makes it: backbone, neck, projection.
        body = None if isinstance(encoder[-1], nn.Identity) else encoder[:-1]
        chosen = metrics or ("all" if recipe.metrics == "all" else "none")
        return probe(
            self.objective,
            *feeds,
            settings,
            names=names,
            body=body,
            metrics=chosen,
            progress=progress,
        )


@dataclass(frozen=True)
class TrainedModel:
    """What a run folder gives by itself, without its data.

    Attributes:
        recipe: of the run.
        objective: with the weights of the last checkpoint, or their moving average where there is one.
        class_names: one a class.
        channels: of the images.
        clean: how images are prepared.
    """

    recipe: Recipe
    objective: Objective
    class_names: list[str]
    channels: int
    clean: Augmentation


def load_run(
    path: Path | str,
    *,
    settings: Sequence[str] = (),
    device: torch.device | str = "cpu",
    download: bool = False,
    tested: Literal["as trained", "test"] = "as trained",
    progress: Callable[[float], None] = lambda _: None,
) -> TrainedRun:
    """Take up a run and its data.

    Where the head is class means and the run was saved between two evaluations, they are taken here.

    Args:
        path: its folder.
        settings: ``dotted.path=value`` in place of what the recipe says of where data are and the like.
        device: where to compute.
        download: fetch a data set that is not there.
        tested: ``"test"`` has the test images also of a run that was evaluated on a validation part.
        progress: called with the share of the training images that class means were taken of.

    Raises:
        RunFolderError: it is no run, has no checkpoint, or one of another model.
        RecipeError: a setting makes no sense.
        DataError: the data are not there.
    """
    folder = RunFolder(path)
    own = _recipe(folder)
    recipe = with_settings(own, settings)
    if changed := difference(own, recipe):
        raise RunFolderError(f"settings must leave what was trained as it is; {changed}")
    checkpoint = _checkpoint(folder)
    source = build.build_source(recipe, download=download, tested=tested)
    see_that_classes_agree(folder, list(source.train.class_names))
    see_that_images_agree(folder, source.train.fingerprint())
    objective = _with_weights(fresh_objective(recipe, source, device), checkpoint, folder)
    data = read_facts(folder)
    statistics = tuple(data["mean"]), tuple(data["std"])
    train, test = build.build_feeds(recipe, source, device, statistics=statistics)
    if isinstance(objective.head, MeanClassifier) and not objective.head.has_means:
        take_means(objective, train, progress=progress)
    return TrainedRun(recipe, source, objective, train, test, checkpoint.step, statistics)


def load_model(
    path: Path | str,
    *,
    device: torch.device | str = "cpu",
    progress: Callable[[float], None] = lambda _: None,
) -> TrainedModel:
    """Take up the model of a run. Its data need not be there, but for class means that :func:`load_run` has to take.

    Args:
        path: its folder.
        device: where to compute.
        progress: as :func:`load_run` has it.

    Raises:
        RunFolderError: it is no run, has no checkpoint, one of another model, or one without class means and no data.
    """
    folder = RunFolder(path)
    recipe, checkpoint = _recipe(folder), _checkpoint(folder)
    names, data = folder.read_json("classes.json"), read_facts(folder)
    objective = _with_weights(
        objective_of(recipe, len(names), data["channels"], device), checkpoint, folder
    )
    clean = build.build_augmentation(recipe, data["mean"], data["std"]).clean()
    if isinstance(objective.head, MeanClassifier) and not objective.head.has_means:
        try:
            objective = load_run(path, device=device, progress=progress).objective
        except DataError as error:
            raise RunFolderError(
                f"class means of {path} must be taken of its training images, since it stopped between evaluations; "
                f"{error}"
            ) from None
    return TrainedModel(recipe, objective.eval(), names, data["channels"], clean)


def _recipe(folder: RunFolder) -> Recipe:
    try:
        return from_yaml(folder.recipe.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        raise RunFolderError(
            f"{folder.path} must be a run folder, with a recipe; it is none"
        ) from None


def _checkpoint(folder: RunFolder) -> Checkpoint:
    checkpoint = load_checkpoint(folder.checkpoints)
    if checkpoint is None:
        raise RunFolderError(f"{folder.path} must have a checkpoint; it has none yet")
    return checkpoint


def _with_weights(objective: Objective, checkpoint: Checkpoint, folder: RunFolder) -> Objective:
    try:
        objective.load_state_dict(checkpoint.weights | checkpoint.state.get("average", {}))
    except RuntimeError:
        raise RunFolderError(
            f"the checkpoint in {folder.path} must fit its recipe and data; it is of another model"
        ) from None
    return objective
