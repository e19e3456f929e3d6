"""Other places that receive the metrics of a run: TensorBoard, Weights & Biases."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

Metrics = Mapping[str, float]
LoggerName = Literal["tensorboard", "wandb"]


class _Logger(Protocol):
    def write(self, step: int, metrics: Metrics) -> None: ...

    def close(self) -> None: ...


@contextmanager
def open_logger(
    name: LoggerName | None, folder: Path, run_name: str, config: Mapping[str, Any]
) -> Iterator[Callable[[int, Metrics], None]]:
    """Open a logger; its package must be installed, its files are created by the first metrics.

    Args:
        name: Name of the logger; None logs nothing.
        folder: Run folder; files of the logger go below it.
        run_name: Name that the logger shows for the run.
        config: Recipe as plain values, shown beside the metrics.

    Yields:
        A function that logs the metrics of a step.

    Raises:
        ValueError: The package of the logger is not installed.
    """
    create = None if name is None else _CREATE[name](folder, run_name, config)
    logger: _Logger | None = None

    def write(step: int, metrics: Metrics) -> None:
        nonlocal logger
        if create is not None:
            logger = logger or create()
            logger.write(step, metrics)

    try:
        yield write
    finally:
        if logger is not None:
            logger.close()


def _tensorboard(folder: Path, _run_name: str, _config: Mapping[str, Any]) -> Callable[[], _Logger]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise _not_installed("tensorboard") from None
    return lambda: _TensorBoard(SummaryWriter(str(folder / "tensorboard")))


def _wandb(folder: Path, run_name: str, config: Mapping[str, Any]) -> Callable[[], _Logger]:
    try:
        import wandb
    except ImportError:
        raise _not_installed("wandb") from None
    options = {
        "project": "protosphere",
        # A resumed run in the same folder continues the same W&B run.
        "id": hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16],
        "dir": str(folder),
        "resume": "allow",
    }
    return lambda: _WeightsAndBiases(wandb.init(name=run_name, config=dict(config), **options))


def _not_installed(name: str) -> ValueError:
    return ValueError(f'--log {name} needs a package: pip install "protosphere[{name}]"')


_CREATE: dict[LoggerName, Callable[[Path, str, Mapping[str, Any]], Callable[[], _Logger]]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
}


class _TensorBoard:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, step: int, metrics: Metrics) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()
