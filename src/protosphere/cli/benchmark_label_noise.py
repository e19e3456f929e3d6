"""``protosphere benchmark label-noise``: accuracy of runs that were trained with wrong labels."""

from collections.abc import Sequence
from dataclasses import asdict
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
    from protosphere.studies.label_noise import LabelNoiseRow


def label_noise(
    targets: Targets,
    plot: Annotated[
        Path | None, plot_option("accuracies and what becomes of wrongly labeled images")
    ] = None,
    overwrite: Overwrite = False,
    out: Out = None,
    recompute: Recompute = False,
    checkpoint: CheckpointChoice = None,
    overrides: BenchmarkOverrides = None,
    device: Device = "auto",
    download: Download = False,
    as_json: AsJson = False,
) -> None:
    """Measure runs that were trained with label noise.

    Test accuracy of the head and of class means; accuracy on the training images
    with the labels that were trained on and with the true ones; and how many of
    the wrongly labeled images get their wrong label: the noise that the run has
    memorized.
    """
    from protosphere.cli.errors import report_errors
    from protosphere.cli.progress import progress_bar
    from protosphere.cli.text import to_json

    with report_errors():
        from protosphere.studies.label_noise import check_label_noise, run_label_noise

        check_plot(plot, overwrite=overwrite)
        results: list[tuple[RunInfo, tuple[LabelNoiseRow, ...]]] = []
        for run in open_runs(
            targets,
            out=out,
            device=device,
            overrides=overrides or [],
            checkpoint=checkpoint,
            download=download,
            check_recipe=check_label_noise,
        ):
            with progress_bar(f"label noise, {run.path.name}") as progress:
                rows = run_label_noise(run, recompute=recompute, progress=progress)
            results.append((describe_run(run), rows))
        if plot is not None:
            _plot(plot, results)
    if as_json:
        records = [asdict(run) | {"rows": [asdict(row) for row in rows]} for run, rows in results]
        typer.echo(to_json({"runs": records}, indent=2))
    else:
        _print_results(results)


def _plot(path: Path, results: "Sequence[tuple[RunInfo, tuple[LabelNoiseRow, ...]]]") -> None:
    from protosphere.cli.benchmark_table import run_labels
    from protosphere.cli.text import count
    from protosphere.studies.plots.label_noise import plot_label_noise

    labels = run_labels(run.run for run, _ in results)
    rows = {labels[run.run]: measured for run, measured in results}
    methods = {labels[run.run]: run.method for run, _ in results}
    figure = plot_label_noise(rows, methods=methods)
    save_plot(path, figure, f"label noise of {count(len(rows), 'run')}")


def _print_results(results: "Sequence[tuple[RunInfo, tuple[LabelNoiseRow, ...]]]") -> None:
    """Print one line for each run."""
    from protosphere.cli.benchmark_table import percent, print_splits, print_table, run_labels

    labels = run_labels(run.run for run, _ in results)
    lines: list[list[str]] = []
    for run, measured in results:
        rows = {row.classifier: row for row in measured}
        # The head of a contrastive run is its class means.
        trained = rows.get("head", rows["class_means"])
        lines.append(
            [
                labels[run.run],
                run.method,
                f"{trained.noise} {percent(trained.fraction, digits=0)}%",
                *(
                    percent(rows[name].accuracy if name in rows else None)
                    for name in ("head", "class_means", "whitened_class_means")
                ),
                percent(trained.given_accuracy),
                percent(trained.true_accuracy),
                percent(trained.memorized),
                percent(trained.corrected),
            ]
        )
    print_table(
        "Label noise: test accuracy, and accuracy on the training images, in %",
        [
            "run",
            "method",
            "noise",
            "head",
            "class means",
            "whitened",
            "given labels",
            "true labels",
            "memorized",
            "corrected",
        ],
        lines,
        note="memorized and corrected: wrongly labeled training images that get their wrong and "
        "their true label",
    )
    print_splits({labels[run.run]: run.split for run, _ in results})
