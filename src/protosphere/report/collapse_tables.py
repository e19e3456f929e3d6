"""Tables of neural collapse at the end of runs: metrics beside their optimum, and conditions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from protosphere.metrics.catalog import CATALOG, at_collapse
from protosphere.metrics.verdicts import Verdict, verdicts
from protosphere.report.content import Table
from protosphere.report.curves import Method, finite
from protosphere.report.run_shape import feature_dim, num_classes
from protosphere.report.sources import RunData

_TABLE_METRICS = (
    "nc1_ratio",
    "intra_effective_rank",
    "inter_effective_rank",
    "nc2_simplex",
    "weights_effective_rank",
    "nc3_cosine",
    "weight_class_alignment",
    "weight_instance_alignment",
    "nc4_agreement",
)


def _last_values(run: RunData) -> dict[str, float]:
    """The metrics of the last evaluation."""
    record: Mapping[str, Any] = run.evaluations[-1] if run.evaluations else {}
    return {name: value for name in CATALOG if (value := finite(record.get(name))) is not None}


def create_metrics(methods: Sequence[Method]) -> Table | None:
    """Return the metrics of the last evaluation of each method; None if none was measured.

    Args:
        methods: The methods.
    """
    values = {method.name: [_last_values(run) for run in method.runs] for method in methods}
    values = {name: kept for name, rows in values.items() if (kept := [row for row in rows if row])}
    metrics = [
        name
        for name in _TABLE_METRICS
        if any(name in row for rows in values.values() for row in rows)
    ]
    if not metrics:
        return None
    rows: list[tuple[str, ...]] = [("value at collapse", *map(_text_at_collapse, metrics))]
    means: dict[tuple[int, int], float] = {}
    for name, measured in values.items():
        cells = [name]
        for column, metric in enumerate(metrics, start=1):
            numbers = [row[metric] for row in measured if metric in row]
            cells.append(_mean_text(numbers))
            if numbers:
                means[len(rows), column] = float(np.mean(numbers))
        rows.append(tuple(cells))
    return Table(
        "Metrics of collapse at the last evaluation",
        "Metrics of the training features and prototypes at the last evaluation, mean ± standard "
        "deviation over seeds, with the value at neural collapse for K classes; the value nearest "
        "to it is bold.",
        ("method", *(f"{CATALOG[name].condition}: {name}" for name in metrics)),
        tuple(rows),
        _nearest(methods, metrics, means, rows),
    )


def _text_at_collapse(metric: str) -> str:
    form = CATALOG[metric].at_collapse
    return "–" if form is None else form.text


def _mean_text(numbers: Sequence[float]) -> str:
    if not numbers:
        return "–"
    mean = f"{np.mean(numbers):.3g}"
    return mean if len(numbers) == 1 else f"{mean} ± {np.std(numbers, ddof=1):.2g}"


def _nearest(
    methods: Sequence[Method],
    metrics: Sequence[str],
    means: Mapping[tuple[int, int], float],
    rows: Sequence[tuple[str, ...]],
) -> frozenset[tuple[int, int]]:
    """The cells nearest to the value at collapse, where all methods have the same classes."""
    classes = {num_classes(run) for method in methods for run in method.runs}
    if len(rows) < 3 or len(classes) != 1 or (count := classes.pop()) is None or count < 2:
        return frozenset()
    best = set()
    for column, metric in enumerate(metrics, start=1):
        target = at_collapse(metric, count)
        distances = {
            cell: abs(value - target)
            for cell, value in means.items()
            if cell[1] == column and target is not None
        }
        best |= {cell for cell in distances if distances[cell] == min(distances.values())}
    return frozenset(best)


def create_conditions(methods: Sequence[Method]) -> Table | None:
    """Return how far each method meets the four conditions; None if nothing was measured.

    Args:
        methods: The methods.
    """
    rows = []
    for method in methods:
        measured = [row for run in method.runs if (row := _last_values(run))]
        classes, dim = num_classes(method.runs[0]), feature_dim(method.runs[0])
        if not measured or classes is None or classes < 2:
            continue
        values = {
            name: float(np.mean([row[name] for row in measured if name in row]))
            for name in CATALOG
            if any(name in row for row in measured)
        }
        # Without a known dimension, none is assumed that would rule out a simplex.
        judged = verdicts(values, {}, classes, dim or classes)
        rows.append((method.name, *map(_verdict_text, judged)))
    if not rows:
        return None
    return Table(
        "The four conditions of neural collapse",
        "Whether the last evaluation meets each condition, in words, from the mean over seeds.",
        (
            "method",
            "NC1: features at their class mean",
            "NC2: class means form a simplex",
            "NC3: prototypes are class means",
            "NC4: head predicts the nearest mean",
        ),
        tuple(rows),
    )


def _verdict_text(verdict: Verdict) -> str:
    if verdict.answer == "not measured":
        return verdict.answer
    return f"{verdict.answer}: {verdict.explanation}"
