"""Metrics that runs are compared by: names, and which values are better. Pure Python."""

import difflib
from collections.abc import Iterable, Sequence

from protosphere.metrics.catalog import CATALOG, at_collapse, select
from protosphere.runs.comparison import ComparedMetric, Direction

# What an evaluation measures beside the metrics of the catalog.
EVALUATION_METRICS: dict[str, Direction] = {
    "accuracy": "higher",
    "nearest_mean_accuracy": "higher",
    "balanced_accuracy": "higher",
    "train_accuracy": "higher",
    "loss": "lower",
    "ece": "lower",
    "adaptive_ece": "lower",
}
# What a table shows unless other metrics are chosen.
SHOWN_METRICS = (
    "accuracy",
    "nearest_mean_accuracy",
    "nc1_ratio",
    "inter_effective_rank",
    "weight_class_alignment",
    "nc2_simplex",
)


def select_metrics(names: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics that a selection stands for, in the order of the selection.

    Args:
        names: Names of metrics, or groups of the catalog such as ``"nc2"``; with none, those that
            tables show by default.

    Raises:
        ValueError: There is no such metric.

    >>> select_metrics(["accuracy", "nc3"])
    ('accuracy', 'nc3_cosine', 'nc3_duality')
    """
    groups = {row.group for row in CATALOG.values()}
    known = [*EVALUATION_METRICS, "all", *sorted(groups), *CATALOG]
    selected: list[str] = []
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ValueError(f"a metric must be one that runs are evaluated by, got {name}{hint}")
        selected += [name] if name in EVALUATION_METRICS else select(name)
        if name == "all":
            selected = [*EVALUATION_METRICS, *selected]
    return tuple(dict.fromkeys(selected)) or SHOWN_METRICS


def describe_metrics(names: Iterable[str], num_classes: int) -> tuple[ComparedMetric, ...]:
    """Return which values of metrics are better, in the order of tables.

    Args:
        names: Names that runs have logged; those that are no metrics are left out.
        num_classes: Number of classes.
    """
    logged = set(names)
    found = [
        ComparedMetric(name, direction)
        for name, direction in EVALUATION_METRICS.items()
        if name in logged
    ]
    for name, row in CATALOG.items():
        if name in logged:
            target = at_collapse(name, num_classes) if row.direction == "target" else None
            is_open = row.direction == "target" and target is None
            found.append(ComparedMetric(name, None if is_open else row.direction, target))
    return tuple(found)
