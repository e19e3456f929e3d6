"""Progress bars on a terminal; nothing where standard error is a file or a pipe."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on standard error while work of a known length runs.

    Args:
        description: Text in front of the bar.

    Yields:
        A function to call with the fraction that is done, between 0 and 1.
    """
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    bar = create_progress(
        TextColumn(description),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with bar:
        task = bar.add_task(description, total=1.0)
        yield lambda fraction: bar.update(task, completed=fraction)


class BarDisplay:
    """Base class of displays with a progress bar ``_bar``, shown while the context is active."""

    _bar: "Progress"

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()


def create_progress(*columns: "ProgressColumn") -> "Progress":
    """Create a progress display on standard error, disabled unless that is a terminal.

    Args:
        columns: Columns of the display.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        # On a terminal, lines are printed above the bar. Elsewhere they must stay on standard
        # output, which rich would redirect to standard error.
        redirect_stdout=sys.stdout.isatty(),
    )
