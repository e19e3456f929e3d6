"""How commands tell of what is wrong: one sentence, and a status that is not zero."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

# What is an argument in Python is an option here.
_OPTIONS = {"classes='present'": "--classes present", "space='raw'": "--space raw"}


@contextmanager
def told() -> Iterator[None]:
    """Turn errors that are sentences for the user into one line on stderr and status 1."""
    from rich.console import Console
    from rich.markup import escape

    try:
        yield
    except (ValueError, RuntimeError, MemoryError, ImportError) as error:
        # Of these, torch's own are no sentences for the user.
        if isinstance(error, RuntimeError) and not type(error).__module__.startswith("protosphere."):
            raise
        text = str(error).rstrip(".") or "there must be memory for this; there is too little"
        if isinstance(error, ImportError) and "pip install" not in text:
            text = f'{error.name} must be installed for this: pip install "protosphere[train]"; it is missing'
        for argument, option in _OPTIONS.items():
            text = text.replace(argument, option)
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[red]Error:[/red] {escape(text)}.")
        raise typer.Exit(1) from None
