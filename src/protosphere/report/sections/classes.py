"""The section on classes: accuracy of each, the worst ones, and what they are confused with."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protosphere.report.class_accuracy import (
    class_accuracies,
    confused_columns,
    group_means,
    worst_classes,
)
from protosphere.report.colors import NEUTRAL, SEQUENTIAL, color_bar
from protosphere.report.content import Block, Figure, Note, Section, Table
from protosphere.report.curves import LEGEND, Method, finite, group_methods, shorten
from protosphere.report.final_results import describe_arrays
from protosphere.report.plotly_text import plain
from protosphere.report.run_arrays import (
    CLASS_ARRAYS,
    choose_runs,
    describe_choice,
    describe_missing,
    find_arrays,
    lack_alike,
    menu_of_runs,
)
from protosphere.report.run_shape import names_of_classes, unique_labels
from protosphere.report.sources import ReportData, RunData
from protosphere.report.typed_arrays import encode

_WORST, _MAX_COLUMNS = 20, 30
# Rows of the table of worst classes, shared by the runs.
_MAX_ROWS, _MAX_ROWS_OF_RUN = 60, 10
# Class counts in one proportion are not a long tail: splits round them.
_BALANCED = 1.5
_NUM_GROUPS = 10


def create_section(report: ReportData) -> Section | None:
    """Return the section on classes, or None if no run has results by class.

    Args:
        report: The runs.
    """
    methods = group_methods(report.runs)
    runs = choose_runs(methods, CLASS_ARRAYS)
    if not runs:
        return None
    blocks: list[Block] = [_create_sorted(methods)]
    counts = _create_counts(methods)
    blocks += [] if counts is None else [counts]
    blocks += _create_confusions(runs)
    colors = {method.name: method.color for method in methods}
    confidences = [
        _create_confidence(index, run, colors[run.method]) for index, run in enumerate(runs)
    ]
    blocks.append(menu_of_runs("class-confidences", runs, confidences))
    note = describe_missing(report.runs, CLASS_ARRAYS, "Results by class are not shown")
    # Otherwise, the section on geometry has the note.
    blocks += [] if note is None or lack_alike(report.runs) else [note]
    return Section(
        "classes",
        "Classes",
        f"Accuracy of each class on the images of the {describe_arrays(runs)}; the worst classes "
        "and what they are confused with." + describe_choice(methods, runs),
        tuple(blocks),
    )


def _arrays(run: RunData) -> dict[str, NDArray[Any]]:
    arrays = find_arrays(run, CLASS_ARRAYS)
    assert arrays is not None  # Only runs with arrays are chosen.
    return arrays


def _mean_accuracies(method: Method) -> tuple[RunData, NDArray[np.float64]] | None:
    """A run of the method and the accuracy of each class, the mean over runs of these classes."""
    runs = [run for run in method.runs if find_arrays(run, CLASS_ARRAYS) is not None]
    if not runs:
        return None
    accuracies = [class_accuracies(_arrays(run)["confusion"]) for run in runs]
    # Seeds of one method have the same classes; a run with others is left out.
    alike = [values for values in accuracies if len(values) == len(accuracies[0])]
    return runs[0], np.mean(alike, axis=0)


def _create_sorted(methods: Sequence[Method]) -> Figure:
    found = [(method, one) for method in methods if (one := _mean_accuracies(method)) is not None]
    # Ranks of different numbers of classes are comparable in percent only.
    in_percent = len({len(accuracies) for _, (_, accuracies) in found}) > 1
    traces = []
    for method, (run, accuracies) in found:
        names = names_of_classes(run, len(accuracies))
        order = [
            int(i) for i in np.argsort(accuracies, kind="stable") if np.isfinite(accuracies[i])
        ]
        ranks = np.arange(1, len(order) + 1)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(order) <= 50 else "lines",
                "name": method.label,
                "x": encode(100 * ranks / len(order) if in_percent else ranks),
                "y": encode(100 * accuracies[order]),
                "text": [plain(shorten(names[index], 40)) for index in order],
                "line": {"color": method.color, "dash": method.dash, "width": 2},
                "marker": {"size": 5, "color": method.color},
                "meta": plain(method.name),
                "hovertemplate": "%{fullData.meta}<br>%{text}: %{y:.1f}%<extra></extra>",
            }
        )
    unit = "% of the classes" if in_percent else "classes"
    return Figure(
        "class-accuracy",
        "Accuracy of classes",
        "Accuracy of each class"
        + (", the mean over seeds," if any(len(method.runs) > 1 for method in methods) else ",")
        + " sorted from the worst to the best class of each method, with the name of the class on "
        "hover; a line that starts higher is better for weak classes.",
        tuple(traces),
        {
            "xaxis": {"title": {"text": f"{unit}, by increasing accuracy"}},
            "yaxis": {"title": {"text": "accuracy (%)"}},
            "hovermode": "closest",
            "legend": LEGEND,
        },
    )


def _class_counts(run: RunData, num_classes: int) -> NDArray[np.float64] | None:
    """The numbers of training images, if they are known and not about equal."""
    counts = run.data.get("class_counts")
    if not isinstance(counts, list | tuple) or len(counts) != num_classes:
        return None
    numbers = np.array([finite(count) or 0.0 for count in counts])
    return numbers if numbers.min() > 0 and numbers.max() >= _BALANCED * numbers.min() else None


def _create_counts(methods: Sequence[Method]) -> Figure | None:
    """Accuracy against the number of training images, for methods with imbalanced classes."""
    traces: list[dict[str, Any]] = []
    for method in methods:
        if (found := _mean_accuracies(method)) is None:
            continue
        run, accuracies = found
        counts = _class_counts(run, len(accuracies))
        if counts is None:
            continue
        names = names_of_classes(run, len(accuracies))
        points = group_means(counts, 100 * accuracies, min(_NUM_GROUPS, len(counts)))
        shared = {"type": "scatter", "legendgroup": plain(method.name)}
        traces += [
            {
                **shared,
                "mode": "markers",
                "x": encode(counts),
                "y": encode(100 * accuracies),
                "text": [plain(shorten(name, 40)) for name in names],
                "marker": {"size": 5, "color": method.color, "opacity": 0.35},
                "meta": plain(method.name),
                "hovertemplate": "%{fullData.meta}<br>%{text}: %{y:.1f}%, "
                "%{x} training images<extra></extra>",
                "showlegend": False,
            },
            {
                **shared,
                "mode": "lines",
                "name": method.label,
                "x": [count for count, _ in points],
                "y": [value for _, value in points],
                "line": {"color": method.color, "dash": method.dash, "width": 2.5},
                "hoverinfo": "skip",
            },
        ]
    if not traces:
        return None
    return Figure(
        "accuracy-by-count",
        "Accuracy by number of training images",
        "Accuracy of each class against its number of training images (dots), and the mean "
        f"accuracy of up to {_NUM_GROUPS} groups of classes of similar size (lines).",
        tuple(traces),
        {
            "xaxis": {"title": {"text": "training images of the class"}, "type": "log"},
            "yaxis": {"title": {"text": "accuracy (%)"}},
            "hovermode": "closest",
            "legend": LEGEND,
        },
    )


def _create_confusions(runs: Sequence[RunData]) -> list[Block]:
    """The worst classes of the runs that have wrong predictions, as table and heat maps."""
    wrong = [run for run in runs if worst_classes(_arrays(run)["confusion"], 1)]
    if not wrong:
        return [Note("No run has a wrong prediction.")]
    maps = [_create_confusion(index, run) for index, run in enumerate(wrong)]
    return [_create_worst(wrong), menu_of_runs("confusion-maps", wrong, maps)]


def _create_worst(runs: Sequence[RunData]) -> Table:
    per_run = min(max(_MAX_ROWS // len(runs), 1), _MAX_ROWS_OF_RUN)
    rows = []
    for run in runs:
        confusion = _arrays(run)["confusion"]
        names = names_of_classes(run, len(confusion))
        rows += [
            (
                run.name,
                names[worst.index],
                f"{100 * worst.accuracy:.1f}%",
                str(worst.num_samples),
                names[worst.confused_with],
                f"{100 * worst.fraction:.1f}%",
            )
            for worst in worst_classes(confusion, per_run)
        ]
    return Table(
        "Worst classes",
        f"The classes of the lowest accuracy of each run, at most {per_run}, and the wrong class "
        "that is predicted most often for them, with its fraction of the images of the class.",
        ("Run", "Class", "Accuracy", "Images", "Most frequent wrong prediction", "Of the images"),
        tuple(rows),
    )


def _create_confusion(index: int, run: RunData) -> Figure:
    confusion = _arrays(run)["confusion"].astype(np.float64)
    worst = worst_classes(confusion, _WORST)
    rows = [one.index for one in worst]
    columns = confused_columns(confusion, rows, _MAX_COLUMNS)
    percent = 100 * confusion[np.ix_(rows, columns)] / confusion[rows].sum(1, keepdims=True)
    for place, row in enumerate(rows):
        percent[place, columns.index(row)] = np.nan
    names = unique_labels(names_of_classes(run, len(confusion)), length=20)
    trace = {
        "type": "heatmap",
        "z": encode(percent),
        "x": [names[column] for column in columns],
        "y": [f"{names[one.index]} ({100 * one.accuracy:.0f}%)" for one in worst],
        "colorscale": [list(stop) for stop in SEQUENTIAL],
        "zmin": 0,
        # A single class has one value, or none.
        "zmax": max(float(np.nanmax(percent, initial=0)), 1.0),
        "colorbar": color_bar("% of the images of the class"),
        "xgap": 0.5,
        "ygap": 0.5,
        "hovertemplate": "%{y}<br>%{z:.1f}% predicted as %{x}<extra></extra>",
        "hoverongaps": False,
    }
    weakest = (
        "the class of the lowest accuracy (the row, with its accuracy)"
        if len(rows) == 1
        else f"the {len(rows)} classes of the lowest accuracy (rows, with their accuracy)"
    )
    axis = {"type": "category", "showgrid": False, "automargin": True}
    return Figure(
        f"confusion-{index}",
        f"Confusion of the worst classes: {run.name}",
        f"Wrong predictions for {weakest}, in percent of the images of the class; correct "
        "predictions are left blank.",
        (trace,),
        {
            "xaxis": axis
            | {"title": {"text": "predicted class", "standoff": 20}, "tickangle": -90},
            "yaxis": axis | {"title": {"text": "true class"}, "autorange": "reversed", "dtick": 1},
        },
        height=260 + 20 * len(rows),
    )


def _create_confidence(index: int, run: RunData, color: str) -> Figure:
    arrays = _arrays(run)
    accuracies = 100 * class_accuracies(arrays["confusion"])
    confidences = 100 * arrays["class_confidence"].astype(np.float64)
    names = names_of_classes(run, len(accuracies))
    known = np.isfinite(accuracies) & np.isfinite(confidences)
    above = int((confidences[known] > accuracies[known]).sum())
    traces = (
        {
            "type": "scatter",
            "mode": "lines",
            "x": [0, 100],
            "y": [0, 100],
            "line": {"color": NEUTRAL, "dash": "dash", "width": 1.5},
            "hoverinfo": "skip",
            "showlegend": False,
        },
        {
            "type": "scatter",
            "mode": "markers",
            "x": encode(confidences[known]),
            "y": encode(accuracies[known]),
            "text": [plain(shorten(names[i], 40)) for i in np.flatnonzero(known).tolist()],
            "marker": {"size": 7, "opacity": 0.75, "color": color},
            "cliponaxis": False,
            "hovertemplate": "%{text}<br>confidence %{x:.1f}%, accuracy %{y:.1f}%<extra></extra>",
            "showlegend": False,
        },
    )
    values = np.concatenate([accuracies[known], confidences[known], [100.0]])
    limits = [max(float(values.min()) - 5, 0), 100]
    return Figure(
        f"class-confidence-{index}",
        f"Accuracy and confidence of classes: {run.name}",
        "Accuracy of each class against the mean softmax probability of its predictions; "
        f"predictions are overconfident below the dashed line, as for {above} of "
        f"{int(known.sum())} classes.",
        traces,
        {
            "xaxis": {"title": {"text": "mean confidence (%)"}, "range": limits},
            "yaxis": {"title": {"text": "accuracy (%)"}, "range": limits},
            "hovermode": "closest",
            "legend": LEGEND,
        },
    )
