"""``protosphere train``: run a recipe, see how it goes, stop and resume at will."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from protosphere.recipes.runner import Event
    from protosphere.recipes.schema import Recipe

# What is shown of an evaluation, and the names it goes by here.
SHOWN = {
    "test_accuracy": "{part} accuracy",
    "nearest_mean_accuracy": "nearest class mean",
    "nc1_ratio": "nc1_ratio",
    "inter_effective_rank": "inter rank",
    "weight_class_alignment": "weight–class alignment",
}


def train(
    name: Annotated[
        str, typer.Argument(help="A recipe by name (see `protosphere recipes`), or a YAML file.")
    ],
    out: Annotated[Path, typer.Option(help="The run folder.")],
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on where an earlier run in the folder stopped; start if there is none.",
        ),
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="dotted.path=value; may be repeated.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to compute: 'auto', 'cpu', 'cuda'.")] = "auto",
    download: Annotated[
        bool, typer.Option("--download", help="Fetch the data set if it is not there.")
    ] = False,
    log: Annotated[
        str | None, typer.Option(help="Send the numbers to 'tensorboard' or 'wandb' as well.")
    ] = None,
) -> None:
    """Train a classifier as a recipe says, into a run folder."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from protosphere.cli.errors import told
    from protosphere.cli.stopping import stoppable

    console = Console(highlight=False, soft_wrap=True)
    with told(), stoppable() as stop:
        from protosphere.cli.devices import device_named
        from protosphere.cli.logs import logging_to
        from protosphere.recipes import build
        from protosphere.recipes.runner import execute
        from protosphere.runs import RunFolder

        recipe = recipe_named(name, settings or [])
        chosen = device_named(device)
        source = build.build_source(recipe, download=download)
        total = recipe.optimization.epochs
        console.print(
            f"{recipe.name}: {len(source.train):,} images of {source.train.num_classes} classes, {total} epochs, "
            f"on {chosen}, into {out}",
            markup=False,
        )
        if recipe.optimization.batch > len(source.train):
            console.print(
                f"a batch is all of them: optimization.batch is {recipe.optimization.batch:,}"
            )
        errors = Console(stderr=True)
        bar = Progress(
            TextColumn("epoch {task.completed:.1f}/{task.total:.0f}, step {task.fields[step]}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=errors,
            transient=True,
            disable=not errors.is_terminal,
        )
        start: Literal["fresh", "resume"] = "resume" if resume else "fresh"
        events = execute(
            recipe,
            RunFolder(out),
            source,
            device=chosen,
            start=start,
            report_every=_REPORT_EVERY,
            stop=stop,
        )
        last = None
        with bar, logging_to(log, out, recipe.name, recipe.model_dump(mode="json")) as write:
            task = bar.add_task("train", total=total, step=0, numbers="starting …")
            evaluated = ""
            for event in events:
                if last is None and event.resumed_at:
                    console.print(f"went on from step {event.resumed_at}")
                last = now = event.progress
                if event.numbers is not None:
                    shown = _shown(
                        event.numbers, "validation" if recipe.data.validation_share else "test"
                    )
                    evaluated = ", ".join(shown[:3])
                    console.print(f"epoch {now.epoch:.0f}: loss {now.loss:.4f}, {', '.join(shown)}")
                running = f"loss {now.loss:.4f}, {now.images_per_second:,.0f} images/s"
                bar.update(
                    task,
                    completed=now.epoch,
                    step=now.step,
                    numbers=f"{running}; {evaluated}".rstrip("; "),
                )
                write(now.step, _numbers(event))
        if last is not None and last.stopping and last.epoch < total:
            console.print(
                f"stopped at step {last.step}, which is saved; --resume goes on from there"
            )
        elif last is None:
            console.print(f"there is nothing left to do: {out} has all {total} epochs")
        else:
            console.print(
                f"done; next: protosphere evaluate {out}, protosphere measure {out}", markup=False
            )


_REPORT_EVERY = 50


def _shown(numbers: dict[str, float], part: str) -> list[str]:
    return [
        f"{label.format(part=part)} {100 * numbers[key]:.2f} %"
        if key.endswith("accuracy")
        else f"{label} {numbers[key]:.4g}"
        for key, label in SHOWN.items()
        if key in numbers
    ]


def _numbers(event: "Event") -> dict[str, float]:
    now = event.progress
    running = {
        "loss": now.loss,
        "rate": now.rate,
        "images_per_second": now.images_per_second,
        "epoch": now.epoch,
    }
    return running | (event.numbers or {})


def recipe_named(name: str, settings: list[str]) -> "Recipe":
    """A recipe of the catalog or of a file, with settings.

    Raises:
        RecipeError: there is none, or it makes no sense.
    """
    from protosphere.recipes import catalog
    from protosphere.recipes.schema import RecipeError, from_yaml, with_settings

    path = Path(name)
    if name in catalog.names() or (path.suffix not in (".yaml", ".yml") and not path.is_file()):
        return with_settings(catalog.recipe(name), settings)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise RecipeError(f"{path} must be a YAML file that can be read; it cannot") from None
    return with_settings(from_yaml(text), settings)
