"""The numbers of the paper's tables, to print beside measured ones."""

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def paper_tables() -> dict[str, Any]:
    """Return the tables of the paper, by name; percentages as printed."""
    source = resources.files("protosphere.studies") / "paper_tables.json"
    tables: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
    return tables


def paper_value(table: str, *keys: str) -> float | None:
    """Return a number of the paper.

    Args:
        table: Name of the table, such as ``"table6_long_tail"``.
        keys: Row and column, such as ``"nonl", "cifar100_lt_0.01"``.

    Returns:
        The number as printed, or None if the paper does not have it.

    >>> paper_value("table6_long_tail", "nonl", "cifar100_lt_0.01")
    40.0
    """
    value: Any = paper_tables()[table]
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return None if isinstance(value, dict | list) else float(value)
