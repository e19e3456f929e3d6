"""How commands tell of what is wrong: one sentence, and a status that is not zero."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def told() -> Iterator[None]:
    """Turn errors that are sentences for the user into one line on stderr and status 1."""
    from rich.console import Console
    from rich.markup import escape

    try:
        yield
    except (ValueError, RuntimeError) as error:
        if type(error) is RuntimeError:
            raise
        text = str(error).rstrip(".")
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[red]Error:[/red] {escape(text)}.")
        raise typer.Exit(1) from None
