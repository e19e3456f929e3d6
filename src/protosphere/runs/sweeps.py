"""The record of a sweep, written after every trial; read without torch and without Optuna.

SWEEP/sweep.json      settings, trials and the best of them
SWEEP/best.yaml       the recipe with the best settings, on all training images
SWEEP/sweep.html      the phase diagram
SWEEP/trials/NNNN/    run folder of each trial
SWEEP/sweep.db        the study of Optuna, unless it is in another storage
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from protosphere.runs.folder import RunFolder, RunFolderError
from protosphere.storage.atomic import write_json

SWEEP_FILE = "sweep.json"
TrialState = Literal["running", "complete", "pruned", "failed"]


@dataclass(frozen=True)
class SweepSetting:
    """A key of the recipe that a sweep varies.

    Attributes:
        key: Dotted path of the key.
        kind: A grid of values, a range, or a range whose logarithm is sampled uniformly.
        values: Values of a grid, as plain values of YAML.
        low: Lower end of a range, which belongs to it.
        high: Upper end of a range, which belongs to it.
        integer: Whether the values of a range are integers.
    """

    key: str
    kind: Literal["grid", "range", "log_range"]
    values: tuple[Any, ...] = ()
    low: int | float = 0.0
    high: int | float = 0.0
    integer: bool = False


@dataclass(frozen=True)
class SweepTrial:
    """One trial of a sweep.

    Attributes:
        number: Number of the trial, from 0 on.
        state: ``"running"`` is also the state of a trial that was interrupted.
        settings: Value of each key that the sweep varies.
        value: The metric of the sweep on the validation images: of the last evaluation, or of the
            best one if the recipe monitors this metric. None unless the trial is complete.
        evaluations: Epoch and value of the metric of each evaluation.
        metrics: Metrics of the last evaluation.
        error: Why the trial failed.
        run: Run folder, relative to the folder of the sweep; empty if the trial is of another
            folder that shares the storage.
    """

    number: int
    state: TrialState
    settings: Mapping[str, Any]
    value: float | None = None
    evaluations: tuple[tuple[int, float], ...] = ()
    metrics: Mapping[str, float] | None = None
    error: str | None = None
    run: str = ""


@dataclass(frozen=True)
class SweepRecord:
    """A sweep and its trials so far.

    Attributes:
        name: Name of the recipe.
        recipe: The recipe as YAML, with the validation split of the sweep.
        metric: Metric that trials are compared by.
        direction: Whether it is maximized or minimized.
        num_validation: Number of validation images; None before they have been loaded.
        sampler: How settings are chosen.
        seed: Seed of the sampler.
        prune: Whether trials below the median are pruned.
        num_trials: Number of trials that the sweep is to have, or has if these are more.
        settings: What is varied.
        trials: The trials, by number.
    """

    name: str
    recipe: str
    metric: str
    direction: Literal["maximize", "minimize"]
    num_validation: int | None
    sampler: Literal["grid", "tpe", "random"]
    seed: int
    prune: bool
    num_trials: int
    settings: tuple[SweepSetting, ...]
    trials: tuple[SweepTrial, ...] = ()

    @property
    def best(self) -> SweepTrial | None:
        """The best complete trial, the first one of several equal ones."""
        complete = [trial for trial in self.trials if trial.state == "complete"]
        return min(complete, key=self.rank, default=None)

    def rank(self, trial: SweepTrial) -> float:
        """Return a number that is smaller for better trials, infinite for those without a value."""
        if trial.value is None:
            return float("inf")
        return -trial.value if self.direction == "maximize" else trial.value

    @property
    def tolerance(self) -> float:
        """How much worse than the best a value may be to count as equally good.

        For accuracies this is one standard error of the best one, sqrt(p (1 - p) / n) with n
        validation images; for other metrics 1% of the best value.
        """
        best = self.best
        if best is None or best.value is None:
            return 0.0
        if self.metric.endswith("accuracy") and self.num_validation:
            return float((best.value * (1 - best.value) / self.num_validation) ** 0.5)
        return 0.01 * abs(best.value)


def write_sweep(folder: Path, record: SweepRecord) -> None:
    """Write the record of a sweep atomically.

    Args:
        folder: Folder of the sweep.
        record: The record.

    Raises:
        StorageError: The file could not be written.
    """
    write_json(folder / SWEEP_FILE, sweep_to_json(record))


def sweep_to_json(record: SweepRecord) -> dict[str, Any]:
    """Return a record as plain values, with the number of the best trial.

    Args:
        record: The record.
    """
    best = record.best
    return asdict(record) | {"best": None if best is None else best.number}


def read_sweep(path: Path | str) -> SweepRecord:
    """Read the record of a sweep.

    Args:
        path: Folder of the sweep, or its ``sweep.json``.

    Raises:
        RunFolderError: The file is missing, damaged or of another version.
    """
    path = Path(path)
    path = path / SWEEP_FILE if path.is_dir() else path
    content = RunFolder(path.parent).read_json(path.name)
    try:
        del content["best"]
        settings = tuple(setting_from_json(one) for one in content.pop("settings"))
        trials = tuple(_trial(one) for one in content.pop("trials"))
        return SweepRecord(**content, settings=settings, trials=trials)
    except (KeyError, TypeError, AttributeError):
        raise RunFolderError(f"{path} must hold the record of a sweep of this version") from None


def setting_from_json(content: Mapping[str, Any]) -> SweepSetting:
    """Return a setting from plain values, as ``dataclasses.asdict`` and JSON give them.

    Args:
        content: Values of all fields.
    """
    return SweepSetting(**{**_checked(SweepSetting, content), "values": tuple(content["values"])})


def _trial(content: Mapping[str, Any]) -> SweepTrial:
    evaluations = tuple((int(epoch), float(value)) for epoch, value in content["evaluations"])
    return SweepTrial(**{**_checked(SweepTrial, content), "evaluations": evaluations})


def _checked(kind: type, content: Mapping[str, Any]) -> Mapping[str, Any]:
    if set(content) != {field.name for field in fields(kind)}:
        raise KeyError
    return content
