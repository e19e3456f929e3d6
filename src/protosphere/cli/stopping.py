"""How a command is asked to stop: by SIGTERM (preemption) or Ctrl-C, after the step that is under way."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Take note of SIGTERM and of the first Ctrl-C; a second Ctrl-C interrupts at once.

    Yields:
        A function that says whether the command was asked to stop.
    """
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        asked = True

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
