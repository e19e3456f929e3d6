"""``protosphere train``: train a recipe into a run folder, with progress; stop and resume."""

import logging
import shlex
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from protosphere.cli.loggers import LoggerName
from protosphere.cli.options import Device, Download, Overrides, RecipeName
from protosphere.cli.program import program_name
from protosphere.cli.text import count, echo

if TYPE_CHECKING:
    from protosphere.data.datasets import ImageDataset
    from protosphere.parallel.launch import World
    from protosphere.recipes.monitor import BestEvaluation
    from protosphere.recipes.runner import Event
    from protosphere.recipes.schema import Recipe
    from protosphere.runs import RunFolder

# Number of steps between two updates of the progress bar.
_REPORT_EVERY = 50


def train(
    out: Annotated[Path, typer.Option(help="Run folder to write.")],
    recipe_name: RecipeName = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Resume from the last checkpoint in the run folder; start if there is none.",
        ),
    ] = False,
    init_from: Annotated[
        Path | None,
        typer.Option(
            metavar="<run>",
            help="Start from the weights of another run, instead of pretrained ones: its backbone, "
            "and its head if the classes are the same.",
        ),
    ] = None,
    overrides: Overrides = None,
    device: Device = "auto",
    download: Download = False,
    log: Annotated[
        LoggerName | None, typer.Option(help="Also log the metrics to TensorBoard or W&B.")
    ] = None,
) -> None:
    """Train a classifier from a recipe into a run folder.

    With --resume, RECIPE may be omitted: the run continues with its own recipe.

    The exit status is 1 if SIGTERM or Ctrl-C stopped training before its end,
    unless several processes train.
    """
    from protosphere.cli.errors import report_errors

    with report_errors():
        from protosphere.parallel.launch import PeerError, open_world
        from protosphere.recipes.devices import resolve_device

        try:
            with open_world(resolve_device(device)) as (world, own_device):
                recipe = world.from_first(
                    lambda: _read_recipe(recipe_name, out, overrides or [], resume=resume)
                )
                program, run = program_name(), shlex.quote(str(out))
                complete = train_run(
                    recipe,
                    out,
                    resume=resume,
                    init_from=init_from,
                    device=own_device,
                    download=download,
                    log=log,
                    next_steps=f"Next: {program} evaluate {run}, or {program} report {run} for a "
                    "page with figures",
                    world=world,
                )
        except PeerError:
            raise typer.Exit(1) from None  # The process that failed has said why.
    # Torchrun would take another status for a failure, and start the processes again.
    if not complete and world.size == 1:
        raise typer.Exit(1)


def _read_recipe(
    name: str | None, out: Path, overrides: Sequence[str], *, resume: bool
) -> "Recipe":
    from protosphere.recipes.loading import read_recipe

    has_run = (out / "recipe.yaml").is_file()
    if name is None and resume and not has_run:
        raise ValueError(f"{out} has no run to resume; give RECIPE to start one")
    if name is None and not resume:
        raise ValueError(
            "RECIPE must be given unless a run is resumed; `protosphere recipes` lists them"
        )
    return read_recipe(name or str(out / "recipe.yaml"), overrides)


def train_run(
    recipe: "Recipe",
    out: Path,
    *,
    resume: bool,
    device: str,
    init_from: Path | None = None,
    download: bool = False,
    log: LoggerName | None = None,
    next_steps: str = "",
    world: "World | None" = None,
) -> bool:
    """Train a recipe into a run folder, with progress; a signal stops it with a checkpoint.

    Of several processes only the first one prints.

    Args:
        recipe: The recipe.
        out: The run folder.
        resume: Whether a run in the folder is continued.
        device: Value of ``--device``.
        init_from: Run whose weights training starts from.
        download: Whether a missing dataset is downloaded.
        log: Logger to write to as well.
        next_steps: Sentence to print once training is complete.
        world: The processes that train together; None for this one alone.

    Returns:
        Whether training is complete.
    """
    from protosphere.cli.loggers import open_logger
    from protosphere.cli.signals import STOPPING, catch_signals
    from protosphere.cli.train_progress import TrainProgress
    from protosphere.parallel.launch import World
    from protosphere.recipes.devices import resolve_device
    from protosphere.recipes.runner import run_recipe
    from protosphere.runs import RunFolder
    from protosphere.runs.checkpoints import has_checkpoint

    world = World() if world is None else world
    with catch_signals(notice=STOPPING) as stop_requested:
        device = resolve_device(device)
        dataset = _load_dataset(recipe, world, download=download)
        if not world.is_first:
            return _follow(recipe, out, dataset, device, resume, stop_requested, world)
        epochs = recipe.schedule.epochs
        is_new = not (resume and has_checkpoint(RunFolder(out).checkpoints))
        where = device if world.size == 1 else f"{world.size} processes ({device})"
        notes = _unused_on_one_process(recipe) if world.size == 1 else []
        print_header = cache(
            lambda: _print_header(recipe, dataset, device, where, out, notes, is_new=is_new)
        )

        def should_stop() -> bool:
            print_header()  # After the first step nothing can be refused any more.
            return stop_requested()

        show = TrainProgress(epochs, recipe.split, recipe.checkpoint.monitor)
        start: Literal["fresh", "resume"] = "resume" if resume else "fresh"
        events = run_recipe(
            recipe,
            RunFolder(out),
            dataset,
            device=device,
            start=start,
            init_from=init_from,
            report_every=_REPORT_EVERY,
            should_stop=should_stop,
            load_progress=show.loading,
            world=world,
        )
        config = recipe.model_dump(mode="json")
        last = None
        with show, open_logger(log, out, recipe.name, config) as write:
            for event in events:
                if last is None and event.resumed_at:
                    echo(f"Resumed from step {event.resumed_at}")
                last = event
                show(event)
                write(event.progress.step, _logged(event, recipe.split))
        if last is None:
            echo(f"Nothing left to do: {out} has {_describe_end(recipe, RunFolder(out))}")
            return True
        if _is_unfinished(last, recipe):
            step = last.progress.step
            how = "the same command continues" if resume else "add --resume to continue"
            echo(f"Stopped at step {step} with a checkpoint; {how}")
            return False
        if last.stopped_early:
            waited = count(recipe.checkpoint.patience or 0, "evaluation")
            text = f"Stopped early after {waited} without a new best. "
        else:
            text = "Done. "
        if note := coinciding_note(last.best, recipe, RunFolder(out)):
            echo(note)
        echo(f"{text}{_best(last, recipe)}{next_steps}".rstrip())
        return True


def _describe_end(recipe: "Recipe", folder: "RunFolder") -> str:
    """Return how many epochs a finished run has; refuse a run whose records are lost."""
    from protosphere.recipes.monitor import is_patience_exhausted
    from protosphere.runs import RunFolderError

    records = folder.records()
    done = max((one["epoch"] for one in records if isinstance(one.get("epoch"), int)), default=0)
    if not done:
        raise RunFolderError(
            f"{folder.metrics} must have the records of the finished run; it has none, and the "
            "last checkpoint is of the end of training"
        )
    epochs = recipe.schedule.epochs
    if done < epochs and is_patience_exhausted(recipe.checkpoint, records):
        return f"stopped early after {count(done, 'epoch')}"
    missing = f", but metrics.jsonl has no records after epoch {done}" if done < epochs else ""
    return f"all {count(epochs, 'epoch')}{missing}"


def _load_dataset(recipe: "Recipe", world: "World", *, download: bool) -> "ImageDataset":
    """Load the data, first in one process of each machine, which may download them."""
    from protosphere.recipes.build import load_dataset

    dataset = None
    for turn in (world.local_rank == 0, world.local_rank > 0):
        with world.together():
            if turn:
                dataset = load_dataset(recipe, download=download)
    assert dataset is not None
    return dataset


def _follow(
    recipe: "Recipe",
    out: Path,
    dataset: "ImageDataset",
    device: str,
    resume: bool,
    should_stop: Callable[[], bool],
    world: "World",
) -> bool:
    """Train as one of the other processes, without output."""
    from protosphere.recipes.runner import run_recipe

    logging.getLogger("protosphere").setLevel(logging.ERROR)
    last = None
    for event in run_recipe(
        recipe,
        out,
        dataset,
        device=device,
        start="resume" if resume else "fresh",
        report_every=_REPORT_EVERY,
        should_stop=should_stop,
        world=world,
    ):
        last = event
    return last is None or not _is_unfinished(last, recipe)


def _is_unfinished(last: "Event", recipe: "Recipe") -> bool:
    """Whether a signal stopped training before its end."""
    at_end = last.stopped_early or last.progress.epoch == recipe.schedule.epochs
    return last.progress.stopping and not at_end


def _best(event: "Event", recipe: "Recipe") -> str:
    from protosphere.cli.train_progress import format_metric

    name, best = recipe.checkpoint.monitor, event.best
    if name is None or best is None:
        return ""
    metric, value = f"{recipe.split} {name.replace('_', ' ')}", format_metric(name, best.value)
    # Evaluations are at the ends of epochs, all of which have as many steps.
    epoch = round(best.step * event.progress.epoch / event.progress.step)
    return f"Best {metric}: {value} after epoch {epoch}. "


def coinciding_note(best: "BestEvaluation | None", recipe: "Recipe", folder: "RunFolder") -> str:
    """Return sentences on prototypes that nearly coincide; empty if none do.

    Args:
        best: The best evaluation, whose prototypes count; None for those of the last one.
        recipe: The recipe.
        folder: Folder of the run.
    """
    from protosphere.metrics.coinciding_prototypes import (
        describe_coinciding,
        find_coinciding_prototypes,
    )
    from protosphere.runs.arrays import read_arrays_of
    from protosphere.runs.folder import RunFolderError
    from protosphere.runs.metadata import read_class_names

    try:
        step = None if best is None else best.step
        arrays, names = read_arrays_of(folder, step).arrays, read_class_names(folder)
    except RunFolderError:  # Somebody has removed the files since; the training is complete.
        return ""
    found = find_coinciding_prototypes(arrays["prototypes"])
    return describe_coinciding(found, names, recipe.loss.model_dump(mode="json"))


def _unused_on_one_process(recipe: "Recipe") -> list[str]:
    """Return a sentence for each setting that only has an effect on several processes."""
    keys = {
        "training.fsdp": recipe.training.fsdp,
        "loss.shard_prototypes": getattr(recipe.loss, "shard_prototypes", False),
    }
    return [f"{key} has no effect on one process" for key, is_set in keys.items() if is_set]


def _print_header(
    recipe: "Recipe",
    dataset: "ImageDataset",
    device: str,
    where: str,
    out: Path,
    notes: Sequence[str],
    *,
    is_new: bool,
) -> None:
    from protosphere.cli.devices import device_limits
    from protosphere.runs import RunFolder

    images = count(len(dataset.train), "training image")
    classes = count(dataset.train.num_classes, "class")
    epochs = count(recipe.schedule.epochs, "epoch")
    echo(f"{recipe.name}: {images} of {classes}, {epochs}, on {where}, into {out}")
    if is_new and (out / "init.json").exists():
        start = RunFolder(out).read_json("init.json")
        rest = "" if "head" in start["parts"] else "; the head starts anew"
        echo(f"Weights of {start['run']}, step {start['step']}: {', '.join(start['parts'])}{rest}")
    if note := _size_note(recipe):
        echo(note)
    for note in notes:
        echo(note)
    if limits := device_limits(device):
        echo(limits)
    batch_size = recipe.training.batch_size
    if batch_size > len(dataset.train):
        echo(f"Each batch holds all training images: training.batch_size is {batch_size:,}")


def _size_note(recipe: "Recipe") -> str | None:
    """Return a sentence if images are far smaller than those that a model was pretrained on."""
    from protosphere.encoders.pretrained import input_config

    backbone, size = recipe.model.backbone, recipe.augmentation.size
    config = input_config(backbone.name) if backbone.pretrained else None
    if config is None or size >= config.size / 2:
        return None
    return f"{backbone.name} was pretrained on {config.size} pixels; augmentation.size is {size}"


def _logged(event: "Event", split: str) -> dict[str, float]:
    now = event.progress
    running = {
        "loss": now.loss,
        "lr": now.lr,
        "images_per_second": now.images_per_second,
        "epoch": now.epoch,
    }
    evaluated = dict(event.metrics or {})
    if "loss" in evaluated:
        evaluated[f"{split}_loss"] = evaluated.pop("loss")
    return running | evaluated
