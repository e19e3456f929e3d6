"""Requests to stop: noted once, interrupting when repeated, handlers restored."""

import signal

import pytest

from protosphere.cli.signals import STOPPING, catch_signals


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


@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_first_interrupt_is_noticed_at_once(
    rank: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)
    with catch_signals(notice=STOPPING):
        signal.raise_signal(signal.SIGTERM)
        assert capfd.readouterr().err == ""
    with catch_signals(notice=STOPPING):
        signal.raise_signal(signal.SIGINT)
        assert capfd.readouterr().err == (f"\n{STOPPING}\n" if rank == "0" else "")


def test_a_second_sigterm_still_waits_for_the_step() -> None:
    with catch_signals() as stop_requested:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop_requested()
