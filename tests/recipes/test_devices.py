"""Devices: what ``"auto"`` finds, and devices that are not there."""

import pytest
import torch

from protosphere.recipes.devices import resolve_device


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
    assert resolve_device(torch.device("cpu")) == "cpu"


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["mps", "cuda:99", "abacus"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    if name == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has MPS")
    with pytest.raises(ValueError, match=f"must be a device that is available here, .* got {name}"):
        resolve_device(name)
