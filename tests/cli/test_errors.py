"""Errors of commands: messages of the library unchanged, those of torch and the system in words."""

import errno

import pytest
import torch
import typer

from protosphere.cli.errors import report_errors
from protosphere.training import TrainingError


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("lr must be positive, got -1."), "Error: lr must be positive, got -1\n"),
        (ValueError("did you mean epochs?"), "Error: did you mean epochs?\n"),
        (TrainingError("the loss is not finite"), "Error: the loss is not finite\n"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            "Error: out of memory; smaller batches or images need less\n",
        ),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
            "Error: out of memory; smaller batches or images need less\n",
        ),
        (MemoryError(), "Error: out of memory; smaller batches or images need less\n"),
        (
            RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed."),
            "Error: a process that loads images was killed, possibly because memory ran out\n",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "/run/x"),
            "Error: cannot use /run/x: no space left on device\n",
        ),
        (
            ModuleNotFoundError("No module named 'timm'", name="timm"),
            'Error: timm is not installed: pip install "protosphere[train]"\n',
        ),
        (
            ValueError("give classes='present' to leave it out"),
            "Error: give --classes present to leave it out\n",
        ),
        (
            ValueError("\x1b[2Jclass \u202ecat\n[bold]must be new"),
            "Error: \\x1b[2Jclass \\u202ecat\\n[bold]must be new\n",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_one_line_and_status_1(
    error: Exception, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as exit_info, report_errors():
        raise error
    assert exit_info.value.exit_code == 1
    assert capsys.readouterr().err == line


def test_a_closed_pipe_is_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BrokenPipeError), report_errors():
        raise BrokenPipeError
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        ModuleNotFoundError("No module named 'protosphere.x'", name="protosphere.x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_defect_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)), report_errors():
        raise error
