"""Errors of commands: one line on standard error and exit status 1."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

import typer

# An argument in Python is an option on the command line.
_OPTIONS = {
    "classes='present'": "--classes present",
    "space='raw'": "--space raw",
    "device must be a device": "--device must be a device",
}
# Torch's words on a GPU and on a CPU.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


@contextmanager
def report_errors() -> Iterator[None]:
    """Print errors that users can act on as one line ``Error: ...`` and exit with status 1.

    Other errors are defects of the program and keep their traceback.
    """
    from rich.console import Console
    from rich.text import Text

    from protosphere.cli.text import printable

    try:
        yield
    except BrokenPipeError:  # The reader of the output has closed it.
        raise
    except (ValueError, RuntimeError, MemoryError, ImportError, OSError) as error:
        message = _message(error)
        if message is None:
            raise
        line = Text.assemble(("Error:", "red"), " ", printable(message))
        Console(stderr=True, highlight=False, soft_wrap=True).print(line)
        raise typer.Exit(1) from None


def _message(error: Exception) -> str | None:
    """The message to print; None for an error that is not meant for users."""
    text = re.sub(r"(?<=[^\s./])\.$", "", str(error))  # Not of a path such as "." or "..".
    # Torch raises this one wherever the program is, from a signal handler.
    if "DataLoader worker" in text:
        return "a process that loads images was killed, possibly because memory ran out"
    if isinstance(error, MemoryError) or any(words in text for words in _OUT_OF_MEMORY):
        return "out of memory; smaller batches or images need less"
    if _is_foreign(error):
        return None
    if isinstance(error, OSError):
        return f"cannot use {error.filename or 'a file'}: {(error.strerror or text).lower()}"
    if isinstance(error, ImportError) and "pip install" not in text:
        return f'{error.name} is not installed: pip install "protosphere[train]"'
    for argument, option in _OPTIONS.items():
        text = text.replace(argument, option)
    return text


def _is_foreign(error: Exception) -> bool:
    """Whether an error is not for the user, or not to be reported here."""
    if isinstance(error, ImportError):
        return (error.name or "").startswith("protosphere")
    if isinstance(error, OSError):  # Of the output, which `run` reports.
        return error.errno == errno.ENOSPC and error.filename is None
    # RuntimeErrors of the library are written for users, those of torch are not.
    is_own = type(error).__module__.startswith("protosphere.")
    return isinstance(error, RuntimeError) and not is_own
