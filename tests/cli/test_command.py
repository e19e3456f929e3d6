"""The command itself: its version, a light start, output that cannot be written, warnings."""

import importlib.metadata
import logging
import subprocess
import sys
from pathlib import Path

import pytest

import protosphere
from support.commands import invoke, refusal, run_command


def test_version_is_the_installed_one() -> None:
    version = importlib.metadata.version("protosphere")
    assert run_command("--version").strip() == f"protosphere {version}"


@pytest.mark.whole_program
@pytest.mark.parametrize(
    "program",
    [
        "import protosphere; dir(protosphere)",
        *(
            f"from protosphere.cli.app import app; app({arguments}, standalone_mode=False)"
            for arguments in (["--help"], ["doctor", "--help"], ["train", "--help"])
        ),
    ],
)
def test_import_and_help_do_not_load_torch(program: str) -> None:
    check = f"import sys; {program}; assert not {{'torch', 'numpy'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-W", "error", "-c", check], check=True, capture_output=True)


def test_packages_are_imported_on_first_use() -> None:
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


@pytest.mark.bad_input
@pytest.mark.parametrize("command", ["compare", "benchmark", "evaluate"])
def test_torchrun_is_refused_where_processes_do_not_share_work(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    assert refusal(command) == f"protosphere {command} must be started without torchrun"


@pytest.mark.bad_input
def test_an_unknown_command_is_refused() -> None:
    assert invoke("trian").exit_code == 2


@pytest.mark.whole_program
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", ["recipes", "doctor", "--help"])
def test_output_that_cannot_be_written_is_one_line(command: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "protosphere", command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "Error: cannot write the output: no space left on device\n"


def test_warnings_are_printed_without_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for _ in range(2):  # One handler, however many commands run.
        run_command("recipes")
    logging.getLogger("protosphere.data").warning("%s has no images", "\x1b[31mfolder")
    assert capsys.readouterr().err == "Warning: \\x1b[31mfolder has no images\n"
