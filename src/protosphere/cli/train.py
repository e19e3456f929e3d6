"""``protosphere train``: run a recipe, see how it goes, stop and resume at will."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from protosphere.recipes.schema import Recipe

_SHOWN = ("test_accuracy", "nearest_mean_accuracy", "nc1_ratio", "inter_effective_rank", "weight_class_alignment")


def train(
    name: Annotated[str, typer.Argument(help="A recipe by name (see `protosphere recipes`), or a YAML file.")],
    out: Annotated[Path, typer.Option(help="The run folder.")],
    resume: Annotated[bool, typer.Option(help="Go on where an earlier run in the folder stopped.")] = False,
    settings: Annotated[list[str] | None, typer.Option("--set", help="dotted.path=value; may be repeated.")] = None,
    device: Annotated[str, typer.Option(help="Where to compute: 'auto', 'cpu', 'cuda'.")] = "auto",
    download: Annotated[bool, typer.Option(help="Fetch the data set if it is not there.")] = False,
) -> None:
    """Train a classifier as a recipe says, into a run folder."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from protosphere.cli.errors import told

    console = Console(highlight=False, soft_wrap=True)
    with told():
        import torch

        from protosphere.recipes import build
        from protosphere.recipes.execute import execute
        from protosphere.runs import RunFolder

        recipe = _recipe(name, settings or [])
        source = build.build_source(recipe, download=download)
        chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        total = recipe.optimisation.epochs
        console.print(
            f"{recipe.name}: {len(source.train):,} images, {total} epochs, on {chosen}, into {out}", markup=False
        )
        bar = Progress(
            TextColumn("epoch {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]:,.0f} images/s"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not Console(stderr=True).is_terminal,
        )
        start: Literal["fresh", "resume"] = "resume" if resume else "fresh"
        with bar:
            task = bar.add_task("train", total=total, loss=float("nan"), speed=0.0)
            for event in execute(recipe, RunFolder(out), source, device=chosen, start=start, report_every=50):
                now = event.progress
                bar.update(task, completed=now.epoch, loss=now.loss, speed=now.images_per_second)
                if event.numbers is not None:
                    shown = ", ".join(f"{key} {event.numbers[key]:.4g}" for key in _SHOWN if key in event.numbers)
                    console.print(f"epoch {now.epoch:.0f}: loss {now.loss:.4f}, {shown}")


def _recipe(name: str, settings: list[str]) -> "Recipe":
    from protosphere.recipes import catalog
    from protosphere.recipes.schema import RecipeError, from_yaml, with_settings

    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        return with_settings(catalog.recipe(name), settings)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise RecipeError(f"{path} must be a YAML file that can be read; it cannot") from None
    return with_settings(from_yaml(text), settings)
