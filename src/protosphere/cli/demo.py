"""``protosphere demo``: six losses on handwritten digits, compared by accuracy and geometry."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protosphere.cli.program import program_name
from protosphere.cli.text import count, echo

if TYPE_CHECKING:
    from rich.console import Console

_TITLES = {
    "ce": "cross-entropy",
    "normface": "NormFace",
    "ntce": "NTCE",
    "nonl": "NONL",
    "etf-dr": "ETF + DR",
    "scl": "SCL + means",
}
# A metric, its heading, and whether a lower or a higher value is closer to collapse.
_COLUMNS = (
    ("nc1_ratio", "NC1\nvar.", "lower"),
    ("inter_effective_rank", "NC2\nrank", "higher"),
    ("nc2_angles", "NC2\nangles", "lower"),
    ("nc3_cosine", "NC3\ncosine", "lower"),
    ("nc4_agreement", "NC4\nagree", "higher"),
)
_LEGEND = (
    "Var.: within-class over between-class variance. Rank: effective rank of the class means, at "
    "most 9. Angles: deviation of the angles between class means from equal angles. Cosine: "
    "1 − cosine between a prototype and its class mean, both centered. Agree: fraction of the "
    "samples that head and nearest class mean classify alike. All on the training images. SCL uses "
    "two views of each image and a projection; its prototypes are the class means themselves."
)


# Points of the curves in the report; more would take time.
_NUM_EVALUATIONS = 5
# Where the report goes if the runs are not kept.
_REPORT = "protosphere-demo.html"


def demo(
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to keep the six runs in, and their report; by default only the report is "
            f"kept, as {_REPORT}.",
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Number of epochs for each loss.", min=1)] = 25,
) -> None:
    """Train six losses on handwritten digits on the CPU and compare accuracy and geometry.

    The last line is the path of a report with figures.
    """
    from rich.console import Console

    from protosphere.cli.errors import report_errors

    console = Console(highlight=False)
    with report_errors(), TemporaryDirectory() as temporary:
        if out is None and not os.access(Path.cwd(), os.W_OK):
            raise ValueError(
                f"cannot write {_REPORT} to {Path.cwd()}; give another folder with --out"
            )
        folder = out or Path(temporary)
        results = {title: _train(loss, folder / loss, epochs) for loss, title in _TITLES.items()}
        comparison = _compare_probes(folder / "scl")
        path = Path(_REPORT) if out is None else out / "report.html"
        report = _write_report(folder, path, names_folders=out is not None)
    _print_table(console, results)
    console.print(comparison)
    _print_next_commands(out)
    echo(report)


def _write_report(folder: Path, path: Path, *, names_folders: bool = True) -> str:
    """Write the report of the runs, and return where it is or why there is none."""
    from protosphere.cli.report import check_packages
    from protosphere.storage.errors import StorageError

    try:
        check_packages()
        from protosphere.report.create import write_report

        write_report([folder / loss for loss in _TITLES], path, names_folders=names_folders)
    except (ImportError, StorageError) as error:  # The table is still worth the minutes.
        return f"There is no report with figures: {error}"
    return f"Report with figures, for a browser: {path}"


def _print_next_commands(out: Path | None) -> None:
    folder = out or Path("runs")
    runs, nonl, mine = (shlex.quote(str(folder / name)) for name in ("", "nonl", "mine"))
    commands = {
        f"demo --out {runs}": "keep the six runs",
        f"measure {nonl}": "all metrics of one run",
        f"train digits-nonl --set loss.temperature=0.1 --out {mine}": "change a recipe",
        f"report {runs}": "your run beside the six, as one page",
        "train cifar100-nonl --download --out runs/cifar100": "the paper's setting, on a GPU",
        "recipes": "list all recipes",
    }
    echo("What to try next:")
    for command, comment in list(commands.items())[0 if out is None else 1 :]:
        echo(f"  {program_name()} {command}  # {comment}")


def _train(loss: str, path: Path, epochs: int) -> Mapping[str, Any]:
    from rich.console import Console

    from protosphere.cli.progress import progress_bar
    from protosphere.recipes import catalog
    from protosphere.recipes.build import load_dataset
    from protosphere.recipes.runner import run_recipe
    from protosphere.recipes.schema import apply_overrides
    from protosphere.runs import RunFolder

    overrides = [
        f"schedule.epochs={epochs}",
        f"evaluation.every={-(-epochs // _NUM_EVALUATIONS)}",
        f"checkpoint.every={epochs}",
    ]
    recipe = apply_overrides(catalog.get_recipe(f"digits-{loss}"), overrides)
    folder = RunFolder(path)
    with progress_bar(f"{_TITLES[loss]:14}") as progress:
        for event in run_recipe(recipe, folder, load_dataset(recipe), start="resume"):
            progress(event.progress.epoch / epochs)
    results = folder.last_evaluation() or {}
    if not Console(stderr=True).is_terminal:  # There was no bar, and six losses take a while.
        accuracy = f"{100 * results['accuracy']:.1f}%"
        echo(f"{_TITLES[loss]}: {count(epochs, 'epoch')}, test accuracy {accuracy}", err=True)
    return results


def _compare_probes(path: Path) -> str:
    """What class means save: a linear probe on the same features beside them."""
    from protosphere.cli.progress import progress_bar
    from protosphere.recipes.loading import load_run

    with progress_bar("linear probe") as progress:
        run = load_run(path)
        probes = run.probe(("class_means", "linear"), metrics="none", progress=progress)
        results = {(result.name, result.features): result for result in probes}
    means, linear = results["class_means", "output"], results["linear", "backbone"]
    return (
        f"SCL needs no trained classifier: class means took {count(means.num_passes, 'pass')} "
        f"and {means.seconds:.2f} s for {100 * means.accuracy:.1f}%, a linear probe "
        f"{count(linear.num_passes, 'pass')} and {linear.seconds:.1f} s for "
        f"{100 * linear.accuracy:.1f}%."
    )


def _print_table(console: "Console", results: Mapping[str, Mapping[str, Any]]) -> None:
    from rich import box
    from rich.table import Table

    from protosphere.metrics import at_collapse

    title = "Handwritten digits, one small network"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("loss", no_wrap=True)
    for heading in ("test", "nearest\nmean", *(heading for _, heading, _ in _COLUMNS)):
        table.add_column(heading, justify="right")
    best = {
        metric: _best(
            {title: _format(values[metric]) for title, values in results.items()}, direction
        )
        for metric, _, direction in _COLUMNS
    }
    for title, values in results.items():
        accuracies = [
            f"{100 * values[metric]:.1f}%" for metric in ("accuracy", "nearest_mean_accuracy")
        ]
        cells = [
            f"[green]{_format(values[metric])}[/green]"
            if title in best[metric]
            else _format(values[metric])
            for metric, _, _ in _COLUMNS
        ]
        table.add_row(title, *accuracies, *cells)
    table.add_section()
    ideal = [f"{at_collapse(metric, 10):.3g}" for metric, _, _ in _COLUMNS]
    table.add_row("[italic]at collapse[/italic]", "", "", *ideal)
    console.print(table)
    wins = {title: sum(title in leaders for leaders in best.values()) for title in results}
    closest = max(wins, key=lambda title: wins[title])
    columns = f"best in {wins[closest]} of {len(_COLUMNS)} columns (green)"
    console.print(f"Closest to neural collapse: [bold]{closest}[/bold], {columns}.")
    console.print(_LEGEND)


def _format(value: float) -> str:
    return f"{value:.3g}" if value >= 0.01 else f"{value:.0e}" if value else "0"


def _best(shown: Mapping[str, str], direction: str) -> set[str]:
    """The titles that show the best value; values that look the same share the place."""
    values = {title: float(text) for title, text in shown.items()}
    best = max(values.values()) if direction == "higher" else min(values.values())
    return {title for title, value in values.items() if value == best}
