"""``protosphere benchmark``: what a trained run is worth in practice, one command per question."""

from collections.abc import Callable
from typing import Any

import typer

from protosphere.cli.benchmark_calibration import calibration
from protosphere.cli.benchmark_convergence import convergence
from protosphere.cli.benchmark_corruptions import corruptions
from protosphere.cli.benchmark_label_noise import label_noise
from protosphere.cli.benchmark_long_tail import long_tail
from protosphere.cli.benchmark_ood import ood
from protosphere.cli.benchmark_transfer import transfer
from protosphere.cli.options import Command, Group
from protosphere.cli.text import echo


class _Benchmark(Command):
    """A command that says how it continues when it is interrupted."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            echo("Interrupted; the same command continues with what is missing", err=True)
            raise


app = typer.Typer(
    name="benchmark",
    help="Measure what trained runs are worth in practice. Results are kept in the run folders; a "
    "benchmark that was interrupted continues where it stopped.",
    no_args_is_help=True,
    cls=Group,
)
# Name on the command line, and the command.
_COMMANDS: dict[str, Callable[..., None]] = {
    "calibration": calibration,
    "convergence": convergence,
    "corruptions": corruptions,
    "label-noise": label_noise,
    "long-tail": long_tail,
    "ood": ood,
    "transfer": transfer,
}
for _name, _command in _COMMANDS.items():
    app.command(name=_name, cls=_Benchmark)(_command)
