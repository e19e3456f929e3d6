"""``protosphere doctor``: packages of the core and of extras, devices."""

import importlib.metadata

import pytest

from protosphere.cli import doctor
from support.commands import invoke, run_command


def test_this_installation_is_fine() -> None:
    output = run_command("doctor")
    assert f"torch {importlib.metadata.version('torch')}" in " ".join(output.split())
    assert "OK: a NONL loss and its gradient are finite" in output


def test_a_missing_extra_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "onnx" else "1.0")
    output = run_command("doctor")
    assert "not installed (optional)" in output
    assert "incomplete" not in output
    assert 'To install export (optional): pip install "protosphere[export]"' in output


def test_a_missing_core_package_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "torch" else "1.0")
    result = invoke("doctor")
    assert result.exit_code == 1
    assert "incomplete" in result.output
    assert "Problem: a core package is missing" in result.output
