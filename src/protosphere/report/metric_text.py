"""How metrics are shown: in percent or as they are, with as many digits as they need."""

import math
from collections.abc import Iterable

_MOST_DECIMALS = 6

# Metrics with thresholds of convergence, in the order of the paper's Figure 2 and Table 7.
CONVERGENCE_METRICS = {
    "weight_instance_alignment": "‖prototype − sample‖²",
    "weight_class_alignment": "‖prototype − class mean‖²",
    "weights_effective_rank": "Effective rank of prototypes",
    "intra_effective_rank": "Effective rank within classes",
    "inter_effective_rank": "Effective rank of class means",
}


def is_percentage(metric: str) -> bool:
    """Return whether tables and pictures show a metric in percent.

    Args:
        metric: Name of the metric.
    """
    return metric.endswith("accuracy") or metric in ("ece", "adaptive_ece", "nc4_agreement")


def count_decimals(metric: str, values: Iterable[float]) -> int:
    """Return how many decimal places show four digits of the largest value, two of the smallest.

    Args:
        metric: Name of the metric; percentages have two.
        values: Finite values that are shown beside each other.

    >>> count_decimals("nc1_ratio", [0.5, 0.01]), count_decimals("accuracy", [0.5])
    (4, 2)
    """
    sizes = [abs(value) for value in values if value]
    if is_percentage(metric) or not sizes:
        return 2
    largest, smallest = (math.floor(math.log10(size)) for size in (max(sizes), min(sizes)))
    return min(max(3 - largest, 1 - smallest, 0), _MOST_DECIMALS)


def format_metric(metric: str, value: float, decimals: int, *, sign: str = "") -> str:
    """Return a value of a metric, times 100 for percentages.

    Args:
        metric: Name of the metric.
        value: The value.
        decimals: Number of decimal places.
        sign: ``"+"`` also shows the sign of positive values.

    >>> format_metric("accuracy", 0.7, 2, sign="+")
    '+70.00'
    """
    return f"{100 * value if is_percentage(metric) else value:{sign}.{decimals}f}"
