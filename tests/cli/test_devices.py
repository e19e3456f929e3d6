"""Devices: what commands say about their limits."""

import pytest

from protosphere.cli.devices import device_limits


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
