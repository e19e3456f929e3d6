"""``protosphere benchmark calibration``: probabilities before and after temperature scaling."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from protosphere.cli.options import MAX_INTEGER, AsJson, CheckpointChoice, Device, Download
from protosphere.cli.output_files import Overwrite
from protosphere.cli.plot_files import check_plot, plot_option, save_plot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protosphere.studies.calibration import CalibrationResult, CalibrationRow

_BOUNDS = {
    "lower": "T is the smallest allowed: the images that it is fitted on are classified correctly",
    "upper": "T is the largest allowed: on the images that it is fitted on, logits tell nothing",
}


def calibration(
    targets: Targets,
    plot: Annotated[Path | None, plot_option("reliability diagrams")] = None,
    overwrite: Overwrite = False,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the halves of the test images, for runs without validation images.",
            min=0,
            max=MAX_INTEGER,
        ),
    ] = 0,
    bins: Annotated[
        int,
        typer.Option(help="Number of bins of calibration errors and diagrams.", min=1, max=1000),
    ] = 15,
    out: Out = None,
    checkpoint: CheckpointChoice = None,
    overrides: BenchmarkOverrides = None,
    device: Device = "auto",
    download: Download = False,
    recompute: Recompute = False,
    as_json: AsJson = False,
) -> None:
    """Calibration of the head and of class means, before and after temperature scaling.

    The temperature is fitted on the validation images of a run and everything
    is reported on its test images; a run without validation images is fitted
    on a random half of its test images and reported on the other half.
    """
    from protosphere.cli.errors import report_errors
    from protosphere.cli.progress import progress_bar
    from protosphere.cli.text import count, to_json

    results: list[tuple[RunInfo, CalibrationResult]] = []
    with report_errors():
        from protosphere.studies.calibration import run_calibration

        check_plot(plot, overwrite=overwrite)
        for run in open_runs(
            targets,
            out=out,
            device=device,
            overrides=overrides or [],
            checkpoint=checkpoint,
            download=download,
        ):
            with progress_bar(f"calibrating {run.path}") as progress:
                result = run_calibration(
                    run, seed=seed, num_bins=bins, recompute=recompute, progress=progress
                )
            results.append((describe_run(run), result))
        if plot is not None:
            from protosphere.cli.benchmark_table import run_labels
            from protosphere.studies.plots.reliability import plot_reliability

            labels = run_labels(run.run for run, _ in results)
            diagrams = {
                f"{labels[run.run]}, {name.replace('_', ' ')}": [
                    row for row in result.reliability if row.classifier == name
                ]
                for run, result in results
                for name in dict.fromkeys(row.classifier for row in result.rows)
            }
            save_plot(plot, plot_reliability(diagrams), count(len(diagrams), "reliability diagram"))
    if as_json:
        typer.echo(
            to_json({"runs": [_to_record(run, result) for run, result in results]}, indent=2)
        )
    else:
        _print(results)


def _to_record(run: RunInfo, result: "CalibrationResult") -> dict[str, Any]:
    return asdict(run) | {
        "rows": [asdict(row) for row in result.rows],
        "reliability": [asdict(row) for row in result.reliability],
    }


def _print(results: "Sequence[tuple[RunInfo, CalibrationResult]]") -> None:
    from protosphere.cli.benchmark_table import print_note, print_table, run_labels

    columns = ["run", "method", "classifier", "", "T", "accuracy", "ECE", "adaptive ECE"]
    labels = run_labels(run.run for run, _ in results)
    lines: list[list[str]] = []
    for run, result in results:
        for row in result.rows:
            is_first = row.state == "before"
            names = [labels[run.run], run.method, _name(row)] if is_first else ["", "", ""]
            lines.append([*names, *_cells(row)])
    print_table(
        "Calibration before and after temperature scaling",
        [*columns, "NLL", "Brier"],
        lines,
        note="Accuracy and calibration errors in percent; T is what the logits are divided by.",
    )
    for run, result in results:
        row, label = result.rows[0], labels[run.run]
        print_note(
            f"{label}: T fitted on {row.fitted_on} ({row.num_fitted:,}), numbers of "
            f"{row.reported_on} ({row.num_reported:,})"
        )
        for one in result.rows:
            if one.bound in _BOUNDS:
                print_note(f"{label}, {_name(one)}: {_BOUNDS[one.bound]}")


def _name(row: "CalibrationRow") -> str:
    return row.classifier.replace("_", " ")


def _cells(row: "CalibrationRow") -> list[str]:
    from protosphere.cli.benchmark_table import number, percent

    return [
        row.state,
        f"{row.temperature:.3g}",
        percent(row.accuracy),
        percent(row.ece),
        percent(row.adaptive_ece),
        number(row.nll, digits=3),
        number(row.brier, digits=3),
    ]
