"""The section on training: loss, accuracy, learning rate and throughput over epochs."""

from typing import Any, NamedTuple

from protosphere.report.content import Figure, Note, Section
from protosphere.report.curves import (
    LEGEND,
    SEEDS,
    Method,
    curve_traces,
    group_methods,
    has_curve,
    have_markers,
    mean_curve,
    note_without_curves,
    read_series,
)
from protosphere.report.sources import ReportData


class _Plot(NamedTuple):
    """A figure of one logged value over epochs."""

    name: str
    title: str
    kind: str
    key: str
    axis: str
    hover: str
    meaning: str
    scale: float = 1.0
    layout: dict[str, Any] = {}  # noqa: RUF012  Never changed.


def create_section(report: ReportData) -> Section | None:
    """Return the section on training, or None if no run has logged anything.

    Args:
        report: The runs.
    """
    methods = group_methods(report.runs)
    has_seeds = any(len(method.runs) > 1 for method in methods)
    figures = [
        figure for plot in _plots(report) if (figure := _create_figure(plot, methods)) is not None
    ]
    if not figures:
        return None
    silent = [run.name for run in report.runs if not run.records]
    single = note_without_curves(report.runs)
    notes = [] if single is None else [single]
    if silent:
        text = f"Nothing was logged by {', '.join(silent)}: metrics.jsonl is missing or empty."
        notes.append(Note(text, kind="missing"))
    return Section(
        "training",
        "Training",
        "What the runs logged during training: the mean loss of each epoch, and the accuracy of "
        "each evaluation." + (f" {SEEDS}" if has_seeds else ""),
        (*figures, *notes),
    )


def _plots(report: ReportData) -> tuple[_Plot, ...]:
    splits = {str(record.get("split", "test")) for run in report.runs for record in run.evaluations}
    split = splits.pop() if len(splits) == 1 else "evaluation"
    return (
        _Plot(
            "training-loss",
            "Training loss",
            "train",
            "loss",
            "training loss",
            "loss {}",
            "Training loss by epoch; values of different losses have different scales and are not "
            "comparable with each other, only with themselves over time.",
        ),
        _Plot(
            "training-accuracy",
            f"Accuracy on {split} images",
            "evaluation",
            "accuracy",
            "accuracy (%)",
            "accuracy {}%",
            f"Accuracy at each evaluation on the {split} images, "
            + (
                "which are test images for some runs and validation images for others."
                if split == "evaluation"
                else "which no run was trained on."
            ),
            100.0,
        ),
        _Plot(
            "learning-rate",
            "Learning rate",
            "train",
            "lr",
            "learning rate",
            "learning rate {}",
            "Learning rate at each epoch; runs with the same schedule lie on one line.",
            layout={"yaxis": {"rangemode": "tozero"}},
        ),
        _Plot(
            "throughput",
            "Throughput",
            "train",
            "images_per_second",
            "images per second",
            "{} images/s",
            "Training images per second in each epoch, without evaluations; the first epoch "
            "includes compilation and warming up, and runs on different machines are not "
            "comparable.",
            layout={"yaxis": {"rangemode": "tozero"}},
        ),
    )


def _create_figure(plot: _Plot, methods: tuple[Method, ...]) -> Figure | None:
    curves = []
    for method in methods:
        series = []
        for run in method.runs:
            if plot.kind == "evaluation" and not has_curve(run):
                continue
            records = [record for record in run.records if record.get("kind") == plot.kind]
            points = read_series(records, plot.key)
            series.append([(epoch, plot.scale * value) for epoch, value in points])
        curves.append(mean_curve(series))
    markers = have_markers(curves)
    traces: list[dict[str, Any]] = []
    for method, curve in zip(methods, curves, strict=True):
        traces += curve_traces(method, curve, x="epoch {}", y=plot.hover, markers=markers)
    if not traces:
        return None
    layout = {
        "xaxis": {"title": {"text": "epoch"}},
        "yaxis": {"title": {"text": plot.axis}} | plot.layout.get("yaxis", {}),
        "hovermode": "closest",
        "legend": LEGEND,
    }
    return Figure(plot.name, plot.title, plot.meaning, tuple(traces), layout)
