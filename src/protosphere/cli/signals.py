"""Requests to stop: SIGTERM (preemption) and Ctrl-C are answered after the current step."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def catch_signals() -> Iterator[Callable[[], bool]]:
    """Catch SIGTERM and the first Ctrl-C; a second Ctrl-C interrupts immediately.

    Yields:
        A function that returns whether the command was asked to stop.
    """
    requested = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        if requested and number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        requested = True

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: requested
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
