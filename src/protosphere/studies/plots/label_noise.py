"""Figure of runs with label noise: test accuracy, and what becomes of wrongly labeled images."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protosphere.report.colors import BAD, GOOD
from protosphere.studies.plots.bars import draw_bars, percentages
from protosphere.studies.plots.figures import create_figure, draw_legend, styled
from protosphere.studies.plots.looks import labels, looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protosphere.studies.label_noise import LabelNoiseRow

_CLASSIFIERS = {
    "head": "head",
    "class_means": "class means",
    "whitened_class_means": "class means,\nwhitened",
}
_OTHER = "#c9ced6"


@styled
def plot_label_noise(
    runs: "Mapping[str, Sequence[LabelNoiseRow]]", *, methods: Mapping[str, str] | None = None
) -> "Figure":
    """Draw the results of runs that were trained with wrong labels.

    The panels: accuracy of each classifier on the test images; accuracy of the head on the training
    images with the labels that were trained on and with the true ones; which label the wrongly
    labeled images get; and, if runs of one method have different fractions of wrong labels, the
    accuracy over the fraction.

    Args:
        runs: Rows by the name of the run.
        methods: Name of the loss, by the name of the run.

    Returns:
        The figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    trained = {name: _trained(rows) for name, rows in runs.items()}
    by_method = _by_method(trained, methods or {})
    figure, panels = create_figure(
        3 + bool(by_method), columns=2 if by_method else 3, size=(5.0, 3.8)
    )
    drawn_as = looks(list(runs))
    measured = {row.classifier for rows in runs.values() for row in rows}
    names = [one for one in _CLASSIFIERS if one in measured]
    series = {
        name: percentages([_value(rows, one) for one in names]) for name, rows in runs.items()
    }
    draw_bars(panels[0], [_CLASSIFIERS[one] for one in names], series, drawn_as=drawn_as)
    panels[0].set_title("Accuracy by classifier")
    series = {
        name: percentages([row.given_accuracy, row.true_accuracy]) for name, row in trained.items()
    }
    draw_bars(panels[1], ["labels trained on", "true labels"], series, drawn_as=drawn_as)
    panels[1].set_title("Training images, head")
    for axes in panels[:2]:
        axes.set_ylim(0, 112)
        axes.set_ylabel("accuracy in %")
    _draw_wrong(panels[2], trained)
    if by_method:
        _draw_fractions(panels[3], by_method)
    draw_legend(figure, panels[:2])
    return figure


def _trained(rows: "Sequence[LabelNoiseRow]") -> "LabelNoiseRow":
    """Return the row of the head; the head of a contrastive run is its class means."""
    found = {row.classifier: row for row in rows}
    return found.get("head", found["class_means"])


def _value(rows: "Sequence[LabelNoiseRow]", classifier: str) -> float | None:
    return next((row.accuracy for row in rows if row.classifier == classifier), None)


def _by_method(
    trained: "Mapping[str, LabelNoiseRow]", methods: Mapping[str, str]
) -> "dict[str, list[LabelNoiseRow]]":
    """Return the rows of each method, if one has several fractions of wrong labels."""
    grouped: dict[str, list[LabelNoiseRow]] = {}
    for name, row in trained.items():
        if name in methods:
            grouped.setdefault(f"{methods[name]}, {row.noise}", []).append(row)
    has_several = any(len({row.fraction for row in rows}) > 1 for rows in grouped.values())
    return grouped if has_several else {}


def _draw_wrong(axes: Any, trained: "Mapping[str, LabelNoiseRow]") -> None:
    """Draw which label wrongly labeled training images get."""
    for place, row in enumerate(trained.values()):
        start = 0.0
        parts = (
            ("wrong label: memorized", row.memorized, BAD),
            ("another label", max(0.0, 1 - row.memorized - row.corrected), _OTHER),
            ("true label: corrected", row.corrected, GOOD),
        )
        for text, fraction, color in parts:
            width = 100 * fraction
            name = text if not place else None
            axes.barh(place, width, left=start, height=0.7, color=color, label=name)
            if width >= 8:
                axes.text(
                    start + width / 2, place, f"{width:.0f}", ha="center", va="center", fontsize=7
                )
            start += width
    texts = [
        f"{name}\n{100 * row.fraction:g}% {row.noise}"
        for name, row in zip(labels(list(trained)), trained.values(), strict=True)
    ]
    axes.set_yticks(range(len(trained)), texts)
    axes.set_ylim(max(2.5, len(trained) - 0.4), -0.6)
    axes.set_xlim(0, 100)
    axes.grid(visible=False)
    axes.set_title("Training images with a wrong label")
    axes.set_xlabel("images in %, by the label that they get")
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.4, -0.16),
        ncols=3,
        handlelength=1.0,
        columnspacing=0.8,
    )


def _draw_fractions(axes: Any, by_method: "Mapping[str, Sequence[LabelNoiseRow]]") -> None:
    drawn_as = looks(list(by_method))
    for name, rows in by_method.items():
        look, own = drawn_as[name], sorted(rows, key=lambda row: row.fraction)
        axes.plot(
            [100 * row.fraction for row in own],
            [100 * row.accuracy for row in own],
            look.marker,
            color=look.color,
            linestyle=look.line,
            label=look.text,
        )
    axes.set_ylim(bottom=0)
    axes.set_title("Accuracy over the fraction of wrong labels")
    axes.set_xticks(sorted({100 * row.fraction for rows in by_method.values() for row in rows}))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("wrong labels in %")
    axes.set_ylabel("accuracy in %")
    axes.legend()
