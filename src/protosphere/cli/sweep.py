"""``protosphere sweep``: train a recipe with many settings and choose on validation images."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from protosphere.cli.options import (
    MAX_INTEGER,
    AsJson,
    Device,
    Download,
    Overrides,
    complete_recipe,
)
from protosphere.cli.output_files import Overwrite
from protosphere.cli.plot_files import check_plot, plot_option, save_plot
from protosphere.cli.program import program_name

if TYPE_CHECKING:
    from protosphere.runs.sweeps import SweepRecord

Metric = Literal["accuracy", "balanced_accuracy", "nearest_mean_accuracy", "loss", "ece"]
Sampler = Literal["grid", "tpe", "random"]


def sweep(
    recipe_name: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="Name of a recipe (see `protosphere recipes`), or a YAML file.",
            autocompletion=complete_recipe,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the sweep.")],
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUES", help="More keys to vary, as --over."),
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<key=values>",
            help="Key of the recipe to vary: loss.temperature=0.05,0.1,0.2 for these values, "
            "optimizer.momentum=0.8..0.95 for a range, optimizer.lr=log:0.05..0.5 for a range on "
            "a logarithmic scale; may be repeated.",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            help="Number of trials, those of earlier calls included; not needed if all keys have "
            "values, whose combinations are then run.",
            min=1,
        ),
    ] = None,
    sampler: Annotated[
        Sampler | None,
        typer.Option(
            help="How settings are chosen: all combinations, a tree-structured Parzen estimator, "
            "or at random. By default grid if all keys have values and --trials is not given, "
            "otherwise tpe.",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the samplers tpe and random; training has the seed of the recipe.",
            min=0,
            max=MAX_INTEGER,
        ),
    ] = 0,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune/--no-prune",
            help="End a trial early whose evaluations are worse than the median of the others. It "
            "saves time, but with a cosine schedule it often ends the best trials.",
        ),
    ] = False,
    metric: Annotated[
        Metric | None,
        typer.Option(
            help="Metric of the validation images to choose by. By default the one that the recipe "
            "monitors, or accuracy.",
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="<url>",
            help="Database of Optuna for several machines, such as postgresql://HOST/NAME, or "
            "journal:PATH for a file on a network file system. By default sweep.db in the folder.",
        ),
    ] = None,
    study: Annotated[str, typer.Option(help="Name of the study in the storage.")] = "sweep",
    overrides: Overrides = None,
    device: Device = "auto",
    download: Download = False,
    plot: Annotated[Path | None, plot_option("the phase diagram")] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Train a recipe with many settings, and choose the best on validation images.

    Test images are not used. The same command continues a sweep that was
    interrupted; several processes with the same command share its trials.
    """
    from protosphere.cli.errors import report_errors

    with report_errors():
        _check_packages()
        _check_processes()
        from protosphere.cli.signals import STOPPING, catch_signals
        from protosphere.cli.sweep_text import SweepDisplay
        from protosphere.recipes.devices import resolve_device
        from protosphere.recipes.loading import read_recipe
        from protosphere.report.sweep_page import write_sweep_page
        from protosphere.studies.sweep import run_sweep

        check_plot(plot, overwrite=overwrite)
        varied = [*(over or []), *(more or [])]
        recipe = read_recipe(recipe_name, overrides or [])
        _check_overrides(overrides or [], varied)
        with catch_signals(notice=STOPPING) as stop_requested, SweepDisplay() as display:
            record = run_sweep(
                recipe,
                varied,
                out,
                trials=trials,
                sampler=sampler,
                seed=seed,
                prune=prune,
                metric=metric,
                storage=storage,
                study=study,
                device=resolve_device(device),
                download=download,
                should_stop=stop_requested,
                report=display,
            )
        has_page = write_sweep_page(out / "sweep.html", record)
        if plot is not None:
            _draw(record, plot)
        _print_result(record, out, has_page=has_page, as_json=as_json)


def _check_packages() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise ImportError('sweeps need Optuna: pip install "protosphere[sweep]"') from error


def _check_processes() -> None:
    from protosphere.parallel.launch import launched_by_torchrun

    if launched_by_torchrun() and os.environ["WORLD_SIZE"] != "1":
        raise ValueError(
            "a trial of a sweep trains on one device: start one process per GPU with the same "
            "--out, without torchrun"
        )


def _check_overrides(overrides: list[str], varied: list[str]) -> None:
    """Refuse a value that is both set and varied; the one that is set would have no effect."""
    from protosphere.recipes.schema.text import parse_value
    from protosphere.runs.recipe_keys import flatten

    keys = [_key(text) for text in varied]
    for override in overrides:
        name, value = _key(override), parse_value(override.partition("=")[2])
        for one in (name, *flatten({name: value})):  # A section that is set may hold a varied key.
            if one in keys:
                raise ValueError(f"{one} must be given to --set or to --over, not to both")
            for key in keys:
                if one.startswith(f"{key}."):
                    raise ValueError(
                        f"{one} is part of {key}, which is varied: it must not be given to --set"
                    )


def _key(text: str) -> str:
    return ".".join(part.strip() for part in text.partition("=")[0].split("."))


def _count_left(record: "SweepRecord") -> int:
    running = sum(trial.state == "running" for trial in record.trials)
    return max(0, record.num_trials - len(record.trials)) + running


def _draw(record: "SweepRecord", plot: Path) -> None:
    """Draw the phase diagram of a sweep that has come to its end, and has a complete trial."""
    from protosphere.cli.text import echo
    from protosphere.studies.plots.sweep import plot_sweep

    if _count_left(record):  # The same command, which continues, must find no file.
        echo(
            f"Did not draw the phase diagram to {plot}: it is drawn once no trial is left", err=True
        )
    elif record.best is not None:
        save_plot(plot, plot_sweep(record), "the phase diagram")


def _print_result(record: "SweepRecord", out: Path, *, has_page: bool, as_json: bool) -> None:
    from protosphere.cli.sweep_text import print_trials
    from protosphere.cli.text import count, echo, to_json
    from protosphere.runs.sweeps import sweep_to_json

    if as_json:
        typer.echo(to_json(sweep_to_json(record), indent=2))
    else:
        print_trials(record)
    num_left = _count_left(record)
    if num_left == 0 and record.best is None:
        raise ValueError(f"no trial of {out} is complete; {out / 'sweep.json'} has their errors")
    if record.best is not None and not as_json:
        _print_best(record, out, has_page=has_page)
    if num_left > 0:
        trials = f"{num_left} of {count(record.num_trials, 'trial')}"
        verb = "is" if num_left == 1 else "are"
        echo(f"Not complete: {trials} {verb} left; {_describe_rest(record, num_left)}", err=True)
        raise typer.Exit(1)


def _describe_rest(record: "SweepRecord", num_left: int) -> str:
    """Return which command runs the trials that are left."""
    from protosphere.cli.text import count

    elsewhere = sum(trial.state == "running" and not trial.run for trial in record.trials)
    if elsewhere < num_left:
        rest = "the same command continues"
        return f"{rest} all but {count(elsewhere, 'trial')} of other folders" if elsewhere else rest
    if elsewhere == 1:
        return "another folder has it, and only the command with that --out continues it"
    return "other folders have them, and only the commands with their --out continue them"


def _print_best(record: "SweepRecord", out: Path, *, has_page: bool) -> None:
    from protosphere.cli.benchmark_table import print_note
    from protosphere.report.phase_diagram import describe_region

    print_note(describe_region(record))
    if has_page:
        print_note(f"Phase diagram: {out / 'sweep.html'}")
    best, program = shlex.quote(str(out / "best.yaml")), program_name()
    next_step = f"Next: {program} train {best} --out RUN, on all training images"
    if any(trial.run and (out / trial.run).is_dir() for trial in record.trials):
        trials = shlex.quote(str(out / "trials"))
        next_step += f", or {program} report {trials} for the curves of all trials"
    print_note(next_step)
