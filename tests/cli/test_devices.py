"""Devices: what ``--device auto`` finds, and what it says about their limits."""

import pytest
import torch

from protosphere.cli.devices import device_limits, resolve_device


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [
        (True, True, "cuda"),
        (True, False, "cuda"),
        (False, True, "mps"),
        (False, False, "cpu"),
    ],
)
def test_auto_finds_cuda_then_mps_then_the_cpu(
    cuda: bool, mps: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert resolve_device("auto") == expected


def test_a_device_that_is_there_is_taken() -> None:
    assert resolve_device("cpu") == "cpu"


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["mps", "cuda:99", "abacus"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    if name == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has MPS")
    with pytest.raises(ValueError, match=f"must be a device that is available here, .* got {name}"):
        resolve_device(name)


@pytest.mark.parametrize("device", ["mps", "mps:0"])
def test_the_limits_of_mps_are_one_sentence(device: str) -> None:
    limits = device_limits(device)
    assert limits is not None
    assert "float64" in limits
    assert "not compiled" in limits
    assert limits.count(". ") == 0
    assert limits.endswith(".")


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_other_devices_have_no_limits(device: str) -> None:
    assert device_limits(device) is None
