"""``protosphere benchmark transfer``: classifiers on frozen features, on other sets of images."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

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
    from protosphere.data.transfer_sets import TargetName, TransferSet
    from protosphere.recipes.loading import Run
    from protosphere.studies.transfer import TransferRow


class Classifier(StrEnum):
    """Choices of ``--classifier``."""

    LOGISTIC = "logistic"
    CLASS_MEANS = "class_means"
    WHITENED_CLASS_MEANS = "whitened_class_means"
    KNN = "knn"


_DRAWS = 10
_LABELS = {
    "logistic": "logistic regression",
    "class_means": "class means",
    "whitened_class_means": "class means, whitened",
    "knn": "20 nearest neighbors",
}
_METRICS = {
    "top1": "accuracy in %",
    "mean_per_class": "mean of the accuracies within each class in %",
    "map": "11-point mean average precision in %",
}


@dataclass(frozen=True)
class _Transferred:
    """The rows of one run, and the paper's numbers for it by set."""

    run: str
    recipe: str
    method: str
    step: int
    rows: tuple["TransferRow", ...]
    paper: dict[str, float]


def transfer(
    targets: Targets,
    to: Annotated[
        list[str],
        typer.Option(
            "--to",
            metavar="<set>",
            help="Set to transfer to; may be repeated. A name (food101, cifar10, cifar100, cars, "
            "dtd, pets, flowers102, voc2007, fashion-mnist, ...), a folder with train/CLASS and "
            "test/CLASS, an .npz file, NAME=PATH, or fine: the classes of a run that was trained "
            "on groups of them.",
        ),
    ],
    classifier: Annotated[
        list[Classifier] | None,
        typer.Option(
            metavar="<name>",
            help="Classifier on the frozen features; may be repeated. By default all. "
            f"Choices: {', '.join(Classifier)}.",
        ),
    ] = None,
    shots: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<n,...>",
            help="Also classify by class means of so many training images per class, such as "
            "1,5,20.",
        ),
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(
            help="Number of random draws of the images of --shots.", min=1, show_default="10"
        ),
    ] = None,
    c: Annotated[
        list[float] | None,
        typer.Option(
            "--c",
            metavar="<number>",
            help="Values of C of the logistic regression to choose from on the validation images; "
            "may be repeated. By default ten from 1e-5 to 100.",
        ),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            metavar="<folder>",
            help="Folder of the downloaded sets that --to names.",
            show_default="data",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of the random draws of --shots, and of the validation images of the "
            "logistic regression.",
            min=0,
            max=MAX_INTEGER,
            show_default="0",
        ),
    ] = None,
    no_cache: Annotated[
        bool,
        typer.Option("--no-cache", help="Neither read nor write features in the run folder."),
    ] = False,
    plot: Annotated[Path | None, plot_option("accuracies by set, and few-shot curves")] = None,
    overwrite: Overwrite = False,
    batch_size: BatchSize = 256,
    workers: Annotated[
        int, typer.Option(help="Largest number of processes that read image files.", min=0)
    ] = 8,
    out: Out = None,
    recompute: Recompute = False,
    checkpoint: CheckpointChoice = None,
    overrides: BenchmarkOverrides = None,
    device: Device = "auto",
    download: Download = False,
    as_json: AsJson = False,
) -> None:
    """Transfer runs to other sets: frozen encoder, linear classifier.

    Features before the projection are computed once and kept in the run folder.
    C of the logistic regression is chosen on validation images, then all training
    images are fitted. Pets and Flowers-102 are scored by the mean over classes,
    VOC2007 by 11-point mAP, other sets by accuracy.
    """
    from protosphere.cli.benchmark_options import open_runs
    from protosphere.cli.errors import report_errors
    from protosphere.cli.progress import progress_bar
    from protosphere.cli.text import to_json

    with report_errors():
        from protosphere.data.transfer_sets import load_transfer_set
        from protosphere.evaluation.few_shot import check_shots
        from protosphere.evaluation.transfer import CLASSIFIERS, DEFAULT_CS, check_cs
        from protosphere.studies.transfer import FINE, fine_set, run_transfer

        check_plot(plot, overwrite=overwrite)
        numbers = _parse_shots(shots or [])
        names = _parse_targets(to)
        check_cs(c or DEFAULT_CS)
        if not numbers:
            refuse_unused({"--draws": draws}, "without --shots")
        if classifier and Classifier.LOGISTIC not in classifier:
            refuse_unused({"--c": c}, "without --classifier logistic")
            refuse_unused(
                {"--seed": None if numbers else seed}, "without --classifier logistic or --shots"
            )
        has_names = any(path is None and name not in (FINE, "digits") for name, path in names)
        if not has_names:
            refuse_unused({"--root": root}, "without the name of a downloaded set in --to")
        folder, seed = Path("data") if root is None else root, seed or 0
        # All sets are loaded first: a missing one is found before a recipe has been trained.
        sets: dict[str, TransferSet] = {
            name.name: load_transfer_set(name, root=folder, download=download, seed=seed)
            for name in names
            if name.name != FINE
        }
        for one in sets.values():
            if numbers and one.metric != "map":
                check_shots(one.train.targets, numbers)
        results: list[_Transferred] = []
        for run in open_runs(
            targets,
            out=out,
            device=device,
            overrides=overrides or [],
            checkpoint=checkpoint,
            download=download,
        ):
            rows: list[TransferRow] = []
            for name, _ in names:
                target = sets[name] if name in sets else fine_set(run, seed=seed)
                with progress_bar(f"{run.path.name} to {name}") as progress:
                    rows += run_transfer(
                        run,
                        target,
                        classifiers=[
                            one for one in CLASSIFIERS if not classifier or one in classifier
                        ],
                        shots=numbers,
                        num_draws=_DRAWS if draws is None else draws,
                        cs=c or DEFAULT_CS,
                        seed=seed,
                        use_cache=not no_cache,
                        batch_size=batch_size,
                        workers=workers,
                        recompute=recompute,
                        progress=progress,
                    )
            results.append(_describe(run, rows))
        if plot is not None:
            _plot(plot, results)
    if as_json:
        typer.echo(to_json({"runs": [asdict(result) for result in results]}, indent=2))
    else:
        _print_results(results, [name for name, _ in names])


def _parse_shots(texts: Sequence[str]) -> list[int]:
    """Return the numbers of ``--shots``, each once."""
    words = [word.strip() for text in texts for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ValueError(
            f"--shots must be whole numbers from 1 on, such as 1,5,20; got {','.join(texts)}"
        )
    return sorted({int(word) for word in words})


def _parse_targets(texts: Sequence[str]) -> "list[TargetName]":
    """Return the sets of ``--to``, whose names must differ."""
    from protosphere.data.transfer_sets import TargetName, parse_target
    from protosphere.studies.transfer import FINE

    names = [
        TargetName(FINE, None) if text == FINE else parse_target(text, others=[FINE])
        for text in texts
    ]
    seen: set[str] = set()
    for name, path in names:
        if name == FINE and path is not None:
            raise ValueError(
                f"--to {FINE} stands for the classes of a run; NAME=PATH gives {path} another name"
            )
        if name in seen:
            raise ValueError(
                f"--to must give each set another name, got {name} twice; NAME=PATH gives a folder "
                "or a file a name"
            )
        seen.add(name)
    return names


def _describe(run: "Run", rows: Sequence["TransferRow"]) -> _Transferred:
    from protosphere.studies.common import method_of
    from protosphere.studies.transfer import paper_transfer

    names = dict.fromkeys(row.target for row in rows)
    values = {name: paper_transfer(run, name) for name in names}
    return _Transferred(
        str(run.path),
        run.recipe.name,
        method_of(run),
        run.step,
        tuple(rows),
        {name: value for name, value in values.items() if value is not None},
    )


def _plot(path: Path, results: Sequence[_Transferred]) -> None:
    from protosphere.cli.benchmark_table import run_labels
    from protosphere.cli.text import count
    from protosphere.studies.plots.transfer import plot_transfer

    labels = run_labels(result.run for result in results)
    rows = {labels[result.run]: result.rows for result in results}
    paper = {labels[result.run]: result.paper for result in results}
    save_plot(path, plot_transfer(rows, paper=paper), f"transfer of {count(len(rows), 'run')}")


def _print_results(results: Sequence[_Transferred], names: Sequence[str]) -> None:
    """Print one line for each run and classifier, and one for the paper's numbers."""
    from protosphere.cli.benchmark_table import number, print_table, run_labels

    labels = run_labels(result.run for result in results)
    lines: list[list[str]] = []
    for result in results:
        lines += [
            [labels[result.run], result.method, label, *cells]
            for label, cells in _cells(result.rows, names)
        ]
        if result.paper:
            values = [result.paper.get(name) for name in names]
            paper = [number(value) for value in _with_mean(values)]
            lines.append(["paper", result.method, "linear classifier", *paper])
    metrics = {row.target: row.metric for result in results for row in result.rows}
    used = {metric: [name for name in names if metrics[name] == metric] for metric in _METRICS}
    note = "; ".join(
        f"{', '.join(sets)}: {_METRICS[metric]}" for metric, sets in used.items() if sets
    )
    columns = ["run", "method", "classifier", *names, *(["mean"] if len(names) > 1 else [])]
    print_table("Transfer of frozen features", columns, lines, note=note)


def _with_mean(values: Sequence[float | None]) -> list[float | None]:
    """Append the mean of several numbers, or None if one of them is missing."""
    if len(values) == 1:
        return list(values)
    known = [value for value in values if value is not None]
    return [*values, fmean(known) if len(known) == len(values) else None]


def _cells(rows: Sequence["TransferRow"], names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the label and the cells of each classifier of a run."""
    from protosphere.cli.benchmark_table import percent

    kinds = dict.fromkeys((row.classifier, row.shots) for row in rows)
    lines: list[tuple[str, list[str]]] = []
    for classifier, shots in sorted(kinds, key=lambda kind: kind[1] or 0):
        found = {
            row.target: row for row in rows if (row.classifier, row.shots) == (classifier, shots)
        }
        values = [found[name].value if name in found else None for name in names]
        deviations = [found[name].std if name in found else None for name in names]
        cells = [percent(value) for value in _with_mean(values)]
        for index, deviation in enumerate(deviations):
            cells[index] += "" if deviation is None else f" ± {percent(deviation)}"
        few = "" if shots is None else f", {shots} per class"
        lines.append((_LABELS[classifier] + few, cells))
    return lines
