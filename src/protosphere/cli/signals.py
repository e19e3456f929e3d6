"""Requests to stop: SIGTERM (preemption) and Ctrl-C are answered after the current step."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = "Stopping after this step; press Ctrl-C again to stop at once"


@contextmanager
def catch_signals(*, notice: str | None = None) -> Iterator[Callable[[], bool]]:
    """Catch SIGTERM and the first Ctrl-C; a second Ctrl-C interrupts immediately.

    Args:
        notice: Line to write on standard error at the first Ctrl-C, by the first process of a
            group.

    Yields:
        A function that returns whether the command was asked to stop.
    """
    requested = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        if requested and number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        if notice and number == signal.SIGINT and os.environ.get("RANK", "0") == "0":
            # Not print: the signal may have come while something else was being printed.
            os.write(2, f"\n{notice}\n".encode())
        requested = True

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: requested
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
