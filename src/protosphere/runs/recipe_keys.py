"""Which keys of a stored recipe say what a run trains, and which only where it computes."""

from collections.abc import Mapping
from typing import Any

# Keys that say where and how a run computes, not what: they may change when it is resumed.
_MAY_CHANGE = (
    "data.root",
    "data.path",
    "data.classes",
    "data.class_groups",
    "data.workers",
    "loss.shard_prototypes",
    "training.compile",
    "training.fsdp",
)
_MAY_CHANGE_SECTIONS = ("evaluation.", "checkpoint.", "probe.")
# Another metric would have kept another best checkpoint.
_MUST_STAY = ("checkpoint.monitor",)


def is_compared(path: str) -> bool:
    """Return whether runs that differ in a key are trained differently.

    Args:
        path: Dotted path of the key.

    >>> is_compared("optimizer.lr"), is_compared("data.root")
    (True, False)
    """
    may_change = path in _MAY_CHANGE or path.startswith(_MAY_CHANGE_SECTIONS)
    return path in _MUST_STAY or not may_change


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested dictionaries by their dotted paths.

    Args:
        content: A recipe as plain values.
        prefix: Path of the content, with a dot at its end.

    >>> flatten({"loss": {"name": "ce"}, "seed": 1})
    {'loss.name': 'ce', 'seed': 1}
    """
    flat: dict[str, Any] = {}
    for name, value in content.items():
        path = f"{prefix}{name}"
        flat |= flatten(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return flat
