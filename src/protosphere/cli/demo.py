"""``protosphere demo``: six losses on handwritten digits, on any machine, and what became of their geometry."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from protosphere.evaluation.probes import Probe

_TITLES = {
    "ce": "cross-entropy",
    "normface": "NormFace",
    "ntce": "NTCE",
    "nonl": "NONL",
    "etf-dr": "ETF + DR",
    "scl": "SCL + means",
}
# A metric, its heading, and whether nearer to collapse is less or more of it.
_COLUMNS = (
    ("nc1_ratio", "NC1\nspread", "less"),
    ("inter_effective_rank", "NC2\nrank", "more"),
    ("nc2_angles", "NC2\nangles", "less"),
    ("nc3_cosine", "NC3\ntilt", "less"),
    ("nc4_agreement", "NC4\nagrees", "more"),
)
_LEGEND = (
    "Spread: variance within classes by that between them. Rank: directions that class means fill, of 9. Angles: how "
    "uneven those between class means are. Tilt: 1 − cos between a prototype and its class. Agrees: how often the "
    "classifier picks the nearest class mean. All of the training images. SCL has two views of each image and a "
    "projection; its prototypes are the class means, so they have no tilt."
)


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Keep the run folders here; otherwise they go.")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Of each loss.", min=1)] = 25,
) -> None:
    """Train six losses on handwritten digits on the CPU, and compare accuracy and geometry in one table."""
    from rich.console import Console

    from protosphere.cli.errors import told

    console = Console(highlight=False)
    with told(), TemporaryDirectory() as temporary:
        results = {}
        for loss, title in _TITLES.items():
            results[title] = _trained(loss, (out or Path(temporary)) / loss, epochs)
        saved = _probe((out or Path(temporary)) / "scl")
    _print(console, results)
    console.print(saved)
    runs = out or Path("runs")
    first = (
        ""
        if out
        else f"  protosphere demo --out {runs}                            keep the six runs\n"
    )
    console.print(
        f"What to try next:\n{first}"
        f"  protosphere measure {runs / 'nonl'}                        every metric of one run, in words\n"
        f"  protosphere train digits-nonl --set loss.temperature=0.1 --out {runs / 'mine'}\n"
        "  protosphere train cifar100-nonl --download --out runs/cifar    the real thing; bring a GPU\n"
        "  protosphere recipes                                        all there is",
        markup=False,
        soft_wrap=True,
    )


def _trained(loss: str, folder: Path, epochs: int) -> dict[str, float]:
    from protosphere.cli.waiting import bar_of
    from protosphere.recipes import build, catalog
    from protosphere.recipes.runner import execute, latest
    from protosphere.recipes.schema import with_settings
    from protosphere.runs import RunFolder

    settings = [f"optimization.epochs={epochs}", f"evaluate_every={epochs}", f"save_every={epochs}"]
    recipe = with_settings(catalog.recipe(f"digits-{loss}"), settings)
    numbers: dict[str, float] = {}
    with bar_of(f"{_TITLES[loss]:14}") as progress:
        for event in execute(recipe, RunFolder(folder), build.build_source(recipe), start="resume"):
            progress(event.progress.epoch / epochs)
            numbers = event.numbers or numbers
    # A run that was there already has logged them.
    return numbers or {
        name: value for name, value in (latest(folder) or {}).items() if isinstance(value, float)
    }


def _probe(folder: Path) -> str:
    """What class means save: a linear probe on the same features beside them."""
    from protosphere.cli.waiting import bar_of
    from protosphere.recipes.loading import load_run

    names: tuple[Probe, ...] = ("prototypes", "linear")
    with bar_of("a linear probe") as progress:
        found = load_run(folder).probed(names, metrics="none", progress=progress)
        results = {(one.name, one.space): one for one in found}
    means, linear = results["prototypes", "output"], results["linear", "body"]
    return (
        f"SCL needs no trained classifier: class means took {means.passes} pass and {means.seconds:.2f} s for "
        f"{100 * means.accuracy:.1f} %, a linear probe {linear.passes} passes and {linear.seconds:.1f} s for "
        f"{100 * linear.accuracy:.1f} %."
    )


def _print(console: "Console", results: dict[str, dict[str, float]]) -> None:
    from rich import box
    from rich.table import Table

    from protosphere.metrics import at_collapse

    table = Table(
        box=box.SIMPLE_HEAD, title="Handwritten digits, one small network", title_justify="left"
    )
    table.add_column("loss", no_wrap=True)
    for heading in ("test", "nearest\nmean", *(heading for _, heading, _ in _COLUMNS)):
        table.add_column(heading, justify="right")
    best = {
        key: _best({title: _digits(numbers[key]) for title, numbers in results.items()}, better)
        for key, _, better in _COLUMNS
    }
    for title, numbers in results.items():
        accuracies = [
            f"{100 * numbers[key]:.1f} %" for key in ("test_accuracy", "nearest_mean_accuracy")
        ]
        cells = [
            f"[green]{_digits(numbers[key])}[/green]"
            if title in best[key]
            else _digits(numbers[key])
            for key, _, _ in _COLUMNS
        ]
        table.add_row(title, *accuracies, *cells)
    table.add_section()
    ideal = [f"{at_collapse(key, 10):.3g}" for key, _, _ in _COLUMNS]
    table.add_row("[italic]at collapse[/italic]", "", "", *ideal)
    console.print(table)
    wins = {title: sum(title in leaders for leaders in best.values()) for title in results}
    closest = max(wins, key=lambda title: wins[title])
    share = f"best in {wins[closest]} of {len(_COLUMNS)} columns (green)"
    console.print(f"Closest to neural collapse: [bold]{closest}[/bold], {share}.")
    console.print(_LEGEND)


def _digits(value: float) -> str:
    return f"{value:.3g}" if value >= 0.01 else f"{value:.0e}" if value else "0"


def _best(shown: dict[str, str], better: str) -> set[str]:
    """Which of them show the best value; what looks the same is the same."""
    values = {title: float(text) for title, text in shown.items()}
    best = max(values.values()) if better == "more" else min(values.values())
    return {title for title, value in values.items() if value == best}
