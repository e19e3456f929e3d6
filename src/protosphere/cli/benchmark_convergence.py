"""``protosphere benchmark convergence``: when runs reach neural collapse."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protosphere.cli.benchmark_options import Recompute
from protosphere.cli.options import AsJson
from protosphere.cli.output_files import Overwrite
from protosphere.cli.plot_files import check_plot, plot_option, save_plot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protosphere.studies.convergence import ConvergenceRow, Percentage, TrainingLog

_COLUMNS = {
    "weight_instance_alignment": "sample align.",
    "weight_class_alignment": "class align.",
    "weights_effective_rank": "weight rank",
    "intra_effective_rank": "intra rank",
    "inter_effective_rank": "inter rank",
}


def convergence(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Run folders written by `train`; data and weights are not needed.",
        ),
    ],
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="<run>",
            help="Run whose last values the others are compared with, such as cross-entropy.",
        ),
    ] = None,
    plot: Annotated[Path | None, plot_option("the curves")] = None,
    overwrite: Overwrite = False,
    recompute: Recompute = False,
    as_json: AsJson = False,
) -> None:
    """When runs reach neural collapse, from the metrics that they have logged (Table 7).

    Part I is the percentage of the run until the moving average of a metric
    of the training images enters 95% of neural collapse and stays there.
    Part II is the time until it reaches the last value of the baseline, in
    percent of the time that the baseline itself takes.
    """
    from protosphere.cli.errors import report_errors
    from protosphere.cli.text import count, to_json

    with report_errors():
        from protosphere.runs.results import read_result
        from protosphere.studies.convergence import (
            CurveRow,
            check_baseline,
            read_log,
            run_convergence,
        )

        check_plot(plot, overwrite=overwrite)
        reference = None if baseline is None else read_log(baseline)
        logs = [read_log(path) for path in {path.resolve(): path for path in runs}.values()]
        if reference is not None:
            for log in logs:
                check_baseline(log, reference)
            logs = [log for log in logs if log.path.resolve() != reference.path.resolve()]
            logs.append(reference)
        results = {
            str(log.path): run_convergence(log, baseline=reference, recompute=recompute)
            for log in logs
        }
        if plot is not None:
            from protosphere.cli.benchmark_table import run_labels
            from protosphere.studies.plots.convergence import plot_convergence

            labels = run_labels(results)
            curves = {
                labels[path]: read_result(
                    Path(path) / "benchmarks/convergence_curves.json", CurveRow
                ).rows
                for path in results
            }
            named = {labels[path]: rows for path, rows in results.items()}
            runs_drawn = count(len(results), "run")
            save_plot(plot, plot_convergence(curves, named), f"the curves of {runs_drawn}")
    if as_json:
        record = {
            "baseline": None if baseline is None else str(baseline),
            "runs": [_to_record(log, results[str(log.path)]) for log in logs],
        }
        typer.echo(to_json(record, indent=2))
    else:
        _print(logs, results, reference)


def _to_record(log: "TrainingLog", rows: "Sequence[ConvergenceRow]") -> dict[str, Any]:
    return {
        "run": str(log.path),
        "recipe": log.recipe.name,
        "method": log.method,
        "epochs": log.length,
        "complete": log.is_complete,
        "rows": [asdict(row) for row in rows],
    }


def _print(
    logs: "Sequence[TrainingLog]",
    results: "dict[str, tuple[ConvergenceRow, ...]]",
    baseline: "TrainingLog | None",
) -> None:
    from protosphere.cli.benchmark_table import print_table, run_labels

    columns = ["run", "method", *_COLUMNS.values()]
    labels = run_labels(log.path for log in logs)
    first: list[list[str]] = []
    second: list[list[str]] = []
    for log in logs:
        rows, name = results[str(log.path)], labels[str(log.path)]
        first.append([name, log.method, *(_text(row.percent_to_collapse) for row in rows)])
        if any(row.paper_percent_to_collapse is not None for row in rows):
            first.append(["  paper", "", *(_text(row.paper_percent_to_collapse) for row in rows)])
        if baseline is None:
            continue
        if log is baseline:
            values = [row.baseline_percent_of_run for row in rows]
            second.append([f"{name}, % of its run", log.method, *map(_text, values)])
            continue
        second.append([name, log.method, *(_text(row.percent_of_baseline) for row in rows)])
        second.append(["  % of the run", "", *(_text(row.percent_of_run) for row in rows)])
        if any(row.paper_percent_of_baseline is not None for row in rows):
            second.append(["  paper", "", *(_text(row.paper_percent_of_baseline) for row in rows)])
    print_table(
        "I. Percent of the run until 95% of neural collapse",
        columns,
        first,
        note=None if baseline is not None else "Part II compares with a run: --baseline RUN",
    )
    if baseline is not None:
        print_table(
            f"II. Time to reach the last value of {labels[str(baseline.path)]}, in percent of the "
            f"time that {labels[str(baseline.path)]} takes",
            columns,
            second,
        )
    _print_notes(logs, results)


def _print_notes(
    logs: "Sequence[TrainingLog]", results: "dict[str, tuple[ConvergenceRow, ...]]"
) -> None:
    from protosphere.cli.benchmark_table import print_note

    print_note(
        "The metrics are those of the training images; never: the run ended before it was reached."
    )
    for log in logs:
        for row in results[str(log.path)]:
            if row.missing is not None:
                print_note(f"{log.path}: {row.missing}")
        epochs, every = log.recipe.schedule.epochs, log.recipe.evaluation.every
        if not log.is_complete:
            print_note(f"{log.path} has {log.length} of {epochs} epochs; percentages are of these")
        if every >= log.length:
            print_note(
                f"{log.path} was evaluated once, at its end; `evaluation.every` must be smaller to "
                "tell when it converged"
            )
        elif 100 * every > log.length:
            resolution = 100 * every / log.length
            print_note(
                f"{log.path} was evaluated every {every} of {log.length} epochs: its percentages "
                f"are multiples of {resolution:.3g}"
            )


def _text(value: "Percentage") -> str:
    from protosphere.cli.benchmark_table import number

    return value if isinstance(value, str) else number(value)
