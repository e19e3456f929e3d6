"""How commands tell of what is wrong: one sentence, and a status that is not zero."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

# What is an argument in Python is an option here.
_OPTIONS = {"classes='present'": "--classes present", "space='raw'": "--space raw"}
# How torch says so, on a GPU and on a CPU.
_SHORT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


@contextmanager
def told() -> Iterator[None]:
    """Turn errors that are sentences for the user into one line on stderr and status 1."""
    from rich.console import Console
    from rich.markup import escape

    try:
        yield
    except BrokenPipeError:  # Whoever read the output has enough of it.
        raise
    except (ValueError, RuntimeError, MemoryError, ImportError, OSError) as error:
        text = str(error).rstrip(".")
        short_of_memory = isinstance(error, MemoryError) or any(
            words in text for words in _SHORT_OF_MEMORY
        )
        # Torch says it wherever the program is at that moment, from a signal's handler.
        lost_worker = "DataLoader worker" in text
        # Of these, torch's own are no sentences for the user.
        foreign = isinstance(error, RuntimeError) and not type(error).__module__.startswith(
            "protosphere."
        )
        if foreign and not (short_of_memory or lost_worker):
            raise
        if lost_worker:
            text = (
                "processes that read images must live; one was killed, perhaps for want of memory"
            )
        elif short_of_memory:
            text = "there must be memory for this; there is too little (smaller batches or images take less)"
        elif isinstance(error, OSError):
            text = f"{error.filename or 'a file'} must be usable; {(error.strerror or 'it is not').lower()}"
        if isinstance(error, ImportError) and "pip install" not in text:
            text = f'{error.name} must be installed for this: pip install "protosphere[train]"; it is missing'
        for argument, option in _OPTIONS.items():
            text = text.replace(argument, option)
        end = "" if text.endswith("?") else "."
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"[red]Error:[/red] {escape(text)}{end}"
        )
        raise typer.Exit(1) from None
