"""Tables of neural collapse at the end of runs: metrics beside their optimum, and conditions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from protosphere.metrics.catalog import CATALOG, at_collapse
from protosphere.metrics.verdicts import Verdict, verdicts
from protosphere.report.content import Table
from protosphere.report.curves import Method, finite
from protosphere.report.final_results import (
    counted_runs,
    describe_evaluations,
    final_evaluation,
)
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


def _final_values(run: RunData) -> dict[str, float]:
    """The metrics of the evaluation that the results of the run are of."""
    record: Mapping[str, Any] = final_evaluation(run) or {}
    return {name: value for name in CATALOG if (value := finite(record.get(name))) is not None}


def create_metrics(methods: Sequence[Method]) -> Table | None:
    """Return the metrics at the end of the runs of each method; None if none was measured.

    Args:
        methods: The methods.
    """
    values = {
        method.name: [_final_values(run) for run in counted_runs(method.runs)] for method in methods
    }
    values = {name: kept for name, rows in values.items() if (kept := [row for row in rows if row])}
    metrics = [
        name
        for name in _TABLE_METRICS
        if any(name in row for rows in values.values() for row in rows)
    ]
    if not metrics:
        return None
    classes = _common_classes(methods)
    texts = [_text_at_collapse(name, classes) for name in metrics]
    rows: list[tuple[str, ...]] = [("value at collapse", *texts)]
    means: dict[tuple[int, int], float] = {}
    has_seeds = any(len(measured) > 1 for measured in values.values())
    for name, measured in values.items():
        cells = [name]
        for column, metric in enumerate(metrics, start=1):
            numbers = [row[metric] for row in measured if metric in row]
            cells.append(_mean_text(numbers))
            if numbers:
                # As it is shown: means that look equal are equally near.
                means[len(rows), column] = float(f"{np.mean(numbers):.3g}")
        rows.append(tuple(cells))
    best = _nearest(metrics, means, classes)
    return Table(
        "Metrics of collapse",
        f"Metrics of the training features and prototypes at the {_which(methods)}"
        + (", as mean ± standard deviation over seeds," if has_seeds else ",")
        + " with the value at neural collapse in the first row"
        + ("; the values nearest to it are bold." if best else "."),
        ("Method", *(f"{CATALOG[name].condition}: {name}" for name in metrics)),
        tuple(rows),
        best,
    )


def _which(methods: Sequence[Method]) -> str:
    return describe_evaluations(run for method in methods for run in counted_runs(method.runs))


def _common_classes(methods: Sequence[Method]) -> int | None:
    """The number of classes of all runs; None if it differs or is not known."""
    numbers = {num_classes(run) for method in methods for run in method.runs}
    count = numbers.pop() if len(numbers) == 1 else None
    return count if count is not None and count >= 2 else None


def _text_at_collapse(metric: str, classes: int | None) -> str:
    """The value at collapse, or its formula in K where runs have different numbers of classes."""
    form = CATALOG[metric].at_collapse
    if form is None:
        return "–"
    return form.text if classes is None else f"{form(classes):.4g}"


def _mean_text(numbers: Sequence[float]) -> str:
    if not numbers:
        return "–"
    mean = f"{np.mean(numbers):.3g}"
    return mean if len(numbers) == 1 else f"{mean} ± {np.std(numbers, ddof=1):.2g}"


def _nearest(
    metrics: Sequence[str], means: Mapping[tuple[int, int], float], classes: int | None
) -> frozenset[tuple[int, int]]:
    """The cells nearest to the value at collapse, of at least two methods."""
    if classes is None or len({row for row, _ in means}) < 2:
        return frozenset()
    best = set()
    for column, metric in enumerate(metrics, start=1):
        target = at_collapse(metric, classes)
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
        measured = [row for run in counted_runs(method.runs) if (row := _final_values(run))]
        classes, dim = num_classes(method.runs[0]), feature_dim(method.runs[0])
        num_samples = method.runs[0].data.get("num_train")
        if not measured or classes is None or classes < 2:
            continue
        values = {
            name: float(np.mean([row[name] for row in measured if name in row]))
            for name in CATALOG
            if any(name in row for row in measured)
        }
        # Without a known dimension, none is assumed that would rule out a simplex.
        judged = verdicts(
            values,
            {},
            classes,
            dim or classes,
            num_samples=num_samples if isinstance(num_samples, int) else None,
        )
        rows.append((method.name, *map(_verdict_text, judged)))
    if not rows:
        return None
    return Table(
        "The four conditions of neural collapse",
        f"Whether each condition is met at the {_which(methods)}, with the metric that says so "
        "(mean over seeds); for NC2 the effective rank and the norms of class means count too.",
        (
            "Method",
            "NC1: features at their class mean (nc1_ratio)",
            "NC2: class means form a simplex (nc2_simplex)",
            "NC3: prototypes are class means (nc3_cosine)",
            "NC4: head predicts the nearest mean (nc4_agreement)",
        ),
        tuple(rows),
    )


def _verdict_text(verdict: Verdict) -> str:
    value = "" if verdict.value is None else f" ({verdict.value:.3g})"
    return verdict.answer + value
