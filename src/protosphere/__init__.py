"""Supervised learning as learning class prototypes on the unit sphere.

The rooms are imported when first used, so that ``import protosphere`` costs nothing and does not load torch:

    from protosphere.losses import nonl_loss
    from protosphere.classifiers import CosineClassifier
"""

from importlib import import_module
from types import ModuleType

__version__ = "0.1.0"

_ROOMS = (
    "classifiers",
    "data",
    "encoders",
    "evaluation",
    "geometry",
    "kernels",
    "losses",
    "metrics",
    "recipes",
    "runs",
    "training",
)

__all__ = ["__version__", *_ROOMS]  # noqa: PLE0604


def __getattr__(name: str) -> ModuleType:
    if name in _ROOMS:
        return import_module(f"protosphere.{name}")
    raise AttributeError(f"module 'protosphere' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
