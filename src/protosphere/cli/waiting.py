"""A bar while work of a known length goes on, on a terminal; nothing elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar_of(what: str) -> Iterator[Callable[[float], None]]:
    """Show a bar.

    Args:
        what: is going on.

    Yields:
        A function of the share that is done.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    errors = Console(stderr=True)
    bar = Progress(
        TextColumn(what),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )
    with bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share: bar.update(task, completed=share)
