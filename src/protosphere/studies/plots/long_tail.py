"""Figure of runs on long-tailed data: accuracy by the number of training images of a class."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from protosphere.studies.plots.bars import bar_position, draw_bars, draw_paper, percentages
from protosphere.studies.plots.figures import create_figure, draw_legend, import_matplotlib, styled
from protosphere.studies.plots.looks import Look, label, looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protosphere.studies.long_tail import LongTailRow

# A calibrated temperature changes probabilities, not accuracy: it has no bars.
_CLASSIFIERS = {
    "head": "head",
    "logit_adjusted_head": "head, adjusted",
    "class_means": "class means",
    "whitened_class_means": "class means, whitened",
}
_GROUPS = {
    "all": "all",
    "many": "many\n(over 100)",
    "medium": "medium\n(20 to 100)",
    "few": "few\n(under 20)",
}
_NUM_BINS = 8


@styled
def plot_long_tail(
    runs: "Mapping[str, Sequence[LongTailRow]]", *, paper: Mapping[str, float] | None = None
) -> "Figure":
    """Draw accuracies on classes with many, medium and few training images.

    Several runs have one panel per classifier, and a single run one panel with all classifiers. The
    last panel has the accuracy over the number of training images of a class, averaged over classes
    of similar size: of the head of several runs, and of all classifiers of a single one.

    Args:
        runs: Rows by the name of the run.
        paper: The paper's accuracy of the head on all classes in percent, by the name of the run.

    Returns:
        The figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    measured = {row.classifier for rows in runs.values() for row in rows}
    classifiers = [name for name in _CLASSIFIERS if name in measured]
    groups = [
        name for name in _GROUPS if any(row.group == name for rows in runs.values() for row in rows)
    ]
    is_single = len(runs) == 1
    figure, panels = create_figure(2 if is_single else len(classifiers) + 1, size=(4.6, 3.6))
    texts = [_GROUPS[name] for name in groups]
    if is_single:
        ((name, rows),) = runs.items()
        series = {_CLASSIFIERS[one]: _values(rows, one, groups) for one in classifiers}
        drawn_as = looks(list(series))
        draw_bars(panels[0], texts, series, drawn_as=drawn_as)
        panels[0].set_title(label(name, 40))
        curves = {_CLASSIFIERS[one]: _curve(rows, one) for one in classifiers}
    else:
        drawn_as = looks(list(runs))
        for axes, classifier in zip(panels, classifiers, strict=False):
            series = {name: _values(rows, classifier, groups) for name, rows in runs.items()}
            draw_bars(axes, texts, series, drawn_as=drawn_as)
            axes.set_title(_CLASSIFIERS[classifier])
        first = classifiers[0]
        curves = {name: _curve(rows, first) for name, rows in runs.items()}
    if paper and classifiers[0] == "head":
        num_bars = len(classifiers) if is_single else len(runs)
        points = [
            (bar_position(0, index, num_bars), paper[name])
            for index, name in enumerate(runs)
            if name in paper
        ]
        draw_paper(panels[0], points, "the paper, head")
    for axes in panels[:-1]:
        axes.set_xlabel("training images of a class")
        axes.set_ylabel("accuracy in %")
    top = max(axes.get_ylim()[1] for axes in panels[:-1])
    for axes in panels[:-1]:
        axes.set_ylim(0, min(112, 1.12 * top))
    title = "By class size" if is_single else f"By class size, {_CLASSIFIERS[classifiers[0]]}"
    _draw_curves(panels[-1], curves, drawn_as, title)
    draw_legend(figure, panels)
    return figure


def _values(
    rows: "Sequence[LongTailRow]", classifier: str, groups: Sequence[str]
) -> list[float | None]:
    found = {row.group: row.accuracy for row in rows if row.classifier == classifier}
    return percentages([found.get(group) for group in groups])


def _curve(rows: "Sequence[LongTailRow]", classifier: str) -> tuple[list[float], list[float]]:
    """Return sizes of classes and their mean accuracy in percent, over classes of similar size."""
    classes = sorted(
        (row.train_images, row.accuracy)
        for row in rows
        if row.classifier == classifier and row.group == "class"
    )
    parts = [part for part in np.array_split(np.array(classes), _NUM_BINS) if len(part)]
    sizes = [float(np.exp(np.log(np.maximum(part[:, 0], 1)).mean())) for part in parts]
    return sizes, [float(100 * part[:, 1].mean()) for part in parts]


def _draw_curves(
    axes: Any,
    curves: Mapping[str, tuple[list[float], list[float]]],
    drawn_as: Mapping[str, Look],
    title: str,
) -> None:
    for name, (sizes, accuracies) in curves.items():
        look = drawn_as[name]
        axes.plot(
            sizes, accuracies, look.marker, color=look.color, linestyle=look.line, label=look.text
        )
    axes.set_xscale("log")
    ticker = import_matplotlib().ticker
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.set_xlabel("training images of a class (logarithmic)")
    axes.set_ylabel("mean accuracy of classes in %")
