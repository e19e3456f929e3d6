"""``protosphere benchmark long-tail``: accuracy on classes with many and with few images."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protosphere.cli.benchmark_options import (
    BenchmarkOverrides,
    Out,
    Recompute,
    RunInfo,
    Targets,
    describe_run,
    open_runs,
)
from protosphere.cli.options import AsJson, CheckpointChoice, Device, Download
from protosphere.cli.output_files import Overwrite
from protosphere.cli.plot_files import check_plot, plot_option, save_plot

if TYPE_CHECKING:
    from protosphere.recipes.schema import Recipe
    from protosphere.studies.long_tail import LongTailRow

_LABELS = {
    "head": "head",
    "logit_adjusted_head": "head, adjusted",
    "class_means": "class means",
    "calibrated_class_means": "class means, calibrated",
    "whitened_class_means": "class means, whitened",
}
_GROUPS = ("all", "many", "medium", "few")


@dataclass(frozen=True)
class _Measured:
    """The rows of one run, and the paper's accuracy of its head in percent."""

    info: RunInfo
    ratio: float | None
    paper: float | None
    rows: tuple["LongTailRow", ...]


def long_tail(
    targets: Targets,
    logit_adjustment: Annotated[
        float,
        typer.Option(
            metavar="<number>",
            help="Factor of the log class frequency that is subtracted from the head's logits; "
            "not for runs that are contrastive or whose training already makes up for it.",
        ),
    ] = 1.0,
    plot: Annotated[Path | None, plot_option("the accuracies")] = None,
    overwrite: Overwrite = False,
    out: Out = None,
    recompute: Recompute = False,
    checkpoint: CheckpointChoice = None,
    overrides: BenchmarkOverrides = None,
    device: Device = "auto",
    download: Download = False,
    as_json: AsJson = False,
) -> None:
    """Measure runs on long-tailed data: many-, medium- and few-shot classes.

    Many-shot classes have more than 100 training images, few-shot ones fewer than
    20. The head is compared with class means on the sphere, which need no
    training, and with its own logits adjusted by the class frequencies. The test
    accuracy of each class is in RUN/benchmarks/long_tail.json.
    """
    from protosphere.cli.errors import report_errors
    from protosphere.cli.progress import progress_bar
    from protosphere.cli.text import to_json

    with report_errors():
        from protosphere.studies.long_tail import check_long_tail, paper_accuracy, run_long_tail

        check_plot(plot, overwrite=overwrite)

        def check(recipe: "Recipe") -> None:
            check_long_tail(recipe, download=download)

        results: list[_Measured] = []
        for run in open_runs(
            targets,
            out=out,
            device=device,
            overrides=overrides or [],
            checkpoint=checkpoint,
            download=download,
            check_recipe=check,
        ):
            with progress_bar(f"long tail, {run.path.name}") as progress:
                rows = run_long_tail(
                    run,
                    logit_adjustment=logit_adjustment,
                    recompute=recompute,
                    progress=progress,
                )
            results.append(
                _Measured(describe_run(run), run.recipe.data.long_tail, paper_accuracy(run), rows)
            )
        if plot is not None:
            _plot(plot, results)
    if as_json:
        records = [asdict(result) for result in results]
        runs = [record.pop("info") | record for record in records]
        typer.echo(to_json({"runs": runs}, indent=2))
    else:
        _print_results(results)


def _plot(path: Path, results: Sequence[_Measured]) -> None:
    from protosphere.cli.benchmark_table import run_labels
    from protosphere.cli.text import count
    from protosphere.studies.plots.long_tail import plot_long_tail

    labels = run_labels(result.info.run for result in results)
    rows = {labels[result.info.run]: result.rows for result in results}
    paper = {
        labels[result.info.run]: result.paper for result in results if result.paper is not None
    }
    save_plot(path, plot_long_tail(rows, paper=paper), f"accuracies of {count(len(rows), 'run')}")


def _print_results(results: Sequence[_Measured]) -> None:
    """Print one line for each run and classifier."""
    from protosphere.cli.benchmark_table import (
        MISSING,
        number,
        percent,
        print_splits,
        print_table,
        run_labels,
    )

    labels = run_labels(result.info.run for result in results)
    lines: list[list[str]] = []
    for result in results:
        rows = {(row.classifier, row.group): row for row in result.rows if row.class_name is None}
        for name in dict.fromkeys(row.classifier for row in result.rows):
            overall = rows[name, "all"]
            cells = [rows.get((name, group)) for group in _GROUPS]
            lines.append(
                [
                    labels[result.info.run],
                    result.info.method,
                    MISSING if result.ratio is None else f"{result.ratio:g}",
                    _LABELS[name],
                    *(percent(None if cell is None else cell.accuracy) for cell in cells),
                    number(result.paper if name == "head" else None),
                    number(overall.nll, digits=3),
                    percent(overall.ece),
                ]
            )
    columns = ["run", "method", "ratio", "classifier", *_GROUPS, "paper", "NLL", "ECE %"]
    shown = [
        name not in ("ratio", "paper") or any(line[index] != MISSING for line in lines)
        for index, name in enumerate(columns)
    ]
    print_table(
        "Test accuracy in % by the number of training images of a class",
        list(compress(columns, shown)),
        [list(compress(line, shown)) for line in lines],
        note="many: more than 100 training images, few: fewer than 20; adjusted: by the class "
        "frequencies; a calibrated temperature changes probabilities, not accuracy",
    )
    print_splits({labels[result.info.run]: result.info.split for result in results})
