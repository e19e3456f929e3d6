"""Checks of settings, in constructors and when pydantic reads the settings from a recipe."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_args

Settings = TypeVar("Settings")

_EXPECTED: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    tuple[float, float]: "two numbers",
}


def check_number(name: str, value: Any, *, low: float = -math.inf, high: float = math.inf) -> None:
    """Raise ValueError unless a value is a finite number between two bounds.

    >>> check_number("hflip", 2, low=0.0, high=1.0)
    Traceback (most recent call last):
    ValueError: hflip must be between 0 and 1, got 2
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be between {low:g} and {high:g}, got {value}")


def check_integer(name: str, value: Any, *, low: int) -> None:
    """Raise ValueError unless a value is an integer of at least ``low``.

    >>> check_integer("num_views", True, low=1)
    Traceback (most recent call last):
    ValueError: num_views must be an integer, got True
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")


def check_name(value: Any, name: str) -> None:
    """Raise ValueError unless the ``name`` of a settings class is the given one.

    >>> check_name("center", "padded")
    Traceback (most recent call last):
    ValueError: name must be 'padded', got 'center'
    """
    if value != name:
        raise ValueError(f"name must be {name!r}, got {value!r}")


def check_interval(name: str, value: Any, *, high: float = math.inf) -> tuple[float, float]:
    """Return two positive numbers in ascending order as a tuple.

    Raises:
        ValueError: The value is anything else, or exceeds ``high``.

    >>> check_interval("scale", [0.2, 1.0], high=1.0)
    (0.2, 1.0)
    """
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"{name} must be two numbers, got {value!r}")
    for bound in value:
        check_number(name, bound)
    if not 0 < value[0] <= value[1] <= high:
        limit = f" and at most {high:g}" if math.isfinite(high) else ""
        raise ValueError(
            f"{name} must be two ascending numbers greater than 0{limit}, got {list(value)}"
        )
    return value[0], value[1]


def pydantic_settings(cls: type[Settings]) -> type[Settings]:
    """Make pydantic strict about a dataclass: no unknown keys, no text or booleans as numbers.

    Pydantic looks for these two attributes, and its schemas are plain dictionaries, so that it
    does not need to be installed.
    """
    expected = {
        field.name: _EXPECTED.get(field.type, "a mapping of settings or null")
        for field in fields(cls)  # type: ignore[arg-type]
        if field.name != "name"
    }

    def check(values: Any) -> Any:
        for name in expected if isinstance(values, Mapping) else ():
            value = values.get(name)
            entries = value if isinstance(value, list | tuple) else [value]
            if any(isinstance(entry, bool | str) for entry in entries):
                raise ValueError(f"{name} must be {expected[name]}, got {value!r}")
        return values

    def schema(_: type, source: Any, handler: Any) -> dict[str, Any]:
        function = {"type": "no-info", "function": check}
        return {"type": "function-before", "function": function, "schema": handler(source)}

    cls.__pydantic_config__ = {"extra": "forbid"}  # type: ignore[attr-defined]
    cls.__get_pydantic_core_schema__ = classmethod(schema)  # type: ignore[attr-defined]
    return cls


class ChosenByName:
    """Annotation of a union of settings classes: pydantic chooses one by its ``name``."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        """Return a tagged union of the classes."""
        choices = {choice.name: handler.generate_schema(choice) for choice in get_args(source)}
        return {"type": "tagged-union", "discriminator": "name", "choices": choices}
