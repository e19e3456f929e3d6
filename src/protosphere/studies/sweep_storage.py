"""The study of a sweep in a storage of Optuna, and its trials."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import optuna
from optuna.exceptions import StorageInternalError
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from protosphere.runs.sweeps import SweepSetting, SweepTrial
from protosphere.storage.errors import StorageError
from protosphere.studies.sweep_sampler import encode_value
from protosphere.studies.sweep_settings import SweepError

_JOURNAL = "journal:"
_STATES: Mapping[TrialState, Any] = {
    TrialState.RUNNING: "running",
    TrialState.WAITING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}
# User attributes of trials.
_FOLDER, _ERROR, _METRICS = "folder", "error", "metrics"


class Location(NamedTuple):
    """Where a study is.

    Attributes:
        url: URL of a database, or ``journal:PATH``.
        name: Name of the study in it.
    """

    url: str
    name: str

    def __str__(self) -> str:
        try:
            return make_url(self.url).render_as_string(hide_password=True)
        except ArgumentError:
            return self.url


def sqlite_url(path: Path) -> str:
    """Return the URL of an SQLite file.

    Args:
        path: The file.
    """
    return URL.create("sqlite", database=str(path.resolve())).render_as_string()


class SweepStudy:
    """The trials of a sweep; create it with :func:`open_study`.

    Args:
        study: The study of Optuna.
        storage: Its storage.
        settings: What is varied.
    """

    def __init__(
        self, study: optuna.Study, storage: BaseStorage, settings: Sequence[SweepSetting]
    ) -> None:
        self._study, self._storage, self._settings = study, storage, settings
        self._id = storage.get_study_id_from_name(study.study_name)

    @property
    def num_trials(self) -> int:
        """Number of trials that have been started."""
        return len(self._study.get_trials(deepcopy=False))

    def numbers(self, folder: str) -> set[int]:
        """Return the trials of a folder.

        Args:
            folder: Identifier of the folder.
        """
        trials = self._study.get_trials(deepcopy=False)
        return {trial.number for trial in trials if trial.user_attrs.get(_FOLDER) == folder}

    def interrupted(self, folder: str) -> list[int]:
        """Return the trials of a folder that have been started and not been finished.

        Args:
            folder: Identifier of the folder.
        """
        return [
            trial.number
            for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
            if trial.user_attrs.get(_FOLDER) == folder
        ]

    def create_trial(self, folder: str) -> Trial:
        """Start a trial in one transaction, so that it never lacks the folder it belongs to.

        Args:
            folder: Identifier of the folder.
        """
        template = FrozenTrial(
            number=-1,
            state=TrialState.RUNNING,
            value=None,
            datetime_start=datetime.now(),
            datetime_complete=None,
            params={},
            distributions={},
            user_attrs={_FOLDER: folder},
            system_attrs={},
            intermediate_values={},
            trial_id=-1,
        )
        return self._open_trial(self._storage.create_new_trial(self._id, template))

    def continue_trial(self, number: int) -> Trial:
        """Return a trial that has been started.

        Args:
            number: Number of the trial.
        """
        return self._open_trial(
            self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
        )

    def _open_trial(self, trial_id: int) -> Trial:
        self._study.get_trials(deepcopy=False)  # The cache of a database must know the trial.
        return Trial(self._study, trial_id)

    def choose(self, trial: Trial) -> dict[str, Any]:
        """Choose the settings of a trial, or return those that were chosen before.

        Args:
            trial: The trial.
        """
        return {setting.key: _suggest(trial, setting) for setting in self._settings}

    def report(self, trial: Trial, epoch: int, value: float) -> None:
        """Report an evaluation, unless it was reported before the trial was interrupted.

        Args:
            trial: The trial.
            epoch: Number of epochs done.
            value: The metric.
        """
        if epoch not in self._frozen(trial).intermediate_values:
            trial.report(value, epoch)

    def last_epoch(self, trial: Trial) -> int | None:
        """Return the epoch of the last evaluation that was reported, or None.

        Args:
            trial: The trial.
        """
        return self._frozen(trial).last_step

    def finish(
        self, trial: Trial, value: float | None, metrics: Mapping[str, float] | None = None
    ) -> None:
        """Record the end of a trial.

        Args:
            trial: The trial.
            value: The metric; None for a trial that was pruned.
            metrics: Metrics of the last evaluation.
        """
        trial.set_user_attr(_METRICS, dict(metrics or {}))
        state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        self._study.tell(trial.number, value, state)

    def fail(self, trial: Trial, error: str) -> None:
        """Record that a trial failed.

        Args:
            trial: The trial.
            error: Why it did, in one line.
        """
        trial.set_user_attr(_ERROR, error)
        self._study.tell(trial.number, state=TrialState.FAIL)

    def record(self, trial: Trial) -> SweepTrial:
        """Return the record of a trial of this folder.

        Args:
            trial: The trial.
        """
        frozen = self._frozen(trial)
        return self._to_record(frozen, frozen.user_attrs.get(_FOLDER))

    def trials(self, folder: str) -> tuple[SweepTrial, ...]:
        """Return the records of all trials.

        Args:
            folder: Identifier of the folder, whose trials have a run folder in it.
        """
        trials = self._study.get_trials(deepcopy=False)
        return tuple(self._to_record(trial, folder) for trial in trials)

    def _to_record(self, trial: FrozenTrial, folder: str | None) -> SweepTrial:
        is_own = trial.user_attrs.get(_FOLDER) == folder
        is_complete = trial.state == TrialState.COMPLETE
        return SweepTrial(
            number=trial.number,
            state=_STATES[trial.state],
            settings={
                setting.key: _decode(setting, trial.params[setting.key])
                for setting in self._settings
                if setting.key in trial.params
            },
            value=trial.value if is_complete else None,
            evaluations=tuple(
                (epoch, value)
                for epoch, value in sorted(trial.intermediate_values.items())
                if math.isfinite(value)
            ),
            metrics=trial.user_attrs.get(_METRICS),
            error=trial.user_attrs.get(_ERROR),
            run=f"trials/{trial.number:04d}" if is_own else "",
        )

    def _frozen(self, trial: Trial) -> FrozenTrial:
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._id, trial.number)
        return self._storage.get_trial(trial_id)

    @property
    def attributes(self) -> dict[str, Any]:
        """What is stored beside the trials."""
        return self._study.user_attrs

    def set_attribute(self, name: str, value: Any) -> None:
        """Store a value beside the trials.

        Args:
            name: Name of the value.
            value: Plain value.
        """
        self._study.set_user_attr(name, value)


@contextmanager
def open_study(
    location: Location,
    settings: Sequence[SweepSetting],
    *,
    sampler: BaseSampler,
    direction: Literal["maximize", "minimize"],
    pruner: optuna.pruners.BasePruner,
) -> Iterator[SweepStudy]:
    """Open the study of a sweep, or create it.

    Args:
        location: Where it is.
        settings: What is varied.
        sampler: How settings are chosen.
        direction: ``"maximize"`` or ``"minimize"``.
        pruner: When trials are pruned.

    Yields:
        The study.

    Raises:
        SweepError: The storage cannot be used.
        StorageError: It could not be used any longer.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = _open_storage(location.url)
        study = optuna.create_study(
            storage=storage,
            study_name=location.name,
            direction=direction,
            sampler=sampler,
            pruner=pruner,
            load_if_exists=True,
        )
    except Exception as error:  # Each database has errors of its own.
        raise SweepError(
            f"--storage must be a storage that Optuna can open, got {location}: "
            f"{_first_line(error)}"
        ) from None
    try:
        yield SweepStudy(study, storage, settings)
    except StorageInternalError as error:
        raise StorageError(f"cannot use {location}: {_first_line(error)}") from error
    finally:
        storage.remove_session()
        if isinstance(storage, RDBStorage):
            storage.engine.dispose()


def _first_line(error: Exception) -> str:
    """Return the innermost message, since Optuna wraps that of the database."""
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _open_storage(url: str) -> BaseStorage:
    if url.startswith(_JOURNAL):
        return JournalStorage(JournalFileBackend(url.removeprefix(_JOURNAL)))
    # Several processes may write to one SQLite file; each waits for the others.
    is_sqlite = url.startswith("sqlite")
    return RDBStorage(url, engine_kwargs={"connect_args": {"timeout": 60}} if is_sqlite else None)


def _suggest(trial: Trial, setting: SweepSetting) -> Any:
    is_log = setting.kind == "log_range"
    if setting.kind == "grid":
        choices = [encode_value(value) for value in setting.values]
        return _decode(setting, trial.suggest_categorical(setting.key, choices))
    if setting.integer:
        return trial.suggest_int(setting.key, int(setting.low), int(setting.high), log=is_log)
    return trial.suggest_float(setting.key, setting.low, setting.high, log=is_log)


def _decode(setting: SweepSetting, value: Any) -> Any:
    if setting.kind != "grid":
        return value
    return next(one for one in setting.values if encode_value(one) == value)
