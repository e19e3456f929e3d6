"""Where else the numbers of a run go: TensorBoard, Weights & Biases."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Log = Callable[[int, Mapping[str, float]], None]


@contextmanager
def logging_to(kind: str | None, folder: Path, name: str, recipe: Mapping[str, Any]) -> Iterator[Log]:
    """Open a log, and close it in the end.

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
    if kind is None:
        yield lambda _step, _numbers: None
    elif kind == "tensorboard":
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError('--log tensorboard needs a package: pip install "protosphere[tensorboard]"') from None
        with SummaryWriter(str(folder / "tensorboard")) as writer:

            def write(step: int, numbers: Mapping[str, float]) -> None:
                for key, value in numbers.items():
                    writer.add_scalar(key, value, step)

            yield write
    elif kind == "wandb":
        try:
            import wandb
        except ImportError:
            raise ValueError('--log wandb needs a package: pip install "protosphere[wandb]"') from None
        # The same name again is the same run again, resumed.
        run = wandb.init(
            project="protosphere",
            name=name,
            id=folder.resolve().name,
            dir=str(folder),
            config=dict(recipe),
            resume="allow",
        )
        try:
            yield lambda step, numbers: run.log(dict(numbers), step=step)
        finally:
            run.finish()
    else:
        raise ValueError(f"--log must be tensorboard or wandb; got {kind}")
