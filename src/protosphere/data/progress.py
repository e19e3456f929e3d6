"""Reports of progress: a function that is called with the fraction that is done."""

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[float], None]


def no_progress(_: float) -> None:
    """Ignore the progress."""
