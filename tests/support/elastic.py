"""Train under the agent of torchrun, with workers that are copies of a process with all imports."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from support.processes import forkserver_context

# Longer than any test takes.
_TIMEOUT = 240


def run_elastic(
    options: list[str],
    arguments: list[str],
    output: Path,
    *,
    killed: int,
    number: signal.Signals = signal.SIGKILL,
) -> int:
    """Run a command as ``torchrun [options] -m protosphere [arguments]`` would.

    Args:
        options: Options of torchrun.
        arguments: Arguments of the command.
        output: File for what the launcher and its workers print.
        killed: Rank that sends itself a signal after its first epoch, at the first attempt.
        number: The signal.

    Returns:
        The exit status of the launcher.
    """
    launcher = forkserver_context().Process(
        target=_launch, args=(options, arguments, str(output), killed, number)
    )
    launcher.start()
    launcher.join(timeout=_TIMEOUT)
    if launcher.is_alive():
        launcher.terminate()  # It ends its workers, with SIGKILL after 30 seconds.
        launcher.join(timeout=60)
        launcher.kill()
        launcher.join()
    assert launcher.exitcode is not None
    return launcher.exitcode


def _launch(
    options: list[str], arguments: list[str], output: str, killed: int, number: signal.Signals
) -> None:
    from torch.distributed import run
    from torch.distributed.launcher.api import elastic_launch

    def launch_copies(config: Any, entrypoint: str) -> Callable[..., Any]:
        assert entrypoint == sys.executable
        return lambda *_: elastic_launch(config, _work)(arguments, output, killed, number)

    _print_to(output)
    forkserver_context()  # The launcher has a server of its own.
    with patch.object(run, "elastic_launch", launch_copies):
        run.main([*options, "--start-method=forkserver", "-m", "protosphere", *arguments])


def _work(arguments: list[str], output: str, killed: int, number: signal.Signals) -> None:
    """The command in a worker, as its module runs it."""
    from protosphere.cli.app import run
    from protosphere.recipes import runner

    _print_to(output)
    sys.argv = ["protosphere", *arguments]
    run_recipe = runner.run_recipe

    def run_until_killed(*args: Any, **options: Any) -> Iterator[runner.Event]:
        for event in run_recipe(*args, **options):
            if event.progress.at_epoch_end:
                os.kill(os.getpid(), number)
            yield event

    is_killed = os.environ["RANK"] == str(killed)
    if is_killed and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        patch.object(runner, "run_recipe", run_until_killed).start()
    try:
        run()
    except SystemExit as end:
        # The agent would take it for an error of the function.
        if end.code:
            raise


def _print_to(output: str) -> None:
    file = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
