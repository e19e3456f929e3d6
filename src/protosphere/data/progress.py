"""Reports of progress: a function that is called with the fraction that is done."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

Progress: TypeAlias = Callable[[float], None]


def no_progress(_: float) -> None:
    """Ignore the progress."""


def split_progress(progress: Progress, sizes: Sequence[int]) -> list[Progress]:
    """Divide a report of progress into stages.

    Args:
        progress: Called with the fraction of all stages that is done.
        sizes: How much work each stage is.

    Returns:
        One function per stage, to be called with the fraction of the stage that is done.

    >>> seen = []
    >>> first, second = split_progress(seen.append, [1, 3])
    >>> first(1.0), second(0.5)
    (None, None)
    >>> seen
    [0.25, 0.625]
    """
    total = sum(sizes)
    stages: list[Progress] = []
    for index, size in enumerate(sizes):
        start = sum(sizes[:index])

        def report(fraction: float, *, start: int = start, size: int = size) -> None:
            progress((start + fraction * size) / total)

        stages.append(report)
    return stages
