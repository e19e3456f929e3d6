"""The numbers of the paper's tables, to print beside measured ones."""

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def paper_tables() -> dict[str, Any]:
    """Return the tables of the paper, by name; percentages as printed."""
    source = resources.files("protosphere.report") / "paper_tables.json"
    tables: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
    return tables


def paper_value(table: str, *keys: str | int) -> float | None:
    """Return a number of the paper.

    Args:
        table: Name of the table, such as ``"table6_long_tail"``.
        keys: Row and column, such as ``"nonl", "cifar100_lt_0.01"``; an integer is the place in
            a list.

    Returns:
        The number as printed, or None if the paper does not have it.

    >>> paper_value("table6_long_tail", "nonl", "cifar100_lt_0.01")
    40.0
    >>> paper_value("table13_five_seeds_mean_std", "cifar100", "nonl", 1)
    0.28
    """
    value: Any = paper_tables()[table]
    for key in keys:
        is_place = isinstance(value, list) and isinstance(key, int)
        if not is_place and not (isinstance(value, dict) and key in value):
            return None
        value = value[key]
    return None if isinstance(value, dict | list) else float(value)
