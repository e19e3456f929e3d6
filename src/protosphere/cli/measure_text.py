"""What ``protosphere measure`` prints: the record for JSON, and tables of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protosphere.cli.text import count, echo

if TYPE_CHECKING:
    from rich.console import Console

    from protosphere.metrics import Measurement

# From this width on, the table of metrics has a column of explanations.
_WIDE = 110
# Below this width, the verdicts are printed as sentences.
_NARROW = 70
_COLORS = {
    "yes": "green",
    "nearly": "green",
    "partly": "yellow",
    "no": "red",
    "not measured": "dim",
}
_SPACES = {"sphere": "normalized to unit length", "raw": "not normalized"}


def to_record(
    path: Path, measurement: "Measurement", space: str, names: Sequence[str] | None
) -> dict[str, Any]:
    """Return what ``--json`` prints.

    Args:
        path: File or run folder that was measured.
        measurement: Result of the measurement.
        space: ``"sphere"`` or ``"raw"``.
        names: Class names, if known.
    """
    from dataclasses import asdict

    from protosphere.metrics import at_collapse, attainable
    from protosphere.metrics.verdicts import verdicts

    num_classes, dim = len(measurement.classes), measurement.statistics.dim
    num_samples = int(measurement.statistics.counts.sum())
    values, sign = measurement.values, measurement.sign
    judged = verdicts(
        values, measurement.absent, num_classes, dim, sign=sign, num_samples=num_samples
    )
    return {
        "path": str(path),
        "num_samples": num_samples,
        "num_classes": num_classes,
        "dim": dim,
        "space": space,
        "sign": sign,
        "metrics": values,
        "at_collapse": {name: at_collapse(name, num_classes) for name in values},
        "attainable": {name: attainable(name, num_classes, dim, sign=sign) for name in values},
        "absent": measurement.absent,
        "verdicts": [asdict(verdict) for verdict in judged],
        "extremes": _extremes(measurement, names),
    }


def _extremes(measurement: "Measurement", names: Sequence[str] | None) -> dict[str, Any]:
    """The class of the largest variance, and the two closest class means."""
    import torch

    def name(index: int) -> str:
        label = measurement.classes[index]
        return str(label) if names is None else names[label]

    variances, means = measurement.statistics.variances(), measurement.statistics.means
    widest = int(variances.argmax())
    centered = means - means.mean(0)  # A common offset would cost digits.
    distances = torch.cdist(centered, centered).fill_diagonal_(torch.inf)
    closest = divmod(int(distances.argmin()), len(distances))
    return {
        "widest_class": name(widest),
        "largest_variance": float(variances[widest]),
        "median_variance": float(variances.median()),
        "closest_classes": [name(index) for index in closest],
        "smallest_distance": float(distances[closest]),
        "median_distance": float(distances[torch.isfinite(distances)].median()),
    }


def print_measurement(record: Mapping[str, Any], *, has_unused_bias: bool) -> None:
    """Print a measurement as tables.

    Args:
        record: Result of :func:`to_record`.
        has_unused_bias: The classifier has a bias, which ``--space sphere`` does not use.
    """
    from rich.console import Console

    console = Console(highlight=False)
    samples, classes = count(record["num_samples"], "sample"), count(record["num_classes"], "class")
    size = f"{samples} of {classes} in {count(record['dim'], 'dimension')}"
    echo(f"{Path(record['path']).name}: {size}, {_SPACES[record['space']]}")
    _print_metrics(console, record)
    console.print(
        "At collapse: the value of perfect neural collapse. Attainable: the best value that "
        "features of this kind can reach. Prototype: the weight vector of a class."
    )
    if record["sign"] == "non-negative":
        console.print(
            "These features are never negative, as after a ReLU: class means can be orthogonal "
            "at most, which 'attainable' takes into account."
        )
    if has_unused_bias:
        console.print(
            "The classifier has a bias, which cosines do not use; --space raw measures it."
        )
    for reason in dict.fromkeys(record["absent"].values()):
        missing = ", ".join(name for name, why in record["absent"].items() if why == reason)
        console.print(f"Not computed: {missing}: {reason}.", markup=False)
    extremes = record["extremes"]
    echo(
        f"Largest variance: class {extremes['widest_class']} ({extremes['largest_variance']:.3g}, "
        f"median of all classes {extremes['median_variance']:.3g}). "
        f"Closest class means: classes {' and '.join(extremes['closest_classes'])} "
        f"(distance {extremes['smallest_distance']:.3g}, "
        f"median of all pairs {extremes['median_distance']:.3g})."
    )
    _print_verdicts(console, record["verdicts"])


def _print_metrics(console: "Console", record: Mapping[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    from protosphere.metrics.catalog import CATALOG

    explained = console.width >= _WIDE
    table = Table(box=box.SIMPLE_HEAD, title="Metrics", title_justify="left", pad_edge=False)
    table.add_column("metric", no_wrap=True)
    for heading in ("value", "at collapse", "attainable"):
        table.add_column(heading, justify="right", no_wrap=True)
    if explained:
        table.add_column("meaning")
    last = None
    for name, value in record["metrics"].items():
        definition = CATALOG[name]
        if last not in (None, definition.condition):
            table.add_section()
        last = definition.condition
        values = (value, record["at_collapse"][name], record["attainable"][name])
        table.add_row(name, *map(_format, values), *([definition.description] if explained else []))
    console.print(table)


def _print_verdicts(console: "Console", verdicts: Sequence[Mapping[str, Any]]) -> None:
    from rich import box
    from rich.table import Table

    title = "The four conditions of neural collapse"
    if console.width < _NARROW:
        console.print(title)
        for verdict in verdicts:
            condition, question = verdict["condition"], verdict["question"]
            text = f"{condition} {question} {verdict['answer']}: {verdict['explanation']}"
            console.print(text, markup=False)
        return
    table = Table(box=box.ROUNDED, show_lines=True, title=title, title_justify="left")
    table.add_column("")
    table.add_column("question and finding")
    table.add_column("answer", justify="center")
    for heading in ("value", "at collapse", "attainable"):
        table.add_column(heading, justify="right")
    for verdict in verdicts:
        color = _COLORS[verdict["answer"]]
        table.add_row(
            verdict["condition"],
            f"[bold]{verdict['question']}[/bold]\n{verdict['explanation']}",
            f"[{color}]{verdict['answer']}[/{color}]",
            *(_format(verdict[key]) for key in ("value", "at_collapse", "attainable")),
        )
    console.print(table)


def _format(value: float | None) -> str:
    if value is None:
        return "–"
    return "0" if abs(value) < 1e-12 else f"{value:.4g}"
