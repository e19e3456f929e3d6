"""What ``protosphere evaluate`` prints."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import typer

from protosphere.cli.text import count, echo, printable

if TYPE_CHECKING:
    from rich.table import Table

    from protosphere.evaluation.probes import ProbeResult

_DESCRIPTIONS = {
    "head": "the head of the run",
    "cosine": "the head's weights, by cosine alone",
    "class_means": "nearest class mean",
    "linear": "linear layer, trained on augmented images",
    "normalized": "unit weights and features, trained likewise",
    "cached_linear": "linear layer, trained on features computed once",
    "knn": "20 nearest neighbors",
}
# Metrics that are always shown: their labels, and whether they are fractions.
_MAIN = {
    "accuracy": ("{split} accuracy", "%"),
    "balanced_accuracy": ("balanced accuracy", "%"),
    "loss": ("loss (cross-entropy)", ""),
    "ece": ("calibration error (ECE)", "%"),
    "nearest_mean_accuracy": ("nearest-class-mean accuracy", "%"),
    "train_accuracy": ("training accuracy", "%"),
}
# Metrics of the training features with the weights of a classifier: the columns of Table 3 of
# the paper.
_GEOMETRY = {
    "intra_effective_rank": "intra\nrank",
    "inter_effective_rank": "inter\nrank",
    "weights_effective_rank": "weight\nrank",
    "weight_class_alignment": "class\nalign.",
    "weight_instance_alignment": "sample\nalign.",
    "mir": "MIR",
    "hdr": "HDR",
}


def print_evaluation(
    record: Mapping[str, Any], *, which: Literal["main", "all"], note: str = ""
) -> None:
    """Print an evaluation: accuracies, verdicts, weakest classes and confused pairs.

    Args:
        record: What ``--json`` prints.
        which: ``"all"`` metrics, or the ``"main"`` ones.
        note: Sentences to print after the accuracies.
    """
    metrics, split = record["metrics"], record["split"]
    echo(f"{record['recipe']} {_describe_checkpoint(record)}, on the {split} images")
    for name, (label, unit) in _MAIN.items():
        if name in metrics:
            number = f"{100 * metrics[name]:6.2f}%" if unit else f"{metrics[name]:8.4f}"
            echo(f"  {label.format(split=split):28}{number}")
    others = [name for name in metrics if name not in _MAIN]
    for name in others if which == "all" else ():
        echo(f"  {name:28}{metrics[name]:9.4g}")
    if note:
        echo(note)
    _print_verdicts(record["verdicts"])
    _print_classes(record["weakest_classes"], record["confused_pairs"])
    if which == "main":
        echo(f"{count(len(others), 'other metric')} with --all")


def _describe_checkpoint(record: Mapping[str, Any]) -> str:
    """Return which checkpoint was evaluated; best or last only where there is a difference."""
    text = f"after step {record['step']:,}"
    if record["epoch"] is not None:
        text += f" (epoch {round(record['epoch'], 2):g} of {record['epochs']})"
    if record["monitor"] is None:
        return text
    if record["checkpoint"] == "last":
        return f"{text}, the last checkpoint"
    # A metric can only be monitored on validation images, whatever is evaluated here.
    return f"{text}, the best checkpoint by validation {record['monitor'].replace('_', ' ')}"


def _print_verdicts(verdicts: Sequence[Mapping[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    echo("Neural collapse of the training features")
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    for _ in range(3):
        table.add_column()
    for verdict in verdicts:
        first, *rest = verdict["explanation"]
        finding = f"{verdict['question']} {first.upper()}{''.join(rest)}."
        table.add_row(f"  {verdict['condition']}", f"[bold]{verdict['answer']}[/bold]", finding)
    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        typer.echo(line.rstrip())


def _print_classes(
    weakest: Sequence[Mapping[str, Any]], pairs: Sequence[Mapping[str, Any]]
) -> None:
    if not weakest:
        echo("Every class is classified without an error")
        return
    echo("Weakest classes")
    _print_rows([(one["class"], _describe_class(one)) for one in weakest])
    echo("Most confused pairs, true → predicted")
    _print_rows(
        [
            (
                f"{one['class']} → {one['predicted']}",
                f"{one['num_confused']:,} of {count(one['num_samples'], 'image')}",
            )
            for one in pairs
        ]
    )


def _print_rows(rows: Sequence[tuple[str, str]]) -> None:
    width = max(len(printable(name)) for name, _ in rows)
    for name, text in rows:
        echo(f"  {printable(name):{width}}  {text}")


def _describe_class(record: Mapping[str, Any]) -> str:
    confused = f"{record['num_confused']:,} predicted as {record['confused_with']}"
    images = count(record["num_samples"], "image")
    return f"{100 * record['accuracy']:5.1f}% of {images} correct, {confused}"


def describe_probe(result: "ProbeResult") -> str:
    """Return the line that says how a probe went."""
    passes = count(result.num_passes, "pass")
    accuracy = f"{100 * result.accuracy:.2f}%"
    return (
        f"{result.name}, {result.features} features: {accuracy}, {passes}, {result.seconds:.2f} s"
    )


def print_probes(results: "Sequence[ProbeResult]") -> None:
    """Print the accuracies of probes, and the geometry of features and weights if measured."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    has_backbone = any(result.features == "backbone" for result in results)
    console.print(_accuracy_table(results, has_backbone))
    backbone = " Backbone features are those before the projection." if has_backbone else ""
    console.print(f"Passes are over the training images.{backbone}")
    measured = [result for result in results if result.metrics]
    if measured:
        console.print(_geometry_table(measured, has_backbone))
        console.print(
            "Ranks are effective ranks: of the samples within a class, of class means, of weights. "
            "Alignments are mean squared distances of unit weights to class means and to samples."
        )


def _accuracy_table(results: "Sequence[ProbeResult]", has_backbone: bool) -> "Table":
    from rich import box
    from rich.table import Table

    title = "Classifiers on the features of the run"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("classifier", no_wrap=True)
    for heading in ("accuracy", "passes", "seconds"):
        table.add_column(heading, justify="right")
    if has_backbone:
        table.add_column("features")
    table.add_column("")
    for result in results:
        cells = [
            f"{100 * result.accuracy:.2f}%",
            f"{result.num_passes}",
            f"{result.seconds:.2f}",
            *([result.features] if has_backbone else []),
        ]
        table.add_row(result.name, *cells, _DESCRIPTIONS[result.name])
    return table


def _geometry_table(results: "Sequence[ProbeResult]", has_backbone: bool) -> "Table":
    from rich import box
    from rich.table import Table

    title = "Training features with the weights of each classifier"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    names = [f"{one.name}, {one.features}" if has_backbone else one.name for one in results]
    rows = [[_format(one.metrics.get(metric)) for metric in _GEOMETRY] for one in results]
    table.add_column("classifier", min_width=max(map(len, ["classifier", *names])))
    for heading, column in zip(_GEOMETRY.values(), zip(*rows, strict=True), strict=True):
        # No digit is cut off on a narrow terminal.
        width = max(map(len, [*heading.split("\n"), *column]))
        table.add_column(heading, justify="right", min_width=width)
    for name, row in zip(names, rows, strict=True):
        table.add_row(name, *row)
    return table


def _format(value: float | None) -> str:
    if value is None:
        return "–"
    return "0" if abs(value) < 1e-9 else f"{value:.3g}"
