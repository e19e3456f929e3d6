"""Run a recipe in a run folder: train, evaluate, measure, log, save; resume where an earlier process has stopped."""

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save
from torch import Tensor

from protosphere import __version__
from protosphere.classifiers import MeanClassifier
from protosphere.data.datasets import Source
from protosphere.data.loaders import Feed
from protosphere.evaluation import assess
from protosphere.recipes import build
from protosphere.recipes.schema import Recipe, RecipeError, difference, from_yaml
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.checkpoints import load_checkpoint, save_checkpoint
from protosphere.storage import write_atomically
from protosphere.training import Objective, Progress, TrainingError, train

GEOMETRY = "geometry.safetensors"


@dataclass(frozen=True)
class Event:
    """What has just happened: a record of training, where an epoch was evaluated its numbers, the step gone on from."""

    progress: Progress
    numbers: dict[str, float] | None
    resumed_at: int


def execute(
    recipe: Recipe,
    folder: RunFolder,
    source: Source,
    *,
    device: torch.device | str = "cpu",
    start: Literal["fresh", "resume"] = "fresh",
    report_every: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Run a recipe. A generator: it works while it is asked for events, and asking to the end is the run.

    Args:
        recipe: what to run.
        folder: where; it is locked meanwhile.
        source: the data.
        device: where to compute.
        start: ``"fresh"`` refuses a folder that has checkpoints; ``"resume"`` goes on from the last one, if any.
        report_every: steps between events, besides one at the end of each epoch.
        stop: asked after each step; when it says so, a checkpoint is saved and the run ends early.

    Raises:
        RunFolderError: the folder is in use, of another recipe, or damaged.
        TrainingError: the loss is no longer a number; the sentence names the last checkpoint.
    """
    # What makes no sense is found out before the folder is touched.
    objective = fresh_objective(recipe, source, device)
    feeds = build.build_feeds(recipe, source, device)
    settings = build.build_settings(recipe, device=device, report_every=report_every)
    with folder.locked():
        folder.begin(recipe.to_yaml(), differs=_difference)
        checkpoint = load_checkpoint(folder.checkpoints)
        if start == "fresh" and (checkpoint is not None or folder.records()):
            raise RunFolderError(
                f"{folder.path} must be resumed (--resume) or be another folder; it has a run already"
            )
        names = list(source.train.class_names)
        mean, std = build.normalization(source.train)
        data: dict[str, Any] = {"train": len(source.train), "test": len(source.test)}
        data |= {
            "fingerprint": source.train.fingerprint(),
            "test_fingerprint": source.test.fingerprint(),
        }
        data |= {"channels": source.train.channels, "mean": mean, "std": std}
        if checkpoint is not None:
            see_that_classes_agree(folder, names)
            see_that_images_agree(folder, data["fingerprint"])
            if read_facts(folder)["test_fingerprint"] != data["test_fingerprint"]:
                raise RunFolderError(
                    f"{folder.path} must be resumed with its own test images; these are others"
                )
        if start == "resume":
            folder.write_recipe(recipe.to_yaml())  # Where data are may have changed.
        folder.write_json("machine.json", machine(device))
        folder.write_json("classes.json", names)
        folder.write_json("data.json", data)
        resumed_at = 0 if checkpoint is None else checkpoint.step
        folder.forget_after(resumed_at)
        try:
            for progress in train(objective, feeds[0], settings, resume=checkpoint, stop=stop):
                numbers = _record(recipe, folder, progress, objective, *feeds)
                yield Event(progress, numbers, resumed_at)
        except TrainingError as error:
            last = load_checkpoint(folder.checkpoints)
            saved = (
                "there is no checkpoint"
                if last is None
                else f"the last checkpoint is of step {last.step}"
            )
            raise TrainingError(f"{error}; {saved}") from None


def see_that_classes_agree(folder: RunFolder, names: list[str]) -> None:
    """Raise RunFolderError unless a run's classes are these, in this order."""
    if folder.read_json("classes.json") != names:
        raise RunFolderError(
            f"{folder.path} must have data of its own classes; these have others, or another order"
        )


def see_that_images_agree(folder: RunFolder, fingerprint: str) -> None:
    """Raise RunFolderError unless a run's training images have this fingerprint."""
    if read_facts(folder)["fingerprint"] != fingerprint:
        raise RunFolderError(
            f"{folder.path} must be given its own training images; these are others"
        )


def read_facts(folder: RunFolder) -> dict[str, Any]:
    """What a run has noted of its data. Raises RunFolderError where something is missing."""
    facts = folder.read_json("data.json")
    asked = ("train", "test", "fingerprint", "test_fingerprint", "channels", "mean", "std")
    missing = [name for name in asked if not isinstance(facts, dict) or name not in facts]
    if missing:
        raise RunFolderError(f"data.json in {folder.path} must say {missing[0]}; it does not")
    return dict(facts)


def fresh_objective(recipe: Recipe, source: Source, device: torch.device | str) -> Objective:
    """The objective as it is before the first step."""
    return objective_of(recipe, source.train.num_classes, source.train.channels, device)


def objective_of(
    recipe: Recipe, num_classes: int, channels: int, device: torch.device | str
) -> Objective:
    """The objective as it is before the first step, for data of these classes and channels."""
    torch.manual_seed(recipe.seed)
    return build.build_objective(recipe, num_classes=num_classes, in_channels=channels).to(device)


def machine(device: torch.device | str) -> dict[str, Any]:
    """Where a run is made, and with which versions."""
    packages = ("torch", "torchvision", "timm", "numpy")
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device)
        if torch.device(device).type == "cuda"
        else str(device),
        "versions": {"protosphere": __version__} | {name: _version(name) for name in packages},
    }


def latest(folder: Path) -> dict[str, Any] | None:
    """The last evaluation of a run, if it has one."""
    records = [
        record for record in RunFolder(folder).records() if record.get("kind") == "evaluation"
    ]
    return records[-1] if records else None


def write_geometry(folder: RunFolder, geometry: dict[str, Tensor]) -> None:
    """Keep what a report draws; it is read without torch (``safetensors.numpy``)."""
    write_atomically(folder.path / GEOMETRY, save(geometry))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _memory(device: torch.device) -> dict[str, float]:
    """What the run has taken of a GPU at most, with what the allocator keeps: so much must be free."""
    if device.type != "cuda":
        return {}
    return {"gpu_gib": round(torch.cuda.max_memory_reserved(device) / 2**30, 2)}


def _difference(there: str, here: str) -> str | None:
    try:
        return difference(from_yaml(there), from_yaml(here))
    except RecipeError as error:
        return str(error)


def _record(
    recipe: Recipe,
    folder: RunFolder,
    progress: Progress,
    objective: Objective,
    data: Feed,
    test: Feed,
) -> dict[str, float] | None:
    """Log, evaluate where it is time, save. The checkpoint comes last: what it stands for is on the disk then."""
    epoch, total = round(progress.epoch), recipe.optimization.epochs
    numbers = None
    if progress.at_epoch_end:
        record = {
            "kind": "train",
            "step": progress.step,
            "epoch": epoch,
            "loss": progress.loss,
            "rate": progress.rate,
        }
        folder.log(
            record
            | {"images_per_second": round(progress.images_per_second, 1)}
            | _memory(data.device)
        )
        if epoch == total or epoch % recipe.evaluate_every == 0:
            with progress.averaged():
                found = assess(objective, data, test, metrics=recipe.metrics)
            numbers = found.numbers
            write_geometry(folder, found.geometry)
            part = "validation" if recipe.data.validation_share else "test"
            folder.log(
                {"kind": "evaluation", "step": progress.step, "epoch": epoch, "part": part}
                | numbers
            )
    due = progress.at_epoch_end and (epoch == total or epoch % recipe.save_every == 0)
    if due or progress.stopping:
        if numbers is None and isinstance(objective.head, MeanClassifier):
            # Those of an earlier evaluation are no longer the class means; whoever loads this has to take them.
            with progress.averaged():
                objective.head.forget()
        save_checkpoint(folder.checkpoints, progress.step, *progress.checkpoint())
    return numbers
