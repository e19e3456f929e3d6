"""Measuring neural collapse: every metric, from features at hand or streamed, and when training reaches it.

The parts are imported on first use: :mod:`protosphere.metrics.convergence` and :mod:`protosphere.metrics.catalog`
are pure Python and stay usable without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protosphere.metrics.catalog import CHEAP, DEFINITIONS, Definition, at_collapse, attainable
    from protosphere.metrics.frame import UndefinedMetricError
    from protosphere.metrics.measurement import Measurement, examine, measure
    from protosphere.metrics.streaming import NeuralCollapse

_HOMES = {
    "CHEAP": "catalog",
    "DEFINITIONS": "catalog",
    "Definition": "catalog",
    "Measurement": "measurement",
    "NeuralCollapse": "streaming",
    "UndefinedMetricError": "frame",
    "at_collapse": "catalog",
    "attainable": "catalog",
    "examine": "measurement",
    "measure": "measurement",
}

__all__ = [
    "CHEAP",
    "DEFINITIONS",
    "Definition",
    "Measurement",
    "NeuralCollapse",
    "UndefinedMetricError",
    "at_collapse",
    "attainable",
    "examine",
    "measure",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"protosphere.metrics.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'protosphere.metrics' has no attribute {name!r}")
