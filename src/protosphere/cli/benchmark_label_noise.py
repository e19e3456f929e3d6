"""``protosphere benchmark label-noise``: accuracy of runs that were trained with wrong labels."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from protosphere.cli.benchmark_options import BenchmarkOverrides, Out, Recompute, Targets
from protosphere.cli.options import AsJson, CheckpointChoice, Device, Download

if TYPE_CHECKING:
    from protosphere.studies.label_noise import LabelNoiseRow


@dataclass(frozen=True)
class _Measured:
    """The rows of one run."""

    run: str
    recipe: str
    method: str
    split: str
    rows: tuple["LabelNoiseRow", ...]


def label_noise(
    targets: Targets,
    out: Out = Path("runs"),
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
    from protosphere.cli.benchmark_options import open_runs
    from protosphere.cli.errors import report_errors
    from protosphere.cli.progress import progress_bar
    from protosphere.cli.text import to_json

    with report_errors():
        from protosphere.studies.common import method_of, reported_split
        from protosphere.studies.label_noise import check_label_noise, run_label_noise

        results: list[_Measured] = []
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
            split = reported_split(run.recipe)
            results.append(_Measured(str(run.path), run.recipe.name, method_of(run), split, rows))
    if as_json:
        typer.echo(to_json({"runs": [asdict(result) for result in results]}, indent=2))
    else:
        _print_results(results)


def _print_results(results: Sequence[_Measured]) -> None:
    """Print one line for each run."""
    from protosphere.cli.benchmark_table import percent, print_splits, print_table, run_labels

    labels = run_labels(result.run for result in results)
    lines: list[list[str]] = []
    for result in results:
        rows = {row.classifier: row for row in result.rows}
        # The head of a contrastive run is its class means.
        trained = rows.get("head", rows["class_means"])
        lines.append(
            [
                labels[result.run],
                result.method,
                f"{trained.noise} {percent(trained.fraction, digits=0)} %",
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
    print_splits({labels[result.run]: result.split for result in results})
