"""Metrics of neural collapse: from stored features, streamed batches, and logged training runs.

Names are imported on first use: :mod:`protosphere.metrics.catalog`, ``verdicts`` and
``convergence`` are pure Python and work without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protosphere.metrics.catalog import CATALOG, CHEAP, at_collapse, attainable
    from protosphere.metrics.centered import UndefinedMetricError
    from protosphere.metrics.definition import MetricDefinition
    from protosphere.metrics.measurement import Measurement, measure, measure_detailed
    from protosphere.metrics.streaming import NeuralCollapse

_MODULES = {
    "CATALOG": "catalog",
    "CHEAP": "catalog",
    "Measurement": "measurement",
    "MetricDefinition": "definition",
    "NeuralCollapse": "streaming",
    "UndefinedMetricError": "centered",
    "at_collapse": "catalog",
    "attainable": "catalog",
    "measure": "measurement",
    "measure_detailed": "measurement",
}

__all__ = [
    "CATALOG",
    "CHEAP",
    "Measurement",
    "MetricDefinition",
    "NeuralCollapse",
    "UndefinedMetricError",
    "at_collapse",
    "attainable",
    "measure",
    "measure_detailed",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"protosphere.metrics.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'protosphere.metrics' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
