"""What ``protosphere sweep`` shows: a progress bar, a line per trial, and the table of trials."""

from typing import TYPE_CHECKING

from protosphere.cli.progress import BarDisplay, create_progress
from protosphere.cli.text import count, echo

if TYPE_CHECKING:
    from protosphere.runs.sweeps import SweepRecord, SweepTrial
    from protosphere.studies.sweep import SweepProgress


class SweepDisplay(BarDisplay):
    """Shows the progress of a sweep on standard error; called with each report.

    On a terminal there is a progress bar, and everywhere a line for each trial that is finished.
    """

    def __init__(self) -> None:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

        self._bar = create_progress(
            TextColumn("{task.fields[trials]}"),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        self._task = self._bar.add_task("loading", total=None, trials="")

    def __call__(self, progress: "SweepProgress") -> None:
        """Show a report."""
        from protosphere.cli.text import printable

        trial = progress.trial
        settings = _describe_settings(trial)
        self._bar.update(
            self._task,
            total=progress.num_trials,
            completed=trial.number + progress.fraction,
            trials=f"trial {trial.number + progress.fraction:.1f}/{progress.num_trials}",
            description=printable(settings),
        )
        if trial.state != "running":
            done = trial.number + 1
            note = ", the best so far" if progress.is_best else ""
            echo(
                f"trial {trial.number:04d} ({done} of {progress.num_trials}): {settings}: "
                f"{_describe_outcome(trial, progress.metric)}{note}",
                err=True,
            )


def _describe_settings(trial: "SweepTrial") -> str:
    from protosphere.report.phase_diagram import format_number

    return ", ".join(f"{key}={format_number(value)}" for key, value in trial.settings.items())


def _describe_outcome(trial: "SweepTrial", metric: str) -> str:
    from protosphere.cli.train_progress import format_metric

    if trial.error is not None:
        return f"failed: {trial.error}"
    if trial.value is None:
        epoch, value = trial.evaluations[-1]
        return f"pruned after epoch {epoch} at {format_metric(metric, value)}"
    return f"validation {metric.replace('_', ' ')} {format_metric(metric, trial.value)}"


def print_trials(record: "SweepRecord") -> None:
    """Print the trials as a table, the best first.

    Args:
        record: The record of the sweep.
    """
    from protosphere.cli.benchmark_table import MISSING, print_table
    from protosphere.cli.train_progress import format_metric
    from protosphere.report.phase_diagram import format_number

    def cells(trial: "SweepTrial") -> list[str]:
        settings = [
            format_number(trial.settings[one.key]) if one.key in trial.settings else MISSING
            for one in record.settings
        ]
        value = MISSING if trial.value is None else format_metric(record.metric, trial.value)
        if trial == record.best:
            note = "best"
        elif trial.state == "complete":
            note = "complete"
        elif trial.state == "running":  # By another process, or interrupted.
            note = "not finished"
        else:
            note = _describe_outcome(trial, record.metric)
        return [f"{trial.number:04d}", *settings, value, note]

    complete = sum(trial.state == "complete" for trial in record.trials)
    print_table(
        f"{record.name}: validation {record.metric.replace('_', ' ')}, {complete} of "
        f"{count(record.num_trials, 'trial')} complete",
        ["trial", *(one.key for one in record.settings), record.metric.replace("_", " "), ""],
        [cells(trial) for trial in sorted(record.trials, key=record.rank)],
    )
