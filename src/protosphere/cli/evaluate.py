"""``protosphere evaluate``: accuracy and collapse metrics of a run, and other classifiers on it."""

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from protosphere.cli.options import AsJson, DataOverrides, Device, Download, RunPath

if TYPE_CHECKING:
    from protosphere.evaluation.evaluate import Evaluation
    from protosphere.evaluation.probes import ProbeResult

_NUM_WEAKEST = 5


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
    overrides: DataOverrides = None,
    device: Device = "auto",
    download: Download = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run: accuracy, weakest classes, and metrics of neural collapse."""
    from protosphere.cli import evaluate_text
    from protosphere.cli.errors import report_errors
    from protosphere.cli.progress import progress_bar
    from protosphere.cli.text import echo, to_json

    with report_errors():
        from protosphere.cli.devices import resolve_device
        from protosphere.evaluation.probes import PROBES
        from protosphere.recipes.loading import load_run

        names = [name for name in PROBES if probe and (name in probe or Probe.ALL in probe)]
        with progress_bar("loading the run") as progress:
            loaded = load_run(
                run,
                overrides=overrides or [],
                device=resolve_device(device),
                download=download,
                progress=progress,
            )
        with progress_bar("evaluating") as progress:
            evaluation = loaded.evaluate(split=split, progress=progress)
        results: list[ProbeResult] = []
        with progress_bar("probing") as progress:
            for result in loaded.probe(names, split=split, progress=progress) if names else ():
                results.append(result)
                # A probe may take hours: those that are done are shown at once.
                echo(evaluate_text.describe_probe(result), err=True)
    record = {
        "recipe": loaded.recipe.name,
        "step": loaded.step,
        "split": split or loaded.split,
        "metrics": evaluation.metrics,
        "weakest_classes": _weakest_classes(evaluation, loaded.class_names),
        "probes": [asdict(result) for result in results],
    }
    if as_json:
        typer.echo(to_json(record, indent=2))
    else:
        evaluate_text.print_evaluation(record)
        if results:
            evaluate_text.print_probes(results)


def _weakest_classes(evaluation: "Evaluation", names: tuple[str, ...]) -> list[dict[str, Any]]:
    """The classes of the lowest accuracy, and the class that each is confused with most."""
    import numpy as np

    confusion = np.array(evaluation.arrays["confusion"])
    accuracy = np.array(evaluation.arrays["class_accuracy"])
    num_samples = confusion.sum(1)
    np.fill_diagonal(confusion, 0)
    # Classes without samples have no accuracy; they are sorted last.
    order = np.argsort(accuracy, kind="stable")[: min(_NUM_WEAKEST, int((num_samples > 0).sum()))]
    weakest = []
    for index in order.tolist():
        other = int(confusion[index].argmax())
        num_confused = int(confusion[index, other])
        weakest.append(
            {
                "class": names[index],
                "accuracy": float(accuracy[index]),
                "num_samples": int(num_samples[index]),
                "confused_with": names[other] if num_confused else None,
                "num_confused": num_confused,
            }
        )
    return weakest
