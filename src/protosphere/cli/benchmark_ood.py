"""``protosphere benchmark ood``: images of unknown classes."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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
from protosphere.cli.unused_options import refuse_unused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protosphere.studies.ood import OodRow


def ood(
    targets: Targets,
    against: Annotated[
        list[str],
        typer.Option(
            metavar="<source>",
            help="Images of unknown classes: the name of a dataset (its test images), an .npz "
            "file, a folder of images, or NAME=PATH; may be repeated.",
        ),
    ],
    split: Annotated[
        Literal["test", "validation"] | None,
        typer.Option(
            help="Images of the run that count as known. By default its test images, or the "
            "validation images of a folder without test images."
        ),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            metavar="<folder>",
            help="Folder of the datasets of --against that are named.",
            show_default="data",
        ),
    ] = None,
    neighbors: Annotated[
        int,
        typer.Option(
            help="Number of neighbors of the score knn; all training images if there are fewer.",
            min=1,
        ),
    ] = 50,
    plot: Annotated[Path | None, plot_option("AUROC and FPR95 of the scores")] = None,
    overwrite: Overwrite = False,
    out: Out = None,
    checkpoint: CheckpointChoice = None,
    overrides: BenchmarkOverrides = None,
    device: Device = "auto",
    download: Download = False,
    recompute: Recompute = False,
    as_json: AsJson = False,
) -> None:
    """How well scores tell images of unknown classes from those of the run.

    Test images of the run are the positives. AUROC is the probability that
    one of them has a higher score than an image of the other source; FPR95 is
    the percentage of the other images that are accepted where 95% of the
    run's own are. The scores: cosine with the nearest prototype, energy
    (log-sum-exp of the logits), softmax probability, distance to the span of
    the prototypes, Mahalanobis distance to class means, and distance to the
    nearest training images (knn).
    """
    from protosphere.cli.errors import report_errors
    from protosphere.cli.progress import progress_bar
    from protosphere.cli.text import to_json

    results: list[tuple[RunInfo, tuple[OodRow, ...]]] = []
    with report_errors():
        from protosphere.data.transfer_sets import TRANSFER_SETS
        from protosphere.studies.data_sources import load_source
        from protosphere.studies.ood import run_ood

        check_plot(plot, overwrite=overwrite)
        has_names = any(source in TRANSFER_SETS and source != "digits" for source in against)
        if not has_names:
            refuse_unused({"--root": root}, "without the name of a dataset in --against")
        folder = Path("data") if root is None else root
        sources = [
            load_source(source, root=folder, download=download) for source in dict.fromkeys(against)
        ]
        for run in open_runs(
            targets,
            out=out,
            device=device,
            overrides=overrides or [],
            checkpoint=checkpoint,
            download=download,
        ):
            with progress_bar(f"scoring images with {run.path}") as progress:
                rows = run_ood(
                    run,
                    sources,
                    split=split,
                    num_neighbors=neighbors,
                    recompute=recompute,
                    progress=progress,
                )
            results.append((describe_run(run, split), rows))
        if plot is not None:
            _plot(plot, results)
    if as_json:
        records = [asdict(run) | {"rows": [asdict(row) for row in rows]} for run, rows in results]
        typer.echo(to_json({"runs": records}, indent=2))
    else:
        _print(results, has_choice=split is not None)


def _plot(path: Path, results: "Sequence[tuple[RunInfo, tuple[OodRow, ...]]]") -> None:
    from protosphere.cli.benchmark_table import run_labels
    from protosphere.cli.text import count
    from protosphere.studies.plots.ood import plot_ood

    labels = run_labels(run.run for run, _ in results)
    rows = {labels[run.run]: measured for run, measured in results}
    save_plot(path, plot_ood(rows), f"scores of {count(len(rows), 'run')}")


def _print(results: "Sequence[tuple[RunInfo, tuple[OodRow, ...]]]", *, has_choice: bool) -> None:
    from protosphere.cli.benchmark_table import (
        percent,
        print_note,
        print_splits,
        print_table,
        run_labels,
    )
    from protosphere.evaluation.ood import OOD_SCORES

    labels = run_labels(run.run for run, _ in results)
    lines: list[list[str]] = []
    for run, rows in results:
        # By their images: two sources may have the same name.
        for fingerprint in dict.fromkeys(row.fingerprint for row in rows):
            scores = {row.score: row for row in rows if row.fingerprint == fingerprint}
            areas = [percent(scores[name].auroc) for name in OOD_SCORES]
            errors = [percent(scores[name].fpr95) for name in OOD_SCORES]
            against = next(iter(scores.values())).against
            lines.append([labels[run.run], run.method, against, "AUROC", *areas])
            lines.append(["", "", "", "FPR95", *errors])
    print_table(
        "Images of unknown classes, in percent",
        ["run", "method", "against", "", *OOD_SCORES],
        lines,
        note="AUROC: higher is better, 50 is chance. FPR95: lower is better.",
    )
    if not has_choice:
        print_splits({labels[run.run]: run.split for run, _ in results})
    for run, rows in results:
        for text in dict.fromkeys(f"{row.score}: {row.absent}" for row in rows if row.absent):
            print_note(f"{labels[run.run]} has no score {text}")
