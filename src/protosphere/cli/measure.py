"""``protosphere measure``: how near a file of features, or a run, is to neural collapse."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from protosphere.data import FeatureFile
    from protosphere.metrics import Measurement
    from protosphere.metrics.verdicts import Verdict

# Explanations of single metrics need this many columns; narrower, they would break into many lines.
_WIDE = 110
# Below this a table of sentences has no room for them.
_NARROW = 70
_COLORS = {
    "yes": "green",
    "nearly": "green",
    "partly": "yellow",
    "no": "red",
    "not measured": "dim",
}


def measure(
    file: Annotated[
        Path,
        typer.Argument(
            help="An .npz, .safetensors or .pt file with features and labels; or a run folder."
        ),
    ],
    features: Annotated[
        str | None,
        typer.Option(help="Of a file: the key of the features, (samples, dim); else 'features'."),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(help="Of a file: the key of the labels, (samples,); else 'labels'."),
    ] = None,
    prototypes: Annotated[
        str | None,
        typer.Option(
            help="Of a file: the key of the classifier's weights, (classes, dim); else 'prototypes', if there."
        ),
    ] = None,
    bias: Annotated[
        str | None,
        typer.Option(
            help="Of a file: the key of its bias, for --space raw; else 'bias', if there."
        ),
    ] = None,
    class_names: Annotated[
        Path | None, typer.Option(help="A text file with a class name a line.")
    ] = None,
    space: Annotated[
        str, typer.Option(help="'sphere' takes features to unit length, 'raw' does not.")
    ] = "sphere",
    metrics: Annotated[
        list[str] | None, typer.Option(help="'all', 'cheap', a group or a name; may be repeated.")
    ] = None,
    classes: Annotated[
        str,
        typer.Option(
            help="'all' asks for a sample of every class, 'present' takes those that have one."
        ),
    ] = "all",
    device: Annotated[str, typer.Option(help="Where to calculate: 'cpu', 'cuda'.")] = "cpu",
    memory: Annotated[
        float, typer.Option(help="GiB of features to take from disk at a time.")
    ] = 0.5,
    part: Annotated[
        str | None, typer.Option(help="Of a run: its 'train' or 'test' images; else 'train'.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Of a run: where data are, e.g. data.root=PATH; may be repeated."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Of a run: keep features, labels and weights in this .npz, which is new."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Measure how near features are to neural collapse, whatever model they come from."""
    from rich.console import Console

    from protosphere.cli.errors import told
    from protosphere.cli.waiting import bar_of

    with told():
        from protosphere.cli.devices import device_named
        from protosphere.data import read_features, write_features
        from protosphere.metrics import examine
        from protosphere.metrics.verdicts import verdicts

        where = device_named(device)
        keys = {"features": features, "labels": labels, "prototypes": prototypes, "bias": bias}
        of_run = {"part": part, "set": settings, "save": save}
        _refuse(keys if file.is_dir() else of_run, file)
        if save is not None:
            _check_save(save)
        if file.is_dir():
            content = _of_run(
                file,
                _one_of("--part", "train" if part is None else part, "train", "test"),
                settings or [],
                where,
            )
            if save is not None:
                write_features(save, content)
        else:
            content = read_features(
                file, **{name: key for name, key in keys.items() if key is not None}
            )
        names = _class_names(class_names, content)
        head_bias = content.bias if space == "raw" else None
        with bar_of("measuring") as progress:
            found = examine(
                content.features,
                content.labels,
                content.prototypes,
                bias=head_bias,
                space=_one_of("--space", space, "sphere", "raw"),
                metrics=metrics or "all",
                classes=_one_of("--classes", classes, "all", "present"),
                device=where,
                memory_budget=_bytes(memory),
                progress=progress,
            )
        _check_names(names, found)
    dim, samples = found.statistics.dim, int(found.statistics.counts.sum())
    judged = verdicts(
        found.values, found.absent, len(found.classes), dim, sign=found.sign, samples=samples
    )
    if as_json:
        typer.echo(
            json.dumps(_record(file, found, judged, space, names), indent=1, ensure_ascii=False)
        )
        return
    console = Console(highlight=False)
    unused = content.bias is not None and head_bias is None
    _print(console, file, found, judged, space, names, unused)


def _one_of(option: str, value: str, *choices: str) -> Any:
    if value not in choices:
        raise ValueError(f"{option} must be {' or '.join(choices)}; got {value}")
    return value


def _bytes(memory: float) -> int:
    if not 0 < memory < 1e9:
        raise ValueError(f"--memory must be a positive number of GiB; got {memory}")
    return max(1, int(memory * 2**30))


def _check_names(names: list[str] | None, found: "Measurement") -> None:
    if names is not None and len(names) <= max(found.classes):
        raise ValueError(
            f"class names must be one a class, {max(found.classes) + 1}; got {len(names)}"
        )


def _of_run(run: Path, part: str, settings: list[str], device: str) -> "FeatureFile":
    """The features of a run's images, and its head."""
    from protosphere.cli.waiting import bar_of
    from protosphere.data import FeatureFile
    from protosphere.evaluation import outputs
    from protosphere.recipes.loading import load_run

    with bar_of("loading the run") as progress:
        taken = load_run(run, settings=settings, device=device, progress=progress)
    with bar_of("computing features") as progress:
        found = outputs(
            taken.objective, taken.train if part == "train" else taken.test, progress=progress
        )
    head = taken.objective.head
    bias = getattr(head, "bias", None)
    return FeatureFile(
        found.features,
        found.labels,
        head.prototypes.detach(),  # type: ignore[operator]
        None if bias is None else bias.detach(),
        taken.source.train.class_names,
    )


def _refuse(options: dict[str, Any], file: Path) -> None:
    """Raise ValueError where an option is given that has no meaning for this file or run."""
    kind, other = ("run", "file") if file.is_dir() else ("file", "run")
    given = next((name for name, value in options.items() if value not in (None, [])), None)
    if given is not None and file.exists():
        raise ValueError(f"--{given} must come with a {other}; {file} is a {kind}")


def _check_save(save: Path) -> None:
    if save.suffix != ".npz":
        raise ValueError(f"--save must name an .npz file; got {save}")
    if save.exists():
        raise ValueError(f"--save must name a file that is not there yet; {save} is")


def _class_names(path: Path | None, content: "FeatureFile") -> list[str] | None:
    if path is None:
        return None if content.class_names is None else list(content.class_names)
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"--class-names must be a text file that can be read; {path} cannot"
        ) from error


def _name(found: "Measurement", index: int, names: list[str] | None) -> str:
    label = found.classes[index]
    return f"class {label}" if names is None else names[label]


def _extremes(found: "Measurement", names: list[str] | None) -> dict[str, Any]:
    """The class that spreads most, and the two that are nearest."""
    import torch

    statistics = found.statistics
    variances = statistics.variances()
    widest = int(variances.argmax())
    centered = statistics.means - statistics.means.mean(0)  # A common offset would cost digits.
    distances = torch.cdist(centered, centered).fill_diagonal_(torch.inf)
    nearest = int(distances.argmin())
    pair = divmod(nearest, len(distances))
    return {
        "widest": _name(found, widest, names),
        "widest_variance": float(variances[widest]),
        "median_variance": float(variances.median()),
        "nearest": [_name(found, index, names) for index in pair],
        "nearest_distance": float(distances[pair]),
        "median_distance": float(distances[torch.isfinite(distances)].median()),
    }


def _record(
    file: Path, found: "Measurement", judged: "list[Verdict]", space: str, names: list[str] | None
) -> dict[str, Any]:
    from dataclasses import asdict

    from protosphere.metrics import at_collapse, attainable

    classes, dim = len(found.classes), found.statistics.dim
    return {
        "file": str(file),
        "samples": int(found.statistics.counts.sum()),
        "classes": classes,
        "dim": dim,
        "space": space,
        "features": found.sign,
        "metrics": found.values,
        "at_collapse": {name: at_collapse(name, classes) for name in found.values},
        "attainable": {
            name: attainable(name, classes, dim, sign=found.sign) for name in found.values
        },
        "absent": found.absent,
        "verdicts": [asdict(verdict) for verdict in judged],
        "extremes": _extremes(found, names),
    }


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if abs(value) < 1e-12:
        return "0"
    return f"{value:.4g}"


def _print(
    console: "Console",
    file: Path,
    found: "Measurement",
    judged: "list[Verdict]",
    space: str,
    names: list[str] | None,
    unused: bool,
) -> None:
    from rich import box
    from rich.table import Table

    from protosphere.metrics import DEFINITIONS, at_collapse, attainable

    classes, dim = len(found.classes), found.statistics.dim
    where = "on the unit sphere" if space == "sphere" else "as they are"
    samples = int(found.statistics.counts.sum())
    summary = (
        f"{file.name}: {samples:,} samples of {classes:,} classes in {dim:,} dimensions, {where}"
    )
    console.print(summary, markup=False)
    table = Table(box=box.SIMPLE_HEAD, title="Every metric", title_justify="left", pad_edge=False)
    table.add_column("metric", no_wrap=True)
    for heading in ("value", "at collapse", "attainable"):
        table.add_column(heading, justify="right", no_wrap=True)
    if console.width >= _WIDE:
        table.add_column("what it says")
    last = None
    for name, value in found.values.items():
        definition = DEFINITIONS[name]
        if last not in (None, definition.condition):
            table.add_section()
        last = definition.condition
        best = attainable(name, classes, dim, sign=found.sign)
        numbers = [_number(part) for part in (value, at_collapse(name, classes), best)]
        table.add_row(name, *numbers, *([definition.reading] if console.width >= _WIDE else []))
    console.print(table)
    console.print(
        "At collapse: the value in the ideal geometry. Attainable: the best that features like these can reach. "
        "Prototype: the classifier's weight vector of a class."
    )
    if found.sign == "non-negative":
        console.print(
            "These features are never negative (a ReLU?): class means can be at right angles at most, which is what "
            "'attainable' takes into account."
        )
    if unused:
        console.print(
            "The file has a bias, which the cosine has no use for; --space raw measures it."
        )
    for reason in dict.fromkeys(found.absent.values()):
        missing = ", ".join(name for name, why in found.absent.items() if why == reason)
        console.print(f"Absent: {missing}: {reason}.", markup=False)
    extremes = _extremes(found, names)
    console.print(
        f"Most spread: {extremes['widest']} (variance {extremes['widest_variance']:.3g}, "
        f"half of the classes below {extremes['median_variance']:.3g}). "
        f"Nearest: {extremes['nearest'][0]} and {extremes['nearest'][1]} "
        f"(distance {extremes['nearest_distance']:.3g}, half of the pairs beyond {extremes['median_distance']:.3g}).",
        markup=False,
    )
    title = (
        "Neural collapse, the geometry that training pulls a classifier toward, in four questions"
    )
    if console.width < _NARROW:
        console.print(title)
        for verdict in judged:
            console.print(
                f"{verdict.condition} {verdict.question} {verdict.answer}: {verdict.sentence}",
                markup=False,
            )
        return
    final = Table(box=box.ROUNDED, show_lines=True, title=title, title_justify="left")
    final.add_column("")
    final.add_column("question, and what was found")
    final.add_column("answer", justify="center")
    for heading in ("measured", "at collapse", "attainable"):
        final.add_column(heading, justify="right")
    for verdict in judged:
        color = _COLORS[verdict.answer]
        texts = (
            f"[bold]{verdict.question}[/bold]\n{verdict.sentence}",
            f"[{color}]{verdict.answer}[/{color}]",
        )
        numbers = [
            _number(part) for part in (verdict.value, verdict.at_collapse, verdict.attainable)
        ]
        final.add_row(verdict.condition, *texts, *numbers)
    console.print(final)
