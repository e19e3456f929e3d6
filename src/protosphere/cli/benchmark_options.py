"""Arguments that the benchmarks share, and the runs that they are given."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from protosphere.cli.options import complete_recipe
from protosphere.cli.text import count, echo
from protosphere.cli.unused_options import check_data_overrides, refuse_unused

if TYPE_CHECKING:
    from protosphere.recipes.loading import Run
    from protosphere.recipes.schema import Recipe
    from protosphere.runs import RunFolder

Targets = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|RECIPE...",
        help="Run folders written by `train`, or recipes (names or YAML files) to train first.",
        autocompletion=complete_recipe,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="<folder>",
        help="Folder for the runs of recipes, each under its name.",
        show_default="runs",
    ),
]
BenchmarkOverrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="<key=value>",
        help="Override a key of a recipe that is trained, for example seed=1, or where the data "
        "of a run are, for example data.root=PATH; may be repeated.",
    ),
]
Recompute = Annotated[
    bool,
    typer.Option(
        "--recompute", help="Compute everything again, also what the run folder holds already."
    ),
]


@dataclass(frozen=True)
class RunInfo:
    """What a result says of its run, without the model and the data that a run holds.

    Attributes:
        run: The run folder.
        recipe: Name of the recipe.
        method: The loss, as the paper's tables name it.
        split: Images that the numbers are of, test or validation.
    """

    run: str
    recipe: str
    method: str
    split: str


def describe_run(run: "Run", split: str | None = None) -> RunInfo:
    """Return what a result says of a run.

    Args:
        run: The run.
        split: Images that it was measured on; None for those that benchmarks choose.
    """
    from protosphere.studies.common import method_of, reported_split

    split = reported_split(run.recipe) if split is None else split
    return RunInfo(str(run.path), run.recipe.name, method_of(run), split)


def open_runs(
    targets: Sequence[str],
    *,
    out: Path | None,
    device: str,
    overrides: Sequence[str] = (),
    checkpoint: Literal["best", "last"] | None = None,
    download: bool = False,
    check_recipe: "Callable[[Recipe], None]" = lambda _: None,
) -> "Iterator[Run]":
    """Load the runs of a benchmark one after the other; recipes are trained first.

    All targets are checked before the first recipe is trained. A recipe is trained into the folder
    of its name; training that was interrupted continues there. What training prints goes to
    standard error: standard output is for the result.

    Args:
        targets: Run folders, names of recipes, or YAML files.
        out: Folder for the runs of recipes; None for ``runs``.
        device: Value of ``--device``.
        overrides: Values of ``--set``: of recipes, or where the data of runs are.
        checkpoint: Which checkpoint is loaded.
        download: Whether missing datasets are downloaded.
        check_recipe: Called with each recipe before the first one is trained, to refuse recipes
            that the benchmark is not for.

    Yields:
        The runs, in the order of the targets.

    Raises:
        RecipeError: A target is neither a run folder nor a recipe.
        RunFolderError: A folder does not exist or is not a run, an override changes what it was
            trained with, or the folder of a recipe holds a run of another one.
        ValueError: Two different recipes have the same name, or ``out`` is given without recipes.
    """
    from protosphere.cli.progress import progress_bar
    from protosphere.cli.train import train_run
    from protosphere.recipes.devices import resolve_device
    from protosphere.recipes.loading import load_run, read_recipe, read_run_recipe
    from protosphere.runs import RunFolder
    from protosphere.studies.common import check_targets_exist, is_run_target

    check_targets_exist(targets)
    recipes = {
        target: read_recipe(target, overrides) for target in targets if not is_run_target(target)
    }
    if not recipes:
        refuse_unused({"--out": out}, "without a recipe: results are kept in the run folders")
        check_data_overrides(overrides)
    out = Path("runs") if out is None else out
    _check_names(recipes)
    _check_folders(out, recipes)
    for recipe in recipes.values():
        check_recipe(recipe)
    for target in targets:
        if target not in recipes:
            read_run_recipe(RunFolder(target), overrides)
    for target in targets:
        folder, own = Path(target), recipes.get(target)
        if own is not None:
            folder = out / own.name
            with redirect_stdout(sys.stderr):
                done = train_run(own, folder, resume=True, device=device, download=download)
            if not done:
                echo("The same command continues training, and then the benchmark", err=True)
                raise typer.Exit(1)
        else:
            _warn_if_unfinished(RunFolder(folder))
        with progress_bar("loading the run") as progress:
            run = load_run(
                folder,
                device=resolve_device(device),
                overrides=overrides if own is None else (),
                checkpoint=checkpoint,
                download=download,
                progress=progress,
            )
        yield run


def _check_names(recipes: "Mapping[str, Recipe]") -> None:
    """Refuse two recipes that would be trained into the same folder."""
    first: dict[str, str] = {}
    for target, recipe in recipes.items():
        other = first.setdefault(recipe.name, target)
        if recipes[other] != recipe:
            raise ValueError(
                f"recipes must have different names, {other} and {target} are both {recipe.name}"
            )


def _check_folders(out: Path, recipes: "Mapping[str, Recipe]") -> None:
    """Refuse recipes whose folder holds a run of another recipe."""
    from protosphere.recipes.loading import read_run_recipe
    from protosphere.recipes.schema import find_difference
    from protosphere.runs import RunFolder, RunFolderError
    from protosphere.runs.checkpoints import has_checkpoint

    for recipe in recipes.values():
        folder = RunFolder(out / recipe.name)
        if not has_checkpoint(folder.checkpoints):
            continue
        if changed := find_difference(read_run_recipe(folder), recipe):
            raise RunFolderError(
                f"{folder.path} holds a run of another recipe: {changed}; another --out trains "
                f"this one, and {folder.path} in place of the recipe measures that run"
            )


def _warn_if_unfinished(folder: "RunFolder") -> None:
    """Say that training has not come to the end, on standard error."""
    from protosphere.recipes.loading import read_run_recipe

    recipe, records = read_run_recipe(folder), folder.records()
    if recipe.checkpoint.patience is not None or not records:  # It may have stopped early.
        return
    done, epochs = records[-1]["epoch"], recipe.schedule.epochs
    if done < epochs:
        echo(
            f"Warning: {folder.path} is not finished: it has {done} of {count(epochs, 'epoch')}",
            err=True,
        )
