"""The command: version, help without torch, and a doctor that tells the truth."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import protosphere
from protosphere.cli import doctor
from protosphere.cli.app import app

runner = CliRunner()


def test_version_is_the_installed_one() -> None:
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == f"protosphere {importlib.metadata.version('protosphere')}"


@pytest.mark.whole_program
@pytest.mark.parametrize(
    "program",
    [
        "import protosphere; dir(protosphere)",
        "from protosphere.cli.app import app; app(['--help'], standalone_mode=False)",
        "from protosphere.cli.app import app; app(['doctor', '--help'], standalone_mode=False)",
        "from protosphere.cli.app import app; app(['train', '--help'], standalone_mode=False)",
    ],
)
def test_import_and_help_do_not_load_torch(program: str) -> None:
    check = (
        f"import sys; {program}; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", check], check=True, capture_output=True)


def test_rooms_are_imported_on_first_use() -> None:
    assert protosphere.losses.nonl_loss is not None
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = protosphere.nonsense


@pytest.mark.whole_program
def test_module_runs_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "protosphere", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("protosphere ")


def test_doctor_is_well_here() -> None:
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert f"torch {importlib.metadata.version('torch')}" in " ".join(result.output.split())
    assert "All well" in result.output


def test_doctor_says_how_to_get_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str | None:
        return None if package == "plotly" else "1.0"

    monkeypatch.setattr(doctor, "_version", version)
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert 'To complete report: pip install "protosphere[report]"' in result.output


def test_doctor_fails_without_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "torch" else "1.0")
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "Not well: a package of the core is missing." in result.output


@pytest.mark.bad_input
def test_unknown_command() -> None:
    assert runner.invoke(app, ["trian"]).exit_code == 2


@pytest.mark.whole_program
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", ["recipes", "doctor", "--help"])
def test_output_without_room(command: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "protosphere", command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "Error: there must be room for what is printed; there is no space left.\n"
