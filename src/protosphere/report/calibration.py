"""Calibration in a report: errors before and after temperature scaling, reliability diagrams."""

from collections.abc import Mapping, Sequence

from protosphere.report.benchmark_rows import (
    CLASSIFIERS,
    Benchmark,
    MethodResults,
    number,
    result_label,
)
from protosphere.report.colors import NEUTRAL, PALETTE
from protosphere.report.content import Block, Choice, Figure
from protosphere.report.curves import shorten
from protosphere.report.method_plots import Dots, Style, draw_dots
from protosphere.report.summaries import Summary
from protosphere.report.summary_tables import Column, TableRow, create_table

_STATES = {"before": "before scaling", "after": "after scaling"}
# Fraction of the images that a bin must have to be drawn: others show noise.
_LEAST_IMAGES = 0.002
# Classifier, state and name of a number.
_CalibrationKey = tuple[str, str, str]


def _calibration_values(benchmark: Benchmark) -> dict[_CalibrationKey, float]:
    return {
        (row["classifier"], row["state"], name): value
        for row in benchmark.rows
        for name in ("accuracy", "ece", "nll", "temperature")
        if (value := number(row, name)) is not None
    }


def show_calibration(groups: Sequence[MethodResults]) -> list[Block]:
    """Return a table and a figure of calibration errors before and after temperature scaling.

    Args:
        groups: Results of the benchmark ``calibration``.
    """
    values = [group.summarize(_calibration_values) for group in groups]
    classifiers = {
        name: CLASSIFIERS.get(name, name)
        for name in dict.fromkeys(key[0] for one in values for key in one)
    }
    rows = []
    for name, label in classifiers.items():
        for group, found in zip(groups, values, strict=True):
            if not any(key[0] == name for key in found):
                continue
            cells = (
                found.get((name, "before", "accuracy")) or found.get((name, "after", "accuracy")),
                found.get((name, "before", "ece")),
                found.get((name, "after", "ece")),
                found.get((name, "before", "nll")),
                found.get((name, "after", "nll")),
                found.get((name, "after", "temperature")),
            )
            titles = (group.method, group.data, label, str(group.num_runs))
            rows.append(TableRow(titles, cells, (group.data, name)))
    table = create_table(
        "Calibration",
        "Expected calibration error (ECE) and negative log-likelihood (NLL) before and after "
        "temperature scaling, as mean ± standard deviation over runs; the best of each column on "
        "the same data is bold. A fitted temperature above 1 means that the logits were "
        "overconfident.",
        titles=("Method", "Data", "Classifier", "Runs"),
        columns=(
            Column("Accuracy (%)", "higher"),
            Column("ECE before (%)", "lower"),
            Column("ECE after (%)", "lower"),
            Column("NLL before", "lower", scale=1, digits=3),
            Column("NLL after", "lower", scale=1, digits=3),
            Column("Fitted temperature", scale=1, digits=2),
        ),
        rows=rows,
        optional=("Data", "Classifier"),
    )
    options = [
        (label, _draw_errors(index, name, label, groups, values))
        for index, (name, label) in enumerate(classifiers.items())
    ]
    return [table, Choice("calibration-errors", "Classifier", tuple(options))]


def _draw_errors(
    index: int,
    classifier: str,
    label: str,
    groups: Sequence[MethodResults],
    values: Sequence[Mapping[_CalibrationKey, Summary]],
) -> Figure:
    labels = [result_label(group, groups) for group in groups]
    dots = [
        Dots(
            state_label,
            Style(NEUTRAL, "circle-open") if state == "before" else Style(PALETTE[0]),
            {
                name: found
                for name, one in zip(labels, values, strict=True)
                if (found := one.get((classifier, state, "ece")))
            },
        )
        for state, state_label in _STATES.items()
    ]
    return draw_dots(
        f"calibration-errors-{index}",
        f"Expected calibration error: {label}",
        "Mean gap between confidence and accuracy before and after temperature scaling",
        reading="farther left is better calibrated",
        categories={name: name for name in labels},
        dots=dots,
        value_title="expected calibration error (%)",
        axis={"rangemode": "tozero"},
    )


def draw_reliability(groups: Sequence[MethodResults], styles: Mapping[str, Style]) -> list[Block]:
    """Return reliability diagrams; nothing if there are no images in any bin.

    Args:
        groups: Results of the benchmark ``reliability``.
        styles: Style of each method.
    """
    options: list[tuple[str, Figure]] = []
    classifiers = dict.fromkeys(
        row["classifier"] for group in groups for one in group.benchmarks for row in one.rows
    )
    for name in classifiers:
        for group in groups:
            bins = {state: _merge_bins(group, name, state) for state in _STATES}
            if not any(bins.values()):
                continue
            label = f"{result_label(group, groups)}, {CLASSIFIERS.get(name, name)}"
            figure = _draw_bins(len(options), label, bins, styles[group.method].color)
            options.append((label, figure))
    return [Choice("reliability", "Method and classifier", tuple(options))] if options else []


def _merge_bins(
    group: MethodResults, classifier: str, state: str
) -> list[tuple[float, float, float]]:
    """Confidence, accuracy and fraction of all images of each bin, over all runs of a method."""
    sums: dict[float, tuple[float, float, float]] = {}
    for benchmark in group.benchmarks:
        for row in benchmark.rows:
            count = number(row, "num_samples")
            confidence, accuracy = number(row, "confidence"), number(row, "accuracy")
            if (row["classifier"], row["state"]) != (classifier, state) or not count:
                continue
            if confidence is None or accuracy is None:
                continue
            old = sums.get(row["lower"], (0.0, 0.0, 0.0))
            sums[row["lower"]] = (
                old[0] + count * confidence,
                old[1] + count * accuracy,
                old[2] + count,
            )
    total = sum(count for _, _, count in sums.values())
    return [
        (confidence / count, accuracy / count, count / total)
        for _, (confidence, accuracy, count) in sorted(sums.items())
        if count >= _LEAST_IMAGES * total
    ]


def _draw_bins(
    index: int,
    label: str,
    bins: Mapping[str, Sequence[tuple[float, float, float]]],
    color: str,
) -> Figure:
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "perfect calibration",
            "x": [0, 100],
            "y": [0, 100],
            "line": {"color": NEUTRAL, "dash": "dot", "width": 1.5},
            "hoverinfo": "skip",
        }
    ]
    for state, points in bins.items():
        if not points:
            continue
        is_after = state == "after"
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": _STATES[state],
                "x": [100 * confidence for confidence, _, _ in points],
                "y": [100 * accuracy for _, accuracy, _ in points],
                "text": [
                    f"{_STATES[state]}<br>confidence {100 * confidence:.1f}%, accuracy "
                    f"{100 * accuracy:.1f}%<br>{100 * fraction:.1f}% of the images"
                    for confidence, accuracy, fraction in points
                ],
                "hoverinfo": "text",
                "line": {
                    "color": color if is_after else NEUTRAL,
                    "dash": "solid" if is_after else "dash",
                    "width": 2,
                },
                # The area of a marker shows how many images the bin has.
                "marker": {
                    "color": color if is_after else NEUTRAL,
                    "symbol": "circle" if is_after else "circle-open",
                    "size": [5 + 15 * fraction**0.5 for _, _, fraction in points],
                },
            }
        )
    return Figure(
        f"reliability-{index}",
        f"Reliability diagram: {shorten(label, 60)}",
        "Accuracy of the images whose confidence lies in the same bin; on the diagonal confidences "
        "are right, below it they are too high, and larger markers stand for more images. Bins "
        "with fewer than 0.2% of the images are left out.",
        tuple(traces),
        {
            "xaxis": {"title": {"text": "mean confidence (%)"}, "range": [-2, 102]},
            "yaxis": {"title": {"text": "accuracy (%)"}, "range": [-2, 102]},
            "hovermode": "closest",
            "showlegend": True,
        },
        height=440,
    )
