"""``protosphere evaluate``: accuracy and collapse metrics of a run, and other classifiers on it."""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from protosphere.cli.options import (
    AsJson,
    CheckpointChoice,
    DataOverrides,
    Device,
    Download,
    RunPath,
)
from protosphere.cli.output_files import Overwrite
from protosphere.cli.plot_files import check_plot, plot_option, save_plot
from protosphere.cli.unused_options import check_data_overrides

if TYPE_CHECKING:
    from protosphere.evaluation.evaluate import Evaluation
    from protosphere.evaluation.probes import ProbeResult
    from protosphere.metrics.coinciding_prototypes import CoincidingPrototypes
    from protosphere.recipes.loading import Run


class Probe(StrEnum):
    """Choices of ``--probe``."""

    ALL = "all"
    HEAD = "head"
    COSINE = "cosine"
    CLASS_MEANS = "class_means"
    LINEAR = "linear"
    NORMALIZED = "normalized"
    CACHED_LINEAR = "cached_linear"
    KNN = "knn"


# Those that are trained, with the settings of the recipe's section probe.
_TRAINED = {Probe.ALL, Probe.LINEAR, Probe.NORMALIZED, Probe.CACHED_LINEAR}


def evaluate(
    run: RunPath,
    split: Annotated[
        Literal["validation", "test"] | None,
        typer.Option(
            help="Images to evaluate on. By default those of the evaluations in training: "
            "validation if the recipe has a validation split, otherwise test.",
        ),
    ] = None,
    probe: Annotated[
        list[Probe] | None,
        typer.Option(
            metavar="<name>",
            help="Also evaluate another classifier on the features of the run; may be repeated. "
            f"Choices: {', '.join(Probe)}.",
        ),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Print all metrics, not only the main ones.")
    ] = False,
    classes_csv: Annotated[
        Path | None,
        typer.Option(
            "--csv",
            metavar="<path>",
            help="Also write a CSV file with accuracy, most frequent confusion and mean confidence "
            "of each class.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, plot_option("accuracy and confusion of classes and the metrics of collapse")
    ] = None,
    overwrite: Overwrite = False,
    checkpoint: CheckpointChoice = None,
    overrides: DataOverrides = None,
    device: Device = "auto",
    download: Download = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run: accuracy, calibration, neural collapse, weakest classes.

    The loss is the cross-entropy of the softmax of the head, whatever loss was
    trained, and the calibration error is that of the same softmax.
    """
    from protosphere.cli import evaluate_text
    from protosphere.cli.errors import report_errors
    from protosphere.cli.output_files import check_new_file
    from protosphere.cli.progress import progress_bar
    from protosphere.cli.text import count, echo, to_json

    with report_errors():
        from protosphere.evaluation.probes import PROBES
        from protosphere.metrics.coinciding_prototypes import (
            describe_coinciding,
            find_coinciding_prototypes,
        )
        from protosphere.recipes.devices import resolve_device
        from protosphere.recipes.loading import load_run

        check_plot(plot, overwrite=overwrite)
        if classes_csv is not None:
            check_new_file("--csv", classes_csv, suffixes=(".csv",), overwrite=overwrite)
        trains = not _TRAINED.isdisjoint(probe or [])
        used = ["evaluation.metrics", *(["probe", "training.compile"] if trains else [])]
        check_data_overrides(overrides or [], others=used)
        names = [name for name in PROBES if probe and (name in probe or Probe.ALL in probe)]
        with progress_bar("loading the run") as progress:
            loaded = load_run(
                run,
                overrides=overrides or [],
                checkpoint=checkpoint,
                device=resolve_device(device),
                download=download,
                progress=progress,
            )
        with progress_bar("evaluating") as progress:
            evaluation = loaded.evaluate(split=split, progress=progress)
        if classes_csv is not None:
            _write_classes(classes_csv, evaluation, loaded.class_names)
            classes = count(len(loaded.class_names), "class")
            echo(f"Wrote the results of {classes} to {classes_csv}", err=True)
        results: list[ProbeResult] = []
        with progress_bar("probing") as progress:
            for result in loaded.probe(names, split=split, progress=progress) if names else ():
                results.append(result)
                # A probe may take hours: those that are done are shown at once.
                echo(evaluate_text.describe_probe(result), err=True)
        if plot is not None:
            from protosphere.studies.plots.evaluation import plot_evaluation

            figure = plot_evaluation(
                evaluation,
                loaded.class_names,
                probes=results,
                split=split or loaded.split,
                title=loaded.recipe.name,
            )
            save_plot(plot, figure, "the evaluation")
    coinciding = find_coinciding_prototypes(evaluation.arrays["prototypes"])
    record = {
        "recipe": loaded.recipe.name,
        **_describe_checkpoint(loaded, checkpoint),
        "split": split or loaded.split,
        "metrics": evaluation.metrics,
        "verdicts": [asdict(verdict) for verdict in evaluation.verdicts],
        **_describe_classes(evaluation, loaded.class_names),
        **_describe_pairs(coinciding, loaded.class_names),
        "probes": [asdict(result) for result in results],
    }
    if as_json:
        typer.echo(to_json(record, indent=2))
    else:
        loss = loaded.recipe.loss.model_dump(mode="json")
        evaluate_text.print_evaluation(
            record,
            which="all" if show_all else "main",
            note=describe_coinciding(coinciding, loaded.class_names, loss),
        )
        if results:
            evaluate_text.print_probes(results)


def _describe_checkpoint(run: "Run", chosen: Literal["best", "last"] | None) -> dict[str, Any]:
    """Which checkpoint was evaluated, as plain values."""
    from protosphere.recipes.monitor import find_epoch, find_saved_best
    from protosphere.runs import RunFolder

    folder, settings = RunFolder(run.path), run.recipe.checkpoint
    best = None if chosen == "last" else find_saved_best(folder, settings)
    return {
        "step": run.step,
        "epoch": find_epoch(run.step, folder.records()),
        "epochs": run.recipe.schedule.epochs,
        "checkpoint": "last" if best is None else "best",
        "monitor": settings.monitor,
    }


def _describe_classes(
    evaluation: "Evaluation", names: tuple[str, ...]
) -> dict[str, list[dict[str, Any]]]:
    """The weakest classes and the most confused pairs, as plain values."""
    from protosphere.evaluation.class_report import class_results, confused_pairs, weakest_classes

    return {
        "weakest_classes": [
            {
                "class": result.name,
                "accuracy": result.accuracy,
                "num_samples": result.num_samples,
                "confused_with": result.confused_with,
                "num_confused": result.num_confused,
            }
            for result in weakest_classes(class_results(evaluation.arrays, names))
        ],
        "confused_pairs": [
            {
                "class": pair.name,
                "predicted": pair.predicted,
                "num_confused": pair.num_confused,
                "num_samples": pair.num_samples,
            }
            for pair in confused_pairs(evaluation.arrays, names)
        ],
    }


def _describe_pairs(found: "CoincidingPrototypes", names: tuple[str, ...]) -> dict[str, Any]:
    """The classes whose prototypes nearly coincide, as plain values."""
    return {
        "coinciding_prototypes": [
            {"class": names[pair.first], "other": names[pair.second], "cosine": pair.cosine}
            for pair in found.pairs
        ],
        "num_coinciding_prototypes": found.num_pairs,
    }


def _write_classes(path: Path, evaluation: "Evaluation", names: tuple[str, ...]) -> None:
    """Write one row per class as CSV; what a class without images lacks is empty."""
    from protosphere.cli.output_files import write_csv
    from protosphere.evaluation.class_report import class_results

    rows = [
        {
            "class": result.name,
            "images": result.num_samples,
            "accuracy": None if result.accuracy is None else round(result.accuracy, 6),
            "most_confused_with": result.confused_with,
            "count": result.num_confused,
            "mean_confidence": None
            if result.mean_confidence is None
            else round(result.mean_confidence, 6),
        }
        for result in class_results(evaluation.arrays, names)
    ]
    write_csv(path, rows[0], rows)
