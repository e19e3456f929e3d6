"""Requests to stop: noted once, interrupting when repeated, handlers restored."""

import signal

import pytest

from protosphere.cli.signals import catch_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_requests_a_stop(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with catch_signals() as stop_requested:
        assert not stop_requested()
        signal.raise_signal(number)
        assert stop_requested()
    assert signal.getsignal(number) == before


def test_a_second_interrupt_is_immediate() -> None:
    with catch_signals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_second_sigterm_still_waits_for_the_step() -> None:
    with catch_signals() as stop_requested:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop_requested()
