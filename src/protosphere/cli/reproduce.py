"""``protosphere reproduce``: the tables and figures of the paper, and its expected behaviors."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protosphere.cli.options import AsJson, Device, Download
from protosphere.cli.output_files import Overwrite
from protosphere.cli.plot_files import check_plot, plot_option, save_plot
from protosphere.cli.text import echo, to_json
from protosphere.cli.unused_options import refuse_unused

if TYPE_CHECKING:
    from protosphere.studies.reproduce import TargetPlan
    from protosphere.studies.reproduce_readings import RunReader

_LIST, _BEHAVIORS = "list", "behaviors"
# The table of corrupted images.
_CORRUPTIONS = "table5"
# More than this many hours of training on one H200 need --yes.
_MANY_HOURS = 24.0


def _complete_target() -> list[str]:
    from protosphere.studies.reproduce_targets import TARGETS

    return [_LIST, _BEHAVIORS, *TARGETS]


def reproduce(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Table or figure of the paper, such as table1 or figure2; `list` for all of "
            "them; `behaviors` checks the paper's expected behaviors on runs.",
            autocompletion=_complete_target,
        ),
    ],
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN",
            help="Only for `behaviors`: run folders, or folders of run folders; records without "
            "weights are enough.",
        ),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            metavar="<fraction>", help="Fraction of the paper's epochs.", show_default="1.0"
        ),
    ] = None,
    row: Annotated[
        list[str] | None,
        typer.Option(metavar="<name>", help="Row of the table; may be repeated. By default all."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<name>", help="Column of the table; may be repeated. By default all."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="<folder>",
            help="Folder for TARGET.json and the runs, which tables share: OUT/RUN-N-epochs.",
            show_default="runs/reproduce",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="<key=value>",
            help="Override a key of all recipes, for example data.root=PATH; may be repeated.",
        ),
    ] = None,
    transfer_set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<name=path>",
            help="Where a set of table4 is, if not among the downloaded ones; may be repeated.",
        ),
    ] = None,
    imagenet_c: Annotated[
        Path | None,
        typer.Option(
            metavar="<folder>", help="ImageNet-C for table5; by default corruptions are computed."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print runs, cost and commands, and train nothing."),
    ] = False,
    plot: Annotated[
        Path | None, plot_option("the figure, or the numbers of the table beside the paper's,")
    ] = None,
    overwrite: Overwrite = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Start even if training takes more than a day of an H200."),
    ] = False,
    device: Device = "auto",
    download: Download = False,
    as_json: AsJson = False,
) -> None:
    """Reproduce a table or figure of the paper, ours beside the paper's numbers.

    Trains the runs that are not there yet, one at a time; runs that were
    interrupted are resumed, and runs that several tables need are trained once.
    --scale shortens all of them; the table says how many epochs they have.
    """
    from protosphere.cli.errors import report_errors

    with report_errors():
        if target != _BEHAVIORS and runs:
            raise ValueError(f"run folders are only for `{_BEHAVIORS}`, got {runs[0]}")
        if target in (_LIST, _BEHAVIORS):
            options = {
                "--plot": plot,
                "--scale": scale,
                "--row": row,
                "--column": column,
                "--out": out,
                "--set": overrides,
                "--transfer-set": transfer_set,
                "--imagenet-c": imagenet_c,
                "--dry-run": dry_run,
            }
            refuse_unused(options, f"on `{target}`: it is for a table or a figure")
            if target == _LIST:
                _print_list(as_json=as_json)
            else:
                _check_behaviors(runs or [], as_json=as_json)
            return
        check_plot(plot, overwrite=overwrite)
        refuse_unused({"--plot": plot if dry_run else None}, "with --dry-run: nothing is computed")
        from protosphere.cli.compare import create_trainer
        from protosphere.cli.reproduce_text import print_plan, print_reproduction
        from protosphere.recipes.devices import resolve_device
        from protosphere.studies.reproduce import plan_target, run_target
        from protosphere.studies.reproduce_data import check_data

        out = Path("runs/reproduce") if out is None else out
        make_plan = partial(
            plan_target,
            target,
            out=out,
            scale=1.0 if scale is None else scale,
            overrides=overrides or [],
            rows=row or [],
            columns=column or [],
        )
        plan = make_plan()
        sets = _read_sets(plan, transfer_set or [])
        unused = None if target == _CORRUPTIONS else imagenet_c
        refuse_unused({"--imagenet-c": unused}, f"on {target}: it is for {_CORRUPTIONS}")
        if dry_run:
            print_plan(plan, download=download, as_json=as_json)
            return
        used = resolve_device(device)
        reader = _create_reader(plan, used, overrides or [], sets, imagenet_c, download=download)
        warnings = check_data(plan, reader, download=download)
        _announce_cost(plan, used, is_confirmed=yes)
        for warning in warnings:
            echo(f"Warning: {warning}", err=True)
        result = run_target(
            plan,
            train=create_trainer(used, download=download),
            reader=reader,
            device=used,
            warnings=warnings,
            report=lambda line: echo(line, err=True),
        )
        if as_json:
            typer.echo(to_json(result.to_json(), indent=2))
        else:
            print_reproduction(result, digits=plan.target.digits)
            echo(f"Written to {out / f'{target}.json'}")
        if plot is not None:
            from protosphere.studies.plots.reproduce import plot_reproduction

            finished = replace(reader, runs=make_plan().runs)
            save_plot(plot, plot_reproduction(result, finished), target)
    if result.pending and not result.failures:
        echo(
            f"Interrupted: {len(result.pending)} of {len(plan.runs)} runs are missing; the same "
            "command continues",
            err=True,
        )
    if result.pending or result.failures:
        raise typer.Exit(1)


def _read_sets(plan: "TargetPlan", transfer_sets: list[str]) -> dict[str, str]:
    """Return the values of ``--transfer-set`` by the name of the set."""
    sets = {}
    for text in transfer_sets:
        name, _, path = text.partition("=")
        if name not in plan.transfer_sets or not path:
            known = ", ".join(plan.transfer_sets) or "none"
            raise ValueError(
                f"--transfer-set must be NAME=PATH with a set of {plan.target.name} ({known}), "
                f"got {text!r}"
            )
        sets[name] = text
    return sets


def _create_reader(
    plan: "TargetPlan",
    device: str,
    overrides: list[str],
    sets: dict[str, str],
    imagenet_c: Path | None,
    *,
    download: bool,
) -> "RunReader":
    from protosphere.cli.progress import progress_bar
    from protosphere.studies.reproduce_readings import RunReader

    roots = [text.partition("=")[2] for text in overrides if text.startswith("data.root=")]
    return RunReader(
        plan.runs,
        device,
        download,
        root=roots[-1] if roots else "data",
        sets=sets,
        corruption_folder=imagenet_c,
        show_progress=progress_bar,
    )


def _announce_cost(plan: "TargetPlan", device: str, *, is_confirmed: bool) -> None:
    """Say what training costs before it starts; days of it must be confirmed."""
    from protosphere.cli.reproduce_text import describe_hours
    from protosphere.cli.text import count

    hours = plan.hours_left
    if not plan.missing:
        return
    if hours is None:
        echo(
            f"{count(len(plan.missing), 'run')} to train; what this takes is not known, since no "
            "speed was measured for this backbone and image size",
            err=True,
        )
        return
    if hours > _MANY_HOURS and not is_confirmed:
        raise ValueError(
            f"{plan.target.name} takes about {hours:,.0f} hours of training on one H200; --yes "
            "starts it here, --scale, --row and --column make it shorter, and --dry-run prints "
            "the commands that run it elsewhere"
        )
    longer = "" if device.startswith("cuda") else f"; {device} is far slower"
    echo(
        f"{count(len(plan.missing), 'run')} to train, {describe_hours(hours)} on one H200 by "
        f"measured speeds{longer}",
        err=True,
    )


def _print_list(*, as_json: bool) -> None:
    from protosphere.cli.reproduce_text import print_list

    print_list(as_json=as_json)


def _check_behaviors(folders: list[Path], *, as_json: bool) -> None:
    from protosphere.cli.reproduce_text import print_behaviors
    from protosphere.studies.behaviors import check_behaviors

    print_behaviors(check_behaviors(folders), as_json=as_json)
