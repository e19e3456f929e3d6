"""Run a recipe in a run folder: train, evaluate, measure, log, save; resume where an earlier process has stopped."""

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from protosphere.data.pipeline import Augmentation
from protosphere.data.sources import ImageSet, Source
from protosphere.geometry import normalise
from protosphere.metrics import examine
from protosphere.recipes import build
from protosphere.recipes.schema import Recipe
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.checkpoints import load_checkpoint, save_checkpoint
from protosphere.training import Objective, Progress, TrainingError, train

_BATCH = 1024


@dataclass(frozen=True)
class Event:
    """What has just happened: a record of training, and, where an epoch was evaluated, its numbers."""

    progress: Progress
    numbers: dict[str, float] | None


def execute(
    recipe: Recipe,
    folder: RunFolder,
    source: Source,
    *,
    device: torch.device | str = "cpu",
    start: Literal["fresh", "resume"] = "fresh",
    report_every: int | None = None,
) -> Iterator[Event]:
    """Run a recipe. A generator: it works while it is asked for events, and asking to the end is the run.

    Args:
        recipe: what to run.
        folder: where; it is locked meanwhile.
        source: the data.
        device: where to compute.
        start: ``"fresh"`` refuses a folder that has checkpoints; ``"resume"`` goes on from the last one, if any.
        report_every: steps between events, besides one at the end of each epoch.

    Raises:
        RunFolderError: the folder is in use, of another recipe, or damaged.
        TrainingError: the loss is no longer a number; the sentence names the last checkpoint.
    """
    with folder.locked():
        folder.begin(recipe.to_yaml())
        checkpoint = load_checkpoint(folder.checkpoints)
        if checkpoint is not None and start == "fresh":
            raise RunFolderError(f"{folder.path} must be resumed (--resume) or be another folder; it has a run already")
        torch.manual_seed(recipe.seed)
        objective = build.build_objective(
            recipe, num_classes=source.train.num_classes, in_channels=source.train.images.shape[1]
        ).to(device)
        augmentation = build.build_augmentation(recipe, source.train)
        data, test = source.train.to(device), source.test.to(device)
        folder.write_json("machine.json", machine(device))
        folder.write_json("classes.json", list(source.train.class_names))
        folder.forget_after(0 if checkpoint is None else checkpoint.step)
        settings = build.build_settings(recipe, report_every=report_every)
        try:
            for progress in train(objective, data, augmentation, settings, resume=checkpoint):
                numbers = None
                if progress.at_epoch_end:
                    numbers = _end_of_epoch(recipe, folder, progress, objective, data, test, augmentation.clean())
                yield Event(progress, numbers)
        except TrainingError as error:
            last = load_checkpoint(folder.checkpoints)
            saved = "there is no checkpoint" if last is None else f"the last checkpoint is of step {last.step}"
            raise TrainingError(f"{error}; {saved}") from None


def machine(device: torch.device | str) -> dict[str, Any]:
    """Where a run is made, and with which versions."""
    packages = ("protosphere", "torch", "torchvision", "timm", "numpy")
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "device": torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else str(device),
        "versions": {name: _version(name) for name in packages},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _end_of_epoch(
    recipe: Recipe,
    folder: RunFolder,
    progress: Progress,
    objective: Objective,
    data: ImageSet,
    test: ImageSet,
    clean: Augmentation,
) -> dict[str, float] | None:
    """Log, evaluate where it is time, save. The checkpoint comes last: what it stands for is on the disk then."""
    epoch = round(progress.epoch)
    final = epoch == recipe.optimisation.epochs
    record = {"kind": "train", "step": progress.step, "epoch": epoch, "loss": progress.loss, "rate": progress.rate}
    folder.log(record | {"images_per_second": round(progress.images_per_second, 1)})
    numbers = None
    if final or epoch % recipe.evaluate_every == 0:
        numbers = evaluate(objective, data, test, clean)
        folder.log({"kind": "evaluation", "step": progress.step, "epoch": epoch} | numbers)
    if numbers is not None or final:
        save_checkpoint(folder.checkpoints, progress.step, *progress.checkpoint())
    return numbers


@torch.no_grad()
def evaluate(objective: Objective, data: ImageSet, test: ImageSet, clean: Augmentation) -> dict[str, float]:
    """Accuracy on both parts, that of the nearest class mean, and the collapse metrics of the training part.

    Args:
        objective: trained; it is left in the mode it was in.
        data: the training images.
        test: the test images.
        clean: how images are prepared.
    """
    mode = objective.training
    objective.eval()
    features, scores = _outputs(objective, data, clean)
    test_features, test_scores = _outputs(objective, test, clean)
    objective.train(mode)
    prototypes = objective.head.prototypes
    found = examine(features, data.labels, prototypes if isinstance(prototypes, Tensor) else None)
    unit = normalise(test_features)
    nearest = torch.cdist(unit, found.statistics.means.to(unit)).argmin(1)
    return {
        "train_accuracy": _accuracy(scores.argmax(1), data.labels),
        "test_accuracy": _accuracy(test_scores.argmax(1), test.labels),
        "nearest_mean_accuracy": _accuracy(nearest, test.labels),
        **found.values,
    }


def _outputs(objective: Objective, data: ImageSet, clean: Augmentation) -> tuple[Tensor, Tensor]:
    features = torch.cat([objective.encoder(clean(images)) for images in data.images.split(_BATCH)])
    return features, objective.head(features)


def _accuracy(decided: Tensor, labels: Tensor) -> float:
    return float((decided == labels).double().mean())


def latest(folder: Path) -> dict[str, Any] | None:
    """The last evaluation of a run, if it has one."""
    records = [record for record in RunFolder(folder).records() if record.get("kind") == "evaluation"]
    return records[-1] if records else None
