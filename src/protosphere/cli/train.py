"""``protosphere train``: train a recipe into a run folder, with progress; stop and resume."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from protosphere.cli.loggers import LoggerName
from protosphere.cli.options import Device, Download, Overrides, RecipeName

if TYPE_CHECKING:
    from protosphere.data.datasets import ImageDataset
    from protosphere.recipes.runner import Event
    from protosphere.recipes.schema import Recipe

# Number of steps between two updates of the progress bar.
_REPORT_EVERY = 50
# Metrics shown after an evaluation, and their labels.
_SHOWN = {
    "accuracy": "{split} accuracy",
    "nearest_mean_accuracy": "nearest class mean",
    "nc1_ratio": "nc1_ratio",
    "inter_effective_rank": "inter-class rank",
    "weight_class_alignment": "weight-class alignment",
}


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
    overrides: Overrides = None,
    device: Device = "auto",
    download: Download = False,
    log: Annotated[
        LoggerName | None, typer.Option(help="Also log the metrics to TensorBoard or W&B.")
    ] = None,
) -> None:
    """Train a classifier from a recipe into a run folder.

    With --resume, RECIPE may be omitted: the run continues with its own recipe.
    """
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from protosphere.cli.errors import report_errors
    from protosphere.cli.progress import create_progress
    from protosphere.cli.signals import catch_signals
    from protosphere.cli.text import count, echo

    with report_errors(), catch_signals() as stop_requested:
        from protosphere.cli.devices import resolve_device
        from protosphere.cli.loggers import open_logger
        from protosphere.recipes.build import load_dataset
        from protosphere.recipes.loading import read_recipe
        from protosphere.recipes.runner import run_recipe
        from protosphere.runs import RunFolder

        if recipe_name is None and not (resume and (out / "recipe.yaml").is_file()):
            raise ValueError(
                "RECIPE must be given unless a run is resumed; `protosphere recipes` lists them"
            )
        recipe = read_recipe(recipe_name or str(out / "recipe.yaml"), overrides or [])
        device = resolve_device(device)
        dataset = load_dataset(recipe, download=download)
        epochs = recipe.schedule.epochs
        print_header = cache(lambda: _print_header(recipe, dataset, device, out))

        def should_stop() -> bool:
            print_header()  # After the first step nothing can be refused any more.
            return stop_requested()

        start: Literal["fresh", "resume"] = "resume" if resume else "fresh"
        events = run_recipe(
            recipe,
            RunFolder(out),
            dataset,
            device=device,
            start=start,
            report_every=_REPORT_EVERY,
            should_stop=should_stop,
        )
        bar = create_progress(
            TextColumn("epoch {task.completed:.1f}/{task.total:.0f}, step {task.fields[step]}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        config = recipe.model_dump(mode="json")
        last = None
        with bar, open_logger(log, out, recipe.name, config) as write:
            task = bar.add_task("train", total=epochs, step=0, status="starting")
            evaluated = ""
            for event in events:
                if last is None and event.resumed_at:
                    echo(f"Resumed from step {event.resumed_at}")
                last = now = event.progress
                if event.metrics is not None:
                    shown = _shown(event.metrics, recipe.split)
                    evaluated = shown[0]
                    echo(f"epoch {now.epoch:.0f}: loss {now.loss:.4f}, {', '.join(shown)}")
                status = f"loss {now.loss:.4f}, {now.images_per_second:,.0f} images/s"
                bar.update(
                    task,
                    completed=now.epoch,
                    step=now.step,
                    status=f"{status}; {evaluated}" if evaluated else status,
                )
                write(now.step, _logged(event))
        if last is None:
            echo(f"Nothing left to do: {out} has all {count(epochs, 'epoch')}")
        elif last.stopping and last.epoch < epochs:
            echo(f"Stopped at step {last.step} with a checkpoint; add --resume to continue")
        else:
            echo(f"Done. Next: protosphere evaluate {out}, or protosphere measure {out}")


def _print_header(recipe: "Recipe", dataset: "ImageDataset", device: str, out: Path) -> None:
    from protosphere.cli.text import count, echo

    images = count(len(dataset.train), "training image")
    classes = count(dataset.train.num_classes, "class")
    epochs = count(recipe.schedule.epochs, "epoch")
    echo(f"{recipe.name}: {images} of {classes}, {epochs}, on {device}, into {out}")
    batch_size = recipe.training.batch_size
    if batch_size > len(dataset.train):
        echo(f"Each batch holds all training images: training.batch_size is {batch_size:,}")


def _shown(metrics: dict[str, float], split: str) -> list[str]:
    return [
        f"{label.format(split=split)} {100 * metrics[name]:.2f} %"
        if name.endswith("accuracy")
        else f"{label} {metrics[name]:.4g}"
        for name, label in _SHOWN.items()
        if name in metrics
    ]


def _logged(event: "Event") -> dict[str, float]:
    now = event.progress
    running = {
        "loss": now.loss,
        "lr": now.lr,
        "images_per_second": now.images_per_second,
        "epoch": now.epoch,
    }
    return running | (event.metrics or {})
