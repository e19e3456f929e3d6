"""``protosphere compare``: train recipes with several seeds and compare them."""

import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protosphere.cli.options import AsJson, Device, Download, complete_recipe
from protosphere.cli.output_files import Overwrite
from protosphere.cli.plot_files import check_plot, plot_option, save_plot
from protosphere.cli.program import program_name
from protosphere.cli.text import echo
from protosphere.cli.unused_options import refuse_unused

if TYPE_CHECKING:
    from protosphere.recipes.schema import Recipe
    from protosphere.studies.compare import Trainer
    from protosphere.studies.compare_plan import ComparisonPlan

_MAX_SEEDS = 1000


def compare(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE|RUN...",
            help="Recipes (names or YAML files) to train, or run folders (or folders of run "
            "folders) that are there.",
            autocompletion=complete_recipe,
        ),
    ],
    seeds: Annotated[
        int | None,
        typer.Option(
            metavar="<n>",
            help="Number of seeds: 42, 43 and so on. By default 5 for recipes; run folders are "
            "compared as they are, and with this option the seeds that they lack are trained.",
        ),
    ] = None,
    seed_list: Annotated[
        str | None,
        typer.Option(metavar="<n,n,...>", help="Seeds, instead of --seeds: for example 1,2,3."),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="<recipe>",
            help="Recipe that the others are compared with; by default the first one.",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<metric>",
            help="Metric, or group of metrics such as nc2, that the tables show; may be repeated. "
            "The JSON file has all of them.",
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Confidence of the intervals, between 0 and 1.")
    ] = 0.95,
    out: Annotated[
        Path,
        typer.Option(
            metavar="<folder>",
            help="Folder for comparison.json, and for the runs of recipes: OUT/RECIPE/seed-N.",
        ),
    ] = Path("runs/comparison"),
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="<key=value>",
            help="Override a key of all recipes, for example schedule.epochs=20; may be repeated.",
        ),
    ] = None,
    device: Device = "auto",
    download: Download = False,
    plot: Annotated[
        Path | None, plot_option("the differences with their confidence intervals")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Compare recipes over several seeds.

    Trains the runs that are not there yet, one at a time; runs that were
    interrupted are resumed. Prints mean and standard deviation of each metric,
    paired differences to the baseline with confidence intervals, and which
    differences are statistically clear, and writes all of it to
    OUT/comparison.json. A run that fails is recorded, and the others are trained.
    A run that another process trains is left to it.
    """
    from protosphere.cli.errors import report_errors
    from protosphere.cli.text import to_json

    with report_errors():
        from protosphere.cli.compare_text import print_comparison
        from protosphere.recipes.devices import resolve_device
        from protosphere.runs.comparison import COMPARISON_FILE
        from protosphere.studies.compare import run_comparison
        from protosphere.studies.compare_metrics import select_metrics
        from protosphere.studies.compare_plan import plan_comparison

        check_plot(plot, overwrite=overwrite)
        if as_json and plot is None:
            refuse_unused({"--metric": metric}, "with --json, which has all metrics")
        shown = select_metrics(metric or [])
        chosen_seeds, overrides = _read_seeds(seeds, seed_list), overrides or []
        if plot is not None:
            _check_difference(
                plan_comparison(
                    targets, out=out, seeds=chosen_seeds, overrides=overrides, baseline=baseline
                )
            )
        comparison = run_comparison(
            targets,
            out=out,
            seeds=chosen_seeds,
            overrides=overrides,
            baseline=baseline,
            confidence=confidence,
            download=download,
            train=create_trainer(resolve_device(device), download=download),
            report=lambda line: echo(line, err=True),
        )
        if as_json:
            typer.echo(to_json(comparison.to_json(), indent=2))
        else:
            print_comparison(comparison, shown)
            echo(f"Written to {out / COMPARISON_FILE}")
            if not comparison.pending:
                folder = shlex.quote(str(out))
                echo(f"Next: {program_name()} report {folder} for a page with figures")
        if plot is not None and (comparison.pending or comparison.failures):
            # The same command continues, and would refuse a picture that exists.
            message = "the differences are drawn when all runs are complete"
            echo(f"Not drawn to {plot}: {message}", err=True)
        elif plot is not None:
            from protosphere.studies.plots.comparison import plot_comparison

            save_plot(plot, plot_comparison(comparison, shown), "the differences")
    if comparison.pending:
        left, planned = len(comparison.pending), len(comparison.runs) + len(comparison.failures)
        are_missing = f"{left} of {left + planned} runs {'is' if left == 1 else 'are'} missing"
        echo(f"Not complete: {are_missing}; the same command continues", err=True)
    if comparison.pending or comparison.failures:
        raise typer.Exit(1)


def _read_seeds(number: int | None, listed: str | None) -> list[int] | None:
    """Return the seeds that the options stand for; None if there are none."""
    from protosphere.studies.compare_plan import FIRST_SEED

    if number is not None and listed is not None:
        raise ValueError("--seeds and --seed-list must not be given together")
    if number is not None:
        if not 1 <= number <= _MAX_SEEDS:
            raise ValueError(f"--seeds must be from 1 to {_MAX_SEEDS}, got {number}")
        return list(range(FIRST_SEED, FIRST_SEED + number))
    if listed is None:
        return None
    try:
        return [int(seed) for seed in listed.split(",")]
    except ValueError:
        raise ValueError(
            f"--seed-list must be whole numbers separated by commas, got {listed!r}"
        ) from None


def _check_difference(plan: "ComparisonPlan") -> None:
    """Check before training that there will be a difference to draw."""
    if not plan.is_paired:
        raise ValueError(
            f"--plot needs another method with a seed in common with {plan.baseline}; there is none"
        )


def create_trainer(device: str, *, download: bool) -> "Trainer":
    """Return a function that trains with progress; standard output is for the result.

    Args:
        device: Where to train.
        download: Whether a missing dataset is downloaded.
    """
    from protosphere.cli.train import train_run

    def train(recipe: "Recipe", folder: Path) -> bool:
        try:
            with redirect_stdout(sys.stderr):
                return train_run(recipe, folder, resume=True, device=device, download=download)
        except KeyboardInterrupt:
            return False

    return train
