"""Where else the numbers of a run go: TensorBoard, Weights & Biases."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

Numbers = Mapping[str, float]


@runtime_checkable
class _Log(Protocol):
    def write(self, step: int, numbers: Numbers) -> None: ...

    def close(self) -> None: ...


@contextmanager
def logging_to(
    kind: str | None, folder: Path, name: str, recipe: Mapping[str, Any]
) -> Iterator[Callable[[int, Numbers], None]]:
    """Log to somewhere else as well. The package must be there at once; the log is opened with the first numbers.

    Args:
        kind: ``"tensorboard"``, ``"wandb"`` or None.
        folder: of the run; files go below it.
        name: of the run.
        recipe: as plain values, to be shown beside the numbers.

    Yields:
        A function of the step and its numbers by name.

    Raises:
        ValueError: there is no such log, or its package is missing.
    """
    make = _maker(kind, folder, name, recipe)
    log: _Log | None = None

    def write(step: int, numbers: Numbers) -> None:
        nonlocal log
        if make is not None:
            log = log or make()
            log.write(step, numbers)

    try:
        yield write
    finally:
        if log is not None:
            log.close()


def _maker(
    kind: str | None, folder: Path, name: str, recipe: Mapping[str, Any]
) -> Callable[[], _Log] | None:
    if kind is None:
        return None
    try:
        if kind == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            return lambda: _TensorBoard(SummaryWriter(str(folder / "tensorboard")))
        if kind == "wandb":
            import wandb

            # The same folder again is the same run again, resumed.
            identity = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
            options = {
                "project": "protosphere",
                "id": identity,
                "dir": str(folder),
                "resume": "allow",
            }
            return lambda: _WeightsAndBiases(wandb.init(name=name, config=dict(recipe), **options))
    except ImportError:
        raise ValueError(
            f'--log {kind} needs a package: pip install "protosphere[{kind}]"'
        ) from None
    raise ValueError(f"--log must be tensorboard or wandb; got {kind}")


class _TensorBoard:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, step: int, numbers: Numbers) -> None:
        for key, value in numbers.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, step: int, numbers: Numbers) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()
