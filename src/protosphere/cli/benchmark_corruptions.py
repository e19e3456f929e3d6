"""``protosphere benchmark corruptions``: errors on corrupted test images, and mCE."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protosphere.cli.benchmark_options import BenchmarkOverrides, Out, Recompute, Targets
from protosphere.cli.options import (
    MAX_INTEGER,
    AsJson,
    BatchSize,
    CheckpointChoice,
    Device,
    Download,
)
from protosphere.cli.output_files import Overwrite
from protosphere.cli.plot_files import check_plot, plot_option, save_plot
from protosphere.cli.unused_options import refuse_unused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protosphere.evaluation.corruptions import Reference
    from protosphere.recipes.loading import Run
    from protosphere.studies.corruption_summary import CorruptionSummary
    from protosphere.studies.corruptions import CorruptionRow

_TABLE = "table5_imagenet_c"


@dataclass(frozen=True)
class _Benchmarked:
    """A run with its errors, and the paper's numbers if it has some."""

    run: str
    recipe: str
    method: str
    split: str
    reference: str | None
    summary: "CorruptionSummary"
    rows: "tuple[CorruptionRow, ...]"
    paper: dict[str, float]


def corruptions(
    targets: Targets,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="<run|recipe>",
            help="Run whose errors those of the others are divided by, for mCE. By default "
            "AlexNet's published errors for runs on ImageNet, and no mCE for others.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="<folder>",
            help="Read CIFAR-10-C, CIFAR-100-C or ImageNet-C from this folder instead of "
            "corrupting the test images.",
        ),
    ] = None,
    corruption: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<name>", help="Corruption; may be repeated. By default the 15 of mCE."
        ),
    ] = None,
    severity: Annotated[
        list[int] | None,
        typer.Option(metavar="<1-5>", help="Severity; may be repeated. By default all five."),
    ] = None,
    extra: Annotated[
        bool,
        typer.Option(
            "--extra",
            help="Also the four extra corruptions, which do not count in mCE: speckle_noise, "
            "gaussian_blur, spatter, saturate.",
        ),
    ] = False,
    class_means: Annotated[
        bool,
        typer.Option(
            "--class-means",
            help="Also classify by class means of the training features, which takes a pass over "
            "the training images.",
        ),
    ] = False,
    frost: Annotated[
        Path | None,
        typer.Option(
            metavar="<folder>",
            help="Folder of frost textures, such as the published frost1.png to frost6.jpg. By "
            "default textures made by the program.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the corruptions.", min=0, max=MAX_INTEGER, show_default="0"),
    ] = None,
    plot: Annotated[Path | None, plot_option("errors by corruption and severity")] = None,
    overwrite: Overwrite = False,
    batch_size: BatchSize = 256,
    out: Out = None,
    recompute: Recompute = False,
    checkpoint: CheckpointChoice = None,
    overrides: BenchmarkOverrides = None,
    device: Device = "auto",
    download: Download = False,
    as_json: AsJson = False,
) -> None:
    """Errors on corrupted test images: 15 corruptions at 5 severities, and mCE.

    The test images of a run are corrupted on the device. mCE is the mean over
    the corruptions of the error divided by that of the baseline; relative mCE
    is that of the errors that corruptions add to the clean error.
    """
    from protosphere.cli.benchmark_options import open_runs
    from protosphere.cli.errors import report_errors
    from protosphere.cli.progress import progress_bar
    from protosphere.cli.text import to_json

    with report_errors():
        from protosphere.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES
        from protosphere.data.frost_textures import read_frost_textures
        from protosphere.studies.corruption_summary import reference_of
        from protosphere.studies.corruptions import (
            check_baseline,
            check_corruptions,
            run_corruptions,
        )

        check_plot(plot, overwrite=overwrite)
        names = list(dict.fromkeys(corruption or CORRUPTIONS))
        names += [name for name in EXTRA_CORRUPTIONS if extra and name not in names]
        severities = sorted(set(severity or SEVERITIES))
        check_corruptions(names, severities)
        if frost is not None and folder is not None:
            raise ValueError("--frost must be given without --folder, whose images have their own")
        if "frost" not in names:
            refuse_unused({"--frost": frost}, "without --corruption frost")
        if folder is not None:
            refuse_unused({"--seed": seed}, "with --folder, whose images are corrupted already")
        textures = None if frost is None else read_frost_textures(frost)

        def measure(run: "Run") -> "tuple[CorruptionRow, ...]":
            with progress_bar(f"corruptions of {run.path}") as progress:
                return run_corruptions(
                    run,
                    corruptions=names,
                    severities=severities,
                    folder=folder,
                    frost=textures,
                    seed=seed or 0,
                    class_means=class_means,
                    batch_size=batch_size,
                    recompute=recompute,
                    progress=progress,
                )

        reference: Reference | None = None
        results: list[_Benchmarked] = []
        runs = open_runs(
            targets if baseline is None else [baseline, *targets],
            out=out,
            device=device,
            overrides=overrides or [],
            checkpoint=checkpoint,
            download=download,
        )
        base = None if baseline is None else next(runs)
        for run in runs:
            if base is not None:
                check_baseline(run, base)
            if base is not None and reference is None:
                rows = measure(base)
                reference = reference_of(base.path.resolve().name, rows)
                results.append(_describe(base, rows, reference))
            if all(result.run != str(run.path) for result in results):
                results.append(_describe(run, measure(run), reference))
        if plot is not None:
            _plot(plot, results)
    if as_json:
        typer.echo(to_json({"runs": [_to_record(result) for result in results]}, indent=2))
    else:
        _print(results, from_disk=folder is not None, has_frost=frost is not None)


def _describe(
    run: "Run", rows: "tuple[CorruptionRow, ...]", reference: "Reference | None"
) -> _Benchmarked:
    from protosphere.report.paper import paper_tables
    from protosphere.studies.common import method_of, reported_split
    from protosphere.studies.corruption_summary import find_reference, summarize_corruptions

    published = find_reference(run.class_names)
    used = published if reference is None else reference
    method = method_of(run)
    return _Benchmarked(
        str(run.path),
        run.recipe.name,
        method,
        reported_split(run.recipe),
        None if used is None else used.name,
        summarize_corruptions(rows, used),
        rows,
        {}
        if published is None or used is not published
        else paper_tables()[_TABLE].get(method, {}),
    )


def _to_record(result: _Benchmarked) -> dict[str, Any]:
    record = asdict(result)
    record["summary"] = result.summary._asdict()
    return record


def _plot(path: Path, results: "Sequence[_Benchmarked]") -> None:
    from protosphere.cli.benchmark_table import run_labels
    from protosphere.cli.text import count
    from protosphere.studies.plots.corruptions import CorruptedRun, plot_corruptions

    labels = run_labels(result.run for result in results)
    runs = {labels[result.run]: CorruptedRun(result.summary, result.rows) for result in results}
    save_plot(path, plot_corruptions(runs), f"errors of {count(len(runs), 'run')}")


def _print(results: "Sequence[_Benchmarked]", *, from_disk: bool, has_frost: bool) -> None:
    from protosphere.cli.benchmark_table import (
        number,
        percent,
        print_note,
        print_splits,
        print_table,
        run_labels,
    )

    labels = run_labels(result.run for result in results)
    lines: list[list[str]] = []
    for result in results:
        summary = result.summary
        values = summary.clean_error, summary.mean_error, summary.mce, summary.relative_mce
        cells = [percent(value) for value in values]
        lines.append([labels[result.run], result.method, "head", *cells])
        means = summary.class_means_clean_error, summary.class_means_mean_error
        if means[1] is not None:
            lines.append(["", "", "class means", *(percent(value) for value in means), "", ""])
        if result.paper:
            clean, mce = (number(result.paper.get(key)) for key in ("clean_error", "mce"))
            lines.append(["paper", result.method, "head", clean, "", mce, ""])
    columns = ["run", "method", "classifier", "clean", "corrupted", "mCE", "relative mCE"]
    print_table("Errors on corrupted images, in percent", columns, lines)
    print_note("")
    _print_corruptions(results, labels)
    divided = [result.reference for result in results if result.summary.normalized_errors]
    for name in sorted({name for name in divided if name is not None}):
        print_note(f"mCE and CE (corruption error): errors in percent of those of {name}")
    if any(result.reference is None for result in results):
        print_note("No mCE: --baseline names the run whose errors others are divided by")
    elif any(result.summary.mce is None for result in results):
        print_note("No mCE: it needs all 15 corruptions, all severities and a baseline with errors")
    elif any(result.summary.relative_mce is None for result in results):
        print_note("No relative mCE: a corruption adds nothing to the clean error of the baseline")
    for result in results:
        _print_severities(result, labels[result.run])
    if not from_disk:
        textures = "" if has_frost else ", and with frost textures made by the program"
        print_note(
            "Corruptions are computed from the clean images, without the JPEG compression of "
            f"ImageNet-C's files{textures}"
        )
    print_splits({labels[result.run]: result.split for result in results})


def _print_corruptions(results: "Sequence[_Benchmarked]", labels: dict[str, str]) -> None:
    """Print one line per corruption and columns for each run."""
    from protosphere.cli.benchmark_table import number, percent, print_table
    from protosphere.data.corruptions import CORRUPTIONS

    columns = ["corruption"]
    for result in results:
        columns.append(labels[result.run])
        columns += [f"{labels[result.run]}, CE"] if result.summary.normalized_errors else []
        columns += [f"paper {result.method}, CE"] if result.paper else []
    lines: list[list[str]] = []
    for name in results[0].summary.errors:
        line = [name if name in CORRUPTIONS else f"{name} (extra)"]
        for result in results:
            summary = result.summary
            line.append(percent(summary.errors[name]))
            if summary.normalized_errors:
                line.append(percent(summary.normalized_errors.get(name)))
            if result.paper:
                line.append(number(result.paper.get(name), digits=0))
        lines.append(line)
    print_table("Errors by corruption, averaged over severities, in percent", columns, lines)


def _print_severities(result: _Benchmarked, label: str) -> None:
    from protosphere.cli.benchmark_table import percent, print_note

    summary = result.summary
    if len(summary.by_severity) > 1:
        levels = list(summary.by_severity)
        errors = ", ".join(percent(error) for error in summary.by_severity.values())
        print_note(f"{label}: error at severities {', '.join(map(str, levels))}: {errors}")
    if summary.unordered:
        pairs = ", ".join(
            f"{name} ({', '.join(f'{low} to {high}' for low, high in levels)})"
            for name, levels in summary.unordered.items()
        )
        print_note(f"{label}: smaller error at a higher severity: {pairs}")
