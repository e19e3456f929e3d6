"""``protosphere evaluate``: what a run is worth, on the data that it names."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from protosphere.evaluation import Assessment
    from protosphere.evaluation.probes import Probe, Probed
    from protosphere.recipes.loading import TrainedRun

_WORST = 5


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Where data are, e.g. data.root=PATH; may be repeated."),
    ] = None,
    device: Annotated[str, typer.Option(help="Where to compute: 'auto', 'cpu', 'cuda'.")] = "auto",
    download: Annotated[
        bool, typer.Option("--download", help="Fetch the data set if it is not there.")
    ] = False,
    classifiers: Annotated[
        str | None,
        typer.Option(
            help="Other classifiers on the run's features: 'all', or some of head, cosine, prototypes, linear, "
            "normalized, cached, neighbours, with commas."
        ),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(help="'test', for a run that was evaluated on a validation part until now."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Evaluate a run: accuracies, its weakest classes, and how near it is to neural collapse."""
    from rich.console import Console

    from protosphere.cli.errors import told
    from protosphere.cli.waiting import bar_of

    with told():
        from protosphere.cli.devices import device_named
        from protosphere.evaluation import assess
        from protosphere.recipes.loading import load_run

        names = _probes(classifiers)
        if images not in (None, "test"):
            raise ValueError(f"--images must be test, or left out; got {images}")
        with bar_of("loading the run") as progress:
            taken = load_run(
                run,
                settings=settings or [],
                device=device_named(device),
                download=download,
                tested="as trained" if images is None else "test",
                progress=progress,
            )
        with bar_of("evaluating") as progress:
            found = assess(
                taken.objective,
                taken.train,
                taken.test,
                metrics=taken.recipe.metrics,
                progress=progress,
            )
        results = []
        with bar_of("classifying") as progress:
            for result in taken.probed(names, progress=progress) if names else ():
                results.append(result)
                # One may take hours; those that are through are not lost with it.
                typer.echo(f"{result.name}, {_ON[result.space]}: {_numbers(result)}", err=True)
    part = "validation" if taken.recipe.data.validation_share and images is None else "test"
    record = _record(taken, found) | {
        "images": part,
        "classifiers": [asdict(result) for result in results],
    }
    if as_json:
        typer.echo(json.dumps(record, indent=1, ensure_ascii=False))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{taken.recipe.name} after step {taken.step}: {len(taken.test):,} {part} images",
        markup=False,
    )
    for name, label in (
        ("test_accuracy", f"{part} accuracy"),
        ("nearest_mean_accuracy", "by the nearest class mean"),
        ("train_accuracy", "training accuracy"),
    ):
        if name not in found.numbers:
            continue
        console.print(f"  {label:28}{100 * found.numbers[name]:6.2f} %")
    for name, value in found.numbers.items():
        if not name.endswith("accuracy"):
            console.print(f"  {name:28}{value:9.4g}")
    weakest = "; ".join(
        f"{one['name']} {100 * one['accuracy']:.0f} %"
        + (
            f" (taken for {one['taken_for']} in {one['times']} of {one['of']})"
            if one["times"]
            else ""
        )
        for one in record["weakest"]
    )
    console.print(f"Weakest classes: {weakest}.", markup=False)
    if results:
        _print_probes(console, results)


def _probes(asked: str | None) -> "list[Probe]":
    from protosphere.evaluation.probes import PROBES

    if asked is None:
        return []
    if asked == "all":
        return list(PROBES)
    names = [name.strip() for name in asked.split(",")]
    unknown = [name for name in names if name not in PROBES]
    if unknown:
        raise ValueError(
            f"--classifiers must be all, or some of {', '.join(PROBES)}; got {unknown[0]}"
        )
    return [name for name in PROBES if name in names]


_EXPLAINED = {
    "head": "the run's own",
    "cosine": "its weights by the cosine alone",
    "prototypes": "class means",
    "linear": "trained on augmented images",
    "normalized": "unit weights, trained likewise",
    "cached": "linear, trained on features computed once",
    "neighbours": "twenty nearest samples",
}


# Of the training features with a classifier's weights: the columns of the paper's Table 3, all by our definitions.
_GEOMETRY = {
    "intra_effective_rank": "rank\nintra",
    "inter_effective_rank": "rank\ninter",
    "weights_effective_rank": "rank\nw.",
    "weight_class_alignment": "to\nmean",
    "weight_instance_alignment": "to\neach",
    "mir": "MIR",
    "hdr": "HDR",
}
_ON = {"output": "outputs", "body": "body"}


def _print_probes(console: "Console", results: "list[Probed]") -> None:
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD, title="Classifiers on what the run has learned", title_justify="left"
    )
    table.add_column("classifier", no_wrap=True)
    for heading in ("test", "passes", "seconds"):
        table.add_column(heading, justify="right")
    several = any(result.space == "body" for result in results)
    if several:
        table.add_column("on")
    table.add_column("")
    for result in results:
        numbers = f"{100 * result.accuracy:.2f} %", f"{result.passes}", f"{result.seconds:.2f}"
        on = [_ON[result.space]] if several else []
        table.add_row(result.name, *numbers, *on, _EXPLAINED[result.name])
    console.print(table)
    body = " Body: the encoder before its projection." if several else ""
    console.print(f"Passes: over the training images.{body}")
    measured = [result for result in results if result.metrics]
    if not measured:
        return
    table = Table(
        box=box.SIMPLE_HEAD, title="The training features with their weights", title_justify="left"
    )
    rows = [[_shown(result.metrics.get(name)) for name in _GEOMETRY] for result in measured]
    names = [
        f"{result.name}, {_ON[result.space]}" if several else result.name for result in measured
    ]
    table.add_column("classifier", min_width=max(map(len, ["classifier", *names])))
    for heading, column in zip(_GEOMETRY.values(), zip(*rows, strict=True), strict=True):
        widest = max(map(len, [*heading.split("\n"), *column]))
        table.add_column(heading, justify="right", min_width=widest)  # No digit is cut off.
    for name, row in zip(names, rows, strict=True):
        table.add_row(name, *row)
    console.print(table)
    console.print(
        "Rank: directions filled by the samples of a class, by class means, by weights. To mean, to each: squared "
        "distance of unit weights to class means and to samples."
    )


def _numbers(result: "Probed") -> str:
    passes = "1 pass" if result.passes == 1 else f"{result.passes} passes"
    return f"{100 * result.accuracy:.2f} %, {passes}, {result.seconds:.2f} s"


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return "0" if abs(value) < 1e-9 else f"{value:.3g}"


def _record(taken: "TrainedRun", found: "Assessment") -> dict[str, Any]:
    names = taken.source.train.class_names
    confusion = found.geometry["confusion"].clone()
    accuracy = found.geometry["class_accuracy"].tolist()
    sizes = confusion.sum(1).tolist()
    confusion.fill_diagonal_(0)
    measured = [index for index in range(len(names)) if not math.isnan(accuracy[index])]
    weakest = []
    for index in sorted(measured, key=lambda index: accuracy[index])[:_WORST]:
        other = int(confusion[index].argmax())
        times = int(confusion[index, other])
        weakest.append(
            {
                "name": names[index],
                "accuracy": accuracy[index],
                "taken_for": names[other] if times else None,
                "times": times,
                "of": sizes[index],
            }
        )
    return {
        "recipe": taken.recipe.name,
        "step": taken.step,
        "numbers": found.numbers,
        "weakest": weakest,
    }
