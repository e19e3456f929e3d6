"""How commands tell of what is wrong: sentences of the library as they are, of torch and the system in words."""

import errno

import pytest
import torch
import typer

from protosphere.cli.errors import told
from protosphere.training import TrainingError


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("labels must fit; they do not."), "Error: labels must fit; they do not."),
        (ValueError("did you mean epochs?"), "Error: did you mean epochs?\n"),
        (TrainingError("the loss must stay finite"), "Error: the loss must stay finite."),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            "Error: there must be memory for this",
        ),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
            "Error: there must be memory for this",
        ),
        (MemoryError(), "Error: there must be memory for this"),
        (
            RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed."),
            "Error: processes that read images",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "/run/x"),
            "Error: /run/x must be usable; no space left on",
        ),
        (
            ModuleNotFoundError("No module named 'timm'", name="timm"),
            "Error: timm must be installed for this: pip",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_one_sentence(error: Exception, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left, told():
        raise error
    assert left.value.exit_code == 1
    said = capsys.readouterr().err
    assert said.startswith(sentence)
    assert said.count("\n") == 1


def test_a_pipe_that_was_closed_is_no_error_to_tell(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BrokenPipeError), told():
        raise BrokenPipeError
    assert not capsys.readouterr().err


def test_a_defect_is_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="shapes"), told():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
