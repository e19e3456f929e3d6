"""Run commands of ``protosphere`` in this process."""

from typing import Any

from typer.testing import CliRunner

from protosphere.cli.app import app

_RUNNER = CliRunner()


def invoke(*arguments: object, columns: int | None = None) -> Any:
    """Run a command.

    Args:
        arguments: Command and its arguments.
        columns: Width of the terminal.

    Returns:
        The result, with ``exit_code``, ``stdout``, ``stderr`` and ``output`` (both streams).
    """
    env = None if columns is None else {"COLUMNS": str(columns)}
    words = [str(argument) for argument in arguments]
    return _RUNNER.invoke(app, words, env=env, catch_exceptions=False)


def run_command(*arguments: object, columns: int | None = None) -> str:
    """Run a command that must succeed, and return its standard output."""
    result = invoke(*arguments, columns=columns)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def refusal(*arguments: object) -> str:
    """Run a command that must fail with one line ``Error: ...``, and return the message."""
    result = invoke(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("Error: "), result.stderr
    return str(result.stderr).removeprefix("Error: ").rstrip("\n")


def usage_error(*arguments: object) -> str:
    """Run a command whose arguments must be refused by the parser, and return the message."""
    result = invoke(*arguments, columns=300)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return " ".join(result.stderr.split())


def set_options(**values: object) -> list[str]:
    """Return ``--set key=value`` options; a double underscore in a name stands for a dot."""
    return [
        word
        for name, value in values.items()
        for word in ("--set", f"{name.replace('__', '.')}={value}")
    ]
