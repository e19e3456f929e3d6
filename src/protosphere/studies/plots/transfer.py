"""Figure of transfer: classifiers on frozen features by set, and few-shot curves."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protosphere.studies.plots.bars import bar_position, draw_bars, draw_paper, percentages
from protosphere.studies.plots.figures import create_figure, draw_legend, import_matplotlib, styled
from protosphere.studies.plots.looks import Look, label, labels, looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protosphere.studies.transfer import TransferRow

_CLASSIFIERS = {
    "logistic": "logistic regression",
    "class_means": "class means",
    "whitened_class_means": "class means, whitened",
    "knn": "20 nearest neighbors",
}
_METRICS = {"top1": "accuracy", "mean_per_class": "mean per class", "map": "mAP"}
_AXES = {"top1": "accuracy", "mean_per_class": "mean accuracy per class", "map": "mAP"}
_LINES = {"class_means": "-", "whitened_class_means": "--", "logistic": ":", "knn": "-."}


@styled
def plot_transfer(
    runs: "Mapping[str, Sequence[TransferRow]]",
    *,
    paper: Mapping[str, Mapping[str, float]] | None = None,
) -> "Figure":
    """Draw how well classifiers on frozen features do on other sets of images.

    One panel per classifier has bars by set and run. One panel per set has the few-shot results:
    mean and standard deviation over the random draws, for each number of training images per class.

    Args:
        runs: Rows by the name of the run.
        paper: The paper's numbers for the linear classifier in percent, by the name of the run and
            by set.

    Returns:
        The figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    everything = [row for rows in runs.values() for row in rows]
    full = [row for row in everything if row.shots is None]
    classifiers = [one for one in _CLASSIFIERS if any(row.classifier == one for row in full)]
    targets = list(dict.fromkeys(row.target for row in everything))
    few_shot = [
        one for one in targets if any(row.target == one and row.shots for row in everything)
    ]
    metrics = {row.target: _METRICS[row.metric] for row in everything}
    figure, panels = create_figure(len(classifiers) + len(few_shot), size=(4.6, 3.6))
    drawn_as = looks(list(runs))
    texts = [
        text + ("" if metrics[one] == "accuracy" else f"\n({metrics[one]})")
        for one, text in zip(targets, labels(targets), strict=True)
    ]
    for axes, classifier in zip(panels, classifiers, strict=False):
        found = {
            name: {
                row.target: row.value
                for row in rows
                if (row.classifier, row.shots) == (classifier, None)
            }
            for name, rows in runs.items()
        }
        series = {
            name: percentages([values.get(one) for one in targets])
            for name, values in found.items()
        }
        draw_bars(axes, texts, series, drawn_as=drawn_as)
        if len(targets) > 3:
            axes.set_xticks(
                range(len(texts)), texts, rotation=35, ha="right", rotation_mode="anchor"
            )
        axes.set_ylim(0, 112)
        axes.set_title(_CLASSIFIERS[classifier])
        axes.set_ylabel("accuracy in %" if set(metrics.values()) == {"accuracy"} else "score in %")
        if classifier == "logistic":
            points = [
                (bar_position(place, index, len(runs)), paper[name][target])
                for index, name in enumerate(runs)
                for place, target in enumerate(targets)
                if paper is not None and target in paper.get(name, {})
            ]
            draw_paper(axes, points)
    for axes, target in zip(panels[len(classifiers) :], few_shot, strict=True):
        for name, rows in runs.items():
            own = [row for row in rows if row.target == target and row.shots is not None]
            _draw_few_shot(axes, drawn_as[name], own)
        axes.set_xscale("log")
        ticker = import_matplotlib().ticker
        shots = sorted({row.shots for row in everything if row.target == target and row.shots})
        axes.set_xticks(shots, [str(one) for one in shots])
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.set_title(f"Few-shot: {label(target)}")
        axes.set_xlabel("training images per class (logarithmic)")
        metric = next(row.metric for row in everything if row.target == target)
        axes.set_ylabel(f"{_AXES[metric]} in %")
    if few_shot:
        _draw_line_styles(panels[len(classifiers)], everything)
    draw_legend(figure, panels[: len(classifiers)])
    return figure


def _draw_few_shot(axes: Any, look: Look, rows: "Sequence[TransferRow]") -> None:
    for classifier in dict.fromkeys(row.classifier for row in rows):
        own = sorted(
            (row for row in rows if row.classifier == classifier), key=lambda row: row.shots or 0
        )
        is_plain = classifier == "class_means"
        axes.errorbar(
            [row.shots for row in own],
            [100 * row.value for row in own],
            yerr=[100 * (row.std or 0.0) for row in own],
            fmt=look.marker,
            color=look.color,
            linestyle=_LINES[classifier],
            fillstyle="full" if is_plain else "none",
            capsize=2,
            linewidth=1.2,
        )


def _draw_line_styles(axes: Any, rows: "Sequence[TransferRow]") -> None:
    """Say which line stands for which classifier; colors are those of the runs."""
    used = [one for one in _CLASSIFIERS if any(row.classifier == one and row.shots for row in rows)]
    line = import_matplotlib().lines.Line2D
    handles = [
        line(
            [], [], color="black", marker="o", linestyle=_LINES[one],
            fillstyle="full" if one == "class_means" else "none",
        )
        for one in used
    ]  # fmt: skip
    axes.legend(handles, [_CLASSIFIERS[one] for one in used], loc="upper left")
