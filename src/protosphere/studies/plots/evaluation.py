"""Figure of an evaluation: accuracy, confusion and confidence of classes, and neural collapse."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protosphere.evaluation.class_report import ClassResult, class_results
from protosphere.metrics.verdicts import graded_distances
from protosphere.report.colors import NEUTRAL, PALETTE, SEQUENTIAL
from protosphere.studies.plots.collapse import draw_conditions, draw_cosine_histogram
from protosphere.studies.plots.figures import create_figure, import_matplotlib, styled
from protosphere.studies.plots.looks import label, labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protosphere.evaluation.evaluate import Evaluation
    from protosphere.evaluation.probes import ProbeResult

# Bars of classes, and rows and columns of the confusion matrix.
_MAX_BARS, _MAX_ROWS, _MAX_COLUMNS = 20, 10, 12
# Points of classes that are named.
_MAX_NAMES = 3
# Points of confidence in excess of accuracy from which a class is named.
_NAMED_GAP = 2.0


@styled
def plot_evaluation(
    evaluation: "Evaluation",
    class_names: Sequence[str],
    *,
    probes: "Sequence[ProbeResult]" = (),
    split: str = "test",
    title: str | None = None,
) -> "Figure":
    """Draw an evaluation.

    The panels: accuracy of the classes, of many classes that of the weakest; the confusion of the
    weakest classes; accuracy over confidence, one point per class; the accuracies of all classes if
    there are many; the conditions of neural collapse; the cosines between classes; and the
    accuracies of probes, if there are any.

    Args:
        evaluation: The evaluation.
        class_names: Name of each class.
        probes: Results of other classifiers on the features.
        split: Images that were evaluated, test or validation.
        title: Text above the figure.

    Returns:
        The figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    arrays, metrics = evaluation.arrays, evaluation.metrics
    results = [one for one in class_results(arrays, class_names) if one.num_samples]
    is_large = len(results) > _MAX_BARS
    num_panels = 5 + is_large + bool(probes)
    figure, panels = create_figure(num_panels, columns=4 if num_panels > 6 else 3, size=(4.8, 4.1))
    left = iter(panels)
    _draw_classes(next(left), results, metrics["accuracy"], split)
    _draw_confusion(figure, next(left), arrays["confusion"], class_names)
    _draw_confidence(next(left), results)
    if is_large:
        _draw_distribution(next(left), results)
    num_classes, dim = arrays["class_means"].shape
    draw_conditions(next(left), graded_distances(metrics, num_classes, dim))
    cosines = {"class means": arrays["class_cosines"], "prototypes": arrays["prototype_cosines"]}
    draw_cosine_histogram(next(left), cosines, num_classes=num_classes)
    if probes:
        _draw_probes(next(left), probes, split)
    number = f"{100 * metrics['accuracy']:.2f}% accuracy on the {split} images"
    figure.suptitle(number if title is None else f"{label(title, 80)}: {number}", fontsize=11)
    return figure


def _accuracy(result: ClassResult) -> float:
    return 100 * result.num_correct / result.num_samples


def _draw_classes(axes: Any, results: Sequence[ClassResult], accuracy: float, split: str) -> None:
    """Draw the accuracy of each class, the weakest first."""
    shown = sorted(results, key=_accuracy)[:_MAX_BARS]
    _draw_horizontal_bars(axes, [_accuracy(one) for one in shown], color=PALETTE[0])
    axes.axvline(100 * accuracy, color="black", linestyle="--", linewidth=1.2)
    axes.set_yticks(range(len(shown)), labels([one.name for one in shown], 20))
    is_part = len(shown) < len(results)
    axes.set_title(
        f"The {len(shown)} weakest of {len(results):,} classes" if is_part else "Accuracy by class"
    )
    axes.set_xlabel(f"{split} accuracy in %  (dashed: all images)")


def _draw_horizontal_bars(axes: Any, values: Sequence[float], *, color: str) -> None:
    """Draw percentages from top to bottom, with their numbers at the right edge."""
    axes.barh(range(len(values)), values, height=0.7, color=color)
    for place, value in enumerate(values):
        axes.annotate(
            f"{value:.1f}", (1.01, place), xycoords=("axes fraction", "data"), fontsize=7,
            va="center",
        )  # fmt: skip
    axes.set_ylim(max(3.5, len(values) - 0.4), -0.6)
    axes.set_xlim(0, 100)
    axes.grid(visible=False, axis="y")


def _draw_confusion(
    figure: Any,
    axes: Any,
    confusion: NDArray[Any],
    class_names: Sequence[str],
) -> None:
    """Draw where the images of the weakest classes go, in percent of the images of a class."""
    totals = confusion.sum(1)
    with_images = np.flatnonzero(totals)
    accuracies = confusion.diagonal()[with_images] / totals[with_images]
    rows = with_images[np.argsort(accuracies, kind="stable")][:_MAX_ROWS].tolist()
    fractions = 100 * confusion[rows] / totals[rows, None]
    # The classes themselves in the same order, then those that most images are mistaken for.
    others = [
        one for one in np.argsort(-fractions.sum(0), kind="stable").tolist() if one not in rows
    ]
    mistaken = [one for one in others if fractions[:, one].any()]
    columns = [*rows, *mistaken[: max(0, _MAX_COLUMNS - len(rows))]]
    shown = fractions[:, columns]
    colors = import_matplotlib().colors.LinearSegmentedColormap.from_list("n", list(SEQUENTIAL))
    image = axes.imshow(shown, cmap=colors, vmin=0, vmax=100, aspect="auto")
    for (row, column), value in np.ndenumerate(shown):
        if value >= 0.5:
            color = "white" if value > 45 else "black"
            axes.text(
                column, row, f"{value:.0f}", ha="center", va="center", fontsize=6.5, color=color
            )
    axes.grid(visible=False)
    axes.set_xticks(
        range(len(columns)), labels([class_names[one] for one in columns], 13), rotation=90
    )
    axes.set_yticks(range(len(rows)), labels([class_names[one] for one in rows], 16))
    axes.set_title("Confusion of the weakest classes")
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    figure.colorbar(image, ax=axes, label="% of the true class").outline.set_visible(False)


def _draw_confidence(axes: Any, results: Sequence[ClassResult]) -> None:
    """Draw accuracy over mean confidence, one point per class."""
    confidences = [100 * (one.mean_confidence or 0.0) for one in results]
    accuracies = [_accuracy(one) for one in results]
    axes.scatter(confidences, accuracies, s=22, color=PALETTE[0], alpha=0.6, linewidths=0)
    low = max(0.0, min(*confidences, *accuracies) - 5)
    axes.plot([low, 100], [low, 100], color=NEUTRAL, linestyle=":")
    order = sorted(range(len(results)), key=lambda i: accuracies[i] - confidences[i])
    named: list[float] = []
    for index in order[:_MAX_NAMES]:
        is_free = all(abs(accuracies[index] - other) > 0.04 * (100 - low) for other in named)
        if accuracies[index] > confidences[index] - _NAMED_GAP or not is_free:
            continue
        named.append(accuracies[index])
        axes.annotate(
            label(results[index].name, 18),
            (confidences[index], accuracies[index]),
            xytext=(-5, -2),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=7,
        )
    axes.set_xlim(low, 101)
    axes.set_ylim(low, 102)
    axes.set_title("Confidence and accuracy, a point per class")
    # A legend would cover classes at 100%.
    axes.set_xlabel("mean confidence in %  (dotted: perfect calibration)")
    axes.set_ylabel("accuracy in %")


def _draw_distribution(axes: Any, results: Sequence[ClassResult]) -> None:
    """Draw how many classes have which accuracy."""
    values = [_accuracy(one) for one in results]
    axes.hist(values, bins=np.linspace(0, 100, 21), color=PALETTE[0], edgecolor="white")
    median = float(np.median(values))
    axes.axvline(median, color="black", linestyle="--", linewidth=1.2, label="median of classes")
    axes.set_title("Accuracies of all classes")
    axes.set_xlabel("accuracy in %")
    axes.set_ylabel("number of classes")
    axes.legend(loc="upper left")


def _draw_probes(axes: Any, probes: "Sequence[ProbeResult]", split: str) -> None:
    has_backbone = len({one.features for one in probes}) > 1
    names = [
        f"{one.name}, {one.features}" if has_backbone else one.name.replace("_", " ")
        for one in probes
    ]
    _draw_horizontal_bars(axes, [100 * one.accuracy for one in probes], color=PALETTE[2])
    axes.set_yticks(range(len(probes)), names)
    axes.set_title("Classifiers on the features")
    axes.set_xlabel(f"{split} accuracy in %")
