"""What ``protosphere train`` shows while it trains: a progress bar, or one line per epoch."""

from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING

from protosphere.cli.progress import BarDisplay, create_progress
from protosphere.cli.text import echo

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

    from protosphere.recipes.runner import Event

# Columns of the terminal from which on the bar shows more.
_WIDE = 110
# Metrics shown after an evaluation, and their labels.
_SHOWN = {
    "accuracy": "{split} accuracy",
    "nearest_mean_accuracy": "nearest class mean",
    "nc1_ratio": "nc1_ratio",
}


def format_metric(name: str, value: float) -> str:
    """Return a value in percent if it is an accuracy, otherwise as it is."""
    return f"{100 * value:.2f}%" if name.endswith("accuracy") else f"{value:.4g}"


class TrainProgress(BarDisplay):
    """Shows the events of a run; a context manager that is called with each event.

    On a terminal there is a progress bar, and a line above it for each evaluation. Elsewhere there
    is one line for each epoch.

    Args:
        epochs: Number of epochs of the run.
        split: Split that the run is evaluated on.
        monitor: The monitored metric, which is shown too.
    """

    def __init__(self, epochs: int, split: str, monitor: str | None = None) -> None:
        self.epochs, self.split = epochs, split
        self._shown = {"accuracy": _SHOWN["accuracy"]}
        if monitor is not None:
            self._shown[monitor] = f"{{split}} {monitor.replace('_', ' ')}"
        self._shown |= _SHOWN
        self._bar = create_progress()
        console = self._bar.console
        self._has_terminal = console.is_terminal
        self._is_wide = console.width >= _WIDE
        self._bar.columns = tuple(self._columns())
        self._task = self._bar.add_task("train", total=epochs, status="starting")
        self._evaluated = ""
        self._start: tuple[float, float] | None = None

    def _columns(self) -> "list[ProgressColumn]":
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns: list[ProgressColumn] = [
            TextColumn("epoch {task.completed:.1f}/{task.total:.0f}"),
            BarColumn(bar_width=30 if self._is_wide else 12),
            TimeRemainingColumn(compact=True),
            TextColumn("left, {task.fields[status]}"),
        ]
        if self._is_wide:
            columns.append(TimeElapsedColumn())
        return columns

    def loading(self, fraction: float) -> None:
        """Show how much of the images has been read into memory."""
        self._bar.update(self._task, status=f"loading images {100 * fraction:.0f}%")

    def __call__(self, event: "Event") -> None:
        """Show an event."""
        now = event.progress
        if self._start is None:
            self._start = (monotonic(), now.epoch)
        speed = f"{now.images_per_second:,.0f} images/s"
        shown = [] if event.metrics is None else self._describe(event)
        if shown or (now.at_epoch_end and not self._has_terminal):
            numbers = [f"loss {now.loss:.4f}", *shown]
            if not self._has_terminal:
                numbers += [speed, *self._time_left(now.epoch)]
            echo(f"epoch {now.epoch:.0f}/{self.epochs}: {', '.join(numbers)}")
        status = f"loss {now.loss:.4f}, {speed}"
        if self._is_wide:
            status += f", step {now.step:,}, lr {now.lr:.3g}{self._evaluated}"
        self._bar.update(self._task, completed=now.epoch, status=status)

    def _describe(self, event: "Event") -> list[str]:
        metrics = event.metrics or {}
        texts = [
            f"{label.format(split=self.split)} {format_metric(name, metrics[name])}"
            for name, label in self._shown.items()
            if name in metrics
        ]
        self._evaluated = f", {texts[0]}"
        if event.best is not None and event.best.step == event.progress.step:
            texts.append("best so far")
        return texts

    def _time_left(self, epoch: float) -> list[str]:
        """Return the remaining time, once it can be estimated."""
        assert self._start is not None
        start, first = self._start
        if epoch <= first or epoch >= self.epochs:
            return []
        seconds = (monotonic() - start) / (epoch - first) * (self.epochs - epoch)
        return [f"{timedelta(seconds=round(seconds))} left"]
