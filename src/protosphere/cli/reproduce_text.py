"""What ``protosphere reproduce`` prints: the list of targets, plans, tables and the checklist."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from protosphere.cli.benchmark_table import difference, number, print_note, print_table
from protosphere.cli.text import count, echo, to_json

if TYPE_CHECKING:
    from protosphere.studies.behaviors import Checklist
    from protosphere.studies.reproduce import Number, Reproduction, TargetPlan

_ESTIMATE = (
    "Hours are those of training on one H200, estimated from measured images per second "
    "(ResNet-18 at 32 pixels in batches of 128 and 512, and ResNet-50 at 224; deeper networks by "
    "their multiplications), without evaluations, probes and reading of files."
)


def print_list(*, as_json: bool) -> None:
    """Print all tables and figures with what they need.

    Args:
        as_json: Whether to print JSON.
    """
    from protosphere.studies.reproduce import plan_target
    from protosphere.studies.reproduce_targets import TARGETS

    rows: list[dict[str, Any]] = []
    for name, target in TARGETS.items():
        # In a folder of no runs, so that the whole cost is shown.
        plan = plan_target(name, out="/nonexistent")
        rows.append(
            {
                "name": name,
                "title": target.title,
                "data": [*plan.data, *plan.transfer_sets],
                "runs": len(plan.runs),
                "gpu_hours": plan.hours_left,
                "rows": list(target.rows),
                "columns": list(target.columns),
            }
        )
    if as_json:
        typer.echo(to_json({"targets": rows}, indent=2))
        return
    print_table(
        "Tables and figures of the paper",
        ["name", "what", "data", "runs", "H200 hours"],
        [
            [
                row["name"],
                row["title"],
                ", ".join(row["data"]),
                row["runs"],
                _hours(row["gpu_hours"]),
            ]
            for row in rows
        ],
        note=_ESTIMATE,
    )


def print_plan(plan: "TargetPlan", *, download: bool, as_json: bool) -> None:
    """Print the runs of a table, their cost, and the commands that train them.

    Args:
        plan: What the table needs.
        download: Whether the commands download missing data.
        as_json: Whether to print JSON.
    """
    option = " --download" if download else ""
    commands = {run.folder.name: f"{run.command}{option}" for run in plan.runs.values()}
    runs: list[dict[str, Any]] = [
        {
            "run": run.folder.name,
            "folder": str(run.folder),
            "epochs": run.recipe.schedule.epochs,
            "epochs_done": run.epochs_done,
            "is_complete": run.is_complete,
            "gpu_hours": run.gpu_hours,
            "command": f"protosphere {commands[run.folder.name]}",
        }
        for run in plan.runs.values()
    ]
    if as_json:
        content = {"target": plan.target.name, "scale": plan.scale, "data": plan.data}
        content |= {"transfer_sets": plan.transfer_sets, "hours_left": plan.hours_left}
        typer.echo(to_json(content | {"runs": runs}, indent=2))
        return
    needs = ", ".join([*plan.data, *plan.transfer_sets])
    lines = [
        [
            run["run"],
            run["epochs"],
            _describe_state(run),
            _hours(run["gpu_hours"], digits=2),
        ]
        for run in runs
    ]
    print_table(
        f"{plan.target.name}: {plan.target.title}; data: {needs}",
        ["run", "epochs", "state", "H200 hours"],
        lines,
    )
    cost = f", {describe_hours(plan.hours_left)}" if plan.missing else ""
    print_note(f"{count(len(plan.missing), 'run')} to train{cost}. {_ESTIMATE}")
    if plan.missing:
        _print_commands(plan, [commands[run.folder.name] for run in plan.missing])


def describe_hours(hours: float | None) -> str:
    """Return how long training takes, in minutes below a tenth of an hour.

    Args:
        hours: The hours; None if they are not known.

    >>> describe_hours(113.63), describe_hours(0.05), describe_hours(0.002)
    ('about 113.6 hours', 'about 3 minutes', 'less than a minute')
    """
    if hours is None:
        return "hours not known"
    if hours >= 0.1:
        return f"about {hours:,.1f} hours"
    minutes = round(60 * hours)
    return f"about {count(minutes, 'minute')}" if minutes else "less than a minute"


def _hours(hours: float | None, *, digits: int = 1) -> str:
    """Return the hours of a table; few of them are not 0."""
    least = 10**-digits
    is_few = hours is not None and 0 < hours < least
    return f"<{least:g}" if is_few else number(hours, digits=digits)


def _describe_state(run: dict[str, Any]) -> str:
    if run["is_complete"]:
        return "complete"
    return f"has {count(run['epochs_done'], 'epoch')}" if run["epochs_done"] else "missing"


def _print_commands(plan: "TargetPlan", commands: list[str]) -> None:
    """Print how each run is trained elsewhere; afterwards the same command reads them all."""
    echo("")
    print_note("On one GPU, one command for each run:")
    for command in commands:
        echo(f"protosphere {command}")
    print_note("On the 8 GPUs of one machine, for example:")
    echo(f"torchrun --nproc-per-node 8 -m protosphere {commands[0]}")
    print_note("With Slurm, within a job of one task per machine (docs/many-gpus.md):")
    echo(
        'srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 8 --rdzv-backend c10d '
        '--rdzv-endpoint "$head:29500" --rdzv-id "$SLURM_JOB_ID" -m protosphere '
        f"{commands[0]}"
    )
    print_note(
        f"Runs that are complete in {plan.out} are read by `protosphere reproduce "
        f"{plan.target.name}` with the same options."
    )


def print_reproduction(result: "Reproduction", *, digits: int) -> None:
    """Print a table, ours beside the paper's.

    Args:
        result: The numbers.
        digits: Number of decimals.
    """
    first = result.numbers[0]
    lengths = sorted({f"{one.epochs} of {one.paper_epochs}" for one in result.numbers})
    print_table(
        f"{result.target}: {result.title} ({', '.join(lengths)} epochs)",
        ["row", "column", "epochs", "ours", "paper", "difference"],
        [_line(one, digits) for one in result.numbers],
        note=result.note or None,
    )
    if changes := ", ".join(result.overrides):
        print_note(f"Not the paper's settings, where these change them: {changes}")
    if first.epochs < first.paper_epochs:
        print_note("Shorter runs than the paper's: a difference is not evidence against its number")
    for folder, error in result.failures.items():
        print_note(f"Failed: {folder}: {error}")


def _line(one: "Number", digits: int) -> list[str]:
    value = one.value if isinstance(one.value, str) else number(one.value, digits=digits)
    return [
        one.row,
        one.column,
        str(one.epochs),
        value,
        number(one.paper, digits=digits),
        difference(one.difference, digits=digits),
    ]


def print_behaviors(checklist: "Checklist", *, as_json: bool) -> None:
    """Print the expected behaviors with their verdicts.

    Args:
        checklist: The verdicts.
        as_json: Whether to print JSON.
    """
    if as_json:
        typer.echo(to_json(asdict(checklist), indent=2))
        return
    print_table(
        f"The paper's expected behaviors in {count(checklist.num_runs, 'run')}",
        ["behavior", "what", "runs", "verdict", "evidence"],
        [
            [check.behavior, check.statement, check.setting, check.verdict, check.evidence]
            for check in checklist.checks
        ],
    )
    for path, why in checklist.skipped.items():
        print_note(f"Not read: {path}: {why}")
