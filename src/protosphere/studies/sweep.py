"""Sweeps: train a recipe with many settings, choose on validation images; stop and resume."""

import json
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, get_args

import torch
from optuna.exceptions import StorageInternalError
from optuna.trial import Trial

from protosphere.data.datasets import ImageDataset
from protosphere.recipes.build import load_dataset
from protosphere.recipes.monitor import find_best, is_patience_exhausted
from protosphere.recipes.runner import run_recipe
from protosphere.recipes.schema import Recipe, recipe_from_yaml
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.sweeps import SweepRecord, SweepTrial
from protosphere.storage.errors import StorageError
from protosphere.studies.common import describe_error, free_memory
from protosphere.studies.compiled_code import CompiledCode
from protosphere.studies.sweep_folder import SweepFolder
from protosphere.studies.sweep_plan import (
    Metric,
    SamplerName,
    check_plan,
    create_plan,
    create_pruner,
)
from protosphere.studies.sweep_sampler import SweepSampler
from protosphere.studies.sweep_settings import SweepError, final_recipe, trial_recipe
from protosphere.studies.sweep_storage import Location, SweepStudy, open_study, sqlite_url

# Metrics of the last evaluation that a record has.
_RECORDED = (*get_args(Metric), "train_accuracy")
_DATA = "data"


@dataclass(frozen=True)
class SweepProgress:
    """What happened in a sweep.

    Attributes:
        trial: The trial, running or just finished.
        metric: Metric that trials are compared by.
        num_trials: Number of trials that the sweep is to have.
        fraction: Fraction of the epochs of the trial that is done.
        is_best: Whether the trial has just become the best one.
    """

    trial: SweepTrial
    metric: str
    num_trials: int
    fraction: float
    is_best: bool = False


def run_sweep(
    recipe: Recipe,
    over: Sequence[str],
    out: Path | str,
    *,
    trials: int | None = None,
    sampler: SamplerName | None = None,
    seed: int = 0,
    prune: bool = False,
    metric: Metric | None = None,
    storage: str | None = None,
    study: str = "sweep",
    device: torch.device | str = "cpu",
    download: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    report: Callable[[SweepProgress], None] = lambda _: None,
) -> SweepRecord:
    """Run a sweep, or continue one that was interrupted: call it again with the same arguments.

    Trials run one after the other. Each trains on the training images without the validation
    images (a tenth of them, if the recipe has none) and is evaluated on these; test images are not
    used. A trial that fails is recorded, and the sweep goes on.

    Several processes may call this with the same arguments and share the trials: on one machine
    with the same folder, on several machines with the same storage.

    Args:
        recipe: The recipe.
        over: What is varied, each as :func:`~protosphere.studies.sweep_settings.parse_setting`
            takes it.
        out: Folder of the sweep.
        trials: Number of trials; None for all combinations of grids.
        sampler: How settings are chosen; None for ``"grid"`` if all settings are grids and
            ``trials`` is None, and for ``"tpe"`` otherwise.
        seed: Seed of the sampler. The seed of training is that of the recipe.
        prune: Whether a trial ends early if its evaluations are worse than the median of the
            others at the same epoch. With a schedule that ends at a low learning rate, such as
            cosine, the best settings are often behind until the last epochs.
        metric: Metric to choose by; None for the one that the recipe monitors, or accuracy.
        storage: URL of a database that Optuna can use, or ``journal:PATH``; None for the file
            ``sweep.db`` in the folder.
        study: Name of the study in the storage.
        device: Where to train; ``"auto"`` finds a GPU.
        download: Whether a missing dataset is downloaded.
        should_stop: Called after each training step; once it returns True, a checkpoint is saved
            and the sweep ends.
        report: Called when a trial starts, after each of its epochs and when it is finished. What
            it raises ends the sweep.

    Returns:
        The record of the sweep.

    Raises:
        SweepError: The arguments are not valid, or folder or storage belong to another sweep;
            nothing of it is changed.
        RecipeError: The recipe has no such key, or refuses a value.
        DataError: The data are missing or not valid.
        RunFolderError: The run folder of an interrupted trial is damaged, or in use.
        StorageError: A file could not be written.
    """
    plan = create_plan(
        recipe, over, trials=trials, sampler=sampler, seed=seed, prune=prune, metric=metric
    )
    with ExitStack() as stack:
        folder = stack.enter_context(closing(SweepFolder(out)))
        database = folder.path / "sweep.db"
        location = Location(sqlite_url(database) if storage is None else storage, study)
        with folder.lock():  # Two processes must not create the same tables.
            if storage is None and not database.exists():
                folder.check_runs(())
            opened = stack.enter_context(
                open_study(
                    location,
                    plan.settings,
                    sampler=SweepSampler(plan.sampler, plan.seed, plan.settings),
                    direction=plan.direction,
                    pruner=create_pruner(recipe, prune=prune),
                )
            )
            where = str(folder.path if storage is None else location)
            check_plan(opened, plan, where)
            folder.check_runs(opened.numbers(folder.identity))
        sweep = _Sweep(plan, folder, opened, where, device, download, should_stop, report)
        sweep.run()
        return sweep.write()


class _Sweep:
    """The trials of a sweep in this process."""

    def __init__(
        self,
        plan: SweepRecord,
        folder: SweepFolder,
        study: SweepStudy,
        where: str,
        device: torch.device | str,
        download: bool,
        should_stop: Callable[[], bool],
        report: Callable[[SweepProgress], None],
    ) -> None:
        self.plan, self.folder, self.study, self.where = plan, folder, study, where
        self.device, self.download = device, download
        self.should_stop, self.on_progress = should_stop, report
        self.recipe = recipe_from_yaml(plan.recipe)
        self._is_checked = False
        self._data: tuple[str, ImageDataset] | None = None
        self._compiled = CompiledCode(device)

    def run(self) -> None:
        """Run trials until there are enough, or the sweep is asked to stop."""
        self.write()
        while not self.should_stop():
            claimed = self._next_trial()
            if claimed is None:
                return
            trial, claim = claimed
            with claim:
                if not self._run_trial(trial):
                    return
            free_memory()

    def _next_trial(self) -> tuple[Trial, IO[str]] | None:
        """Return an interrupted trial or a new one, claimed for this process."""
        is_full = self.study.num_trials >= self.plan.num_trials
        if is_full and not self.study.interrupted(self.folder.identity):
            return None
        self._check_data()
        with self.folder.lock():
            # Another sweep may have had its first trial since this one was checked.
            check_plan(self.study, self.plan, self.where)
            self.folder.check_runs(self.study.numbers(self.folder.identity))
            for number in self.study.interrupted(self.folder.identity):
                claim = self.folder.claim(number)
                if claim is not None:
                    return self.study.continue_trial(number), claim
            if self.study.num_trials >= self.plan.num_trials:
                return None
            trial = self.study.create_trial(self.folder.identity)
            claim = self.folder.claim(trial.number)
            assert claim is not None
            return trial, claim

    def _check_data(self) -> None:
        """Load the data of the recipe once: what is wrong with them is no fault of a trial."""
        if self._is_checked:
            return
        dataset = self._load(self.recipe)
        data = {"train": dataset.train.fingerprint(), "num_validation": len(dataset.test)}
        stored = self.study.attributes.get(_DATA)
        if stored is None or not self.study.num_trials:
            self.study.set_attribute(_DATA, data)
        elif stored != data:
            raise SweepError("the training images must be those that the sweep was started with")
        self._is_checked = True

    def _load(self, recipe: Recipe) -> ImageDataset:
        """Load the data of a trial, or return those of the last one if they are the same."""
        key = json.dumps([recipe.data.model_dump(mode="json"), recipe.seed])
        if self._data is None or self._data[0] != key:
            self._data = None  # Two datasets may not fit into memory.
            dataset = load_dataset(recipe, download=self.download, split="validation")
            self._data = key, dataset
        return self._data[1]

    def _run_trial(self, trial: Trial) -> bool:
        """Train and record the outcome; return False if the sweep was asked to stop."""
        with self.folder.lock():  # Two processes must not choose the same settings.
            values = self.study.choose(trial)
        self._report(trial, 0.0)
        with closing(self._train(trial, values)) as training:
            while True:
                try:
                    fraction = next(training)
                except StopIteration as end:
                    outcome: _Outcome | None = end.value
                    break
                except (StorageError, StorageInternalError, RunFolderError):
                    raise  # A full disk or a damaged folder is no fault of the settings.
                except Exception as error:
                    outcome = _Outcome(error=describe_error(error))
                    break
                self._report(trial, fraction)
        if outcome is None:
            return False
        if outcome.error is not None:
            self.study.fail(trial, outcome.error)
        else:
            self.study.finish(trial, outcome.value, outcome.metrics)
        best = self.write().best
        self._report(trial, 1.0, is_best=best is not None and best.number == trial.number)
        return True

    def _train(
        self, trial: Trial, values: Mapping[str, Any]
    ) -> Generator[float, None, "_Outcome | None"]:
        """Train a trial, from its checkpoint if it has one.

        Yields:
            The fraction of the epochs that is done.

        Returns:
            The outcome; None if training was asked to stop.
        """
        recipe = trial_recipe(self.recipe, values)
        epochs, metric = recipe.schedule.epochs, self.plan.metric
        run = RunFolder(self.folder.run_folder(trial.number))
        self._compiled.prepare(recipe)
        # The process may have been killed between an evaluation and the decision to prune.
        for record in run.records():
            if record.get("kind") == "evaluation":
                self.study.report(trial, record["epoch"], record[metric])
        last = self.study.last_epoch(trial)
        is_over = last == epochs or is_patience_exhausted(recipe.checkpoint, run.records())
        if last is not None and not is_over and trial.should_prune():
            return _Outcome(metrics=self._metrics(run))
        for event in run_recipe(
            recipe,
            run,
            self._load(recipe),
            device=self.device,
            start="resume",
            should_stop=self.should_stop,
        ):
            epoch = event.progress.epoch
            is_over = epoch == epochs or event.stopped_early
            if event.metrics is not None:
                self.study.report(trial, round(epoch), event.metrics[metric])
                if not is_over and trial.should_prune():
                    return _Outcome(metrics=self._metrics(run))
            if event.progress.stopping and not is_over:
                return None
            yield epoch / epochs
        value = self._value(recipe, run)
        if not math.isfinite(value):
            raise SweepError(f"{metric} must be finite, got {value}")
        return _Outcome(value=value, metrics=self._metrics(run))

    def _value(self, recipe: Recipe, run: RunFolder) -> float:
        """Return the metric of a run that has ended."""
        if recipe.checkpoint.monitor == self.plan.metric:
            best = find_best(recipe.checkpoint, run.records())
            assert best is not None
            return best.value
        evaluation = run.last_evaluation()
        assert evaluation is not None
        return float(evaluation[self.plan.metric])

    def _metrics(self, run: RunFolder) -> dict[str, float]:
        evaluation = run.last_evaluation() or {}
        return {
            name: evaluation[name]
            for name in _RECORDED
            if name in evaluation and math.isfinite(evaluation[name])
        }

    def _report(self, trial: Trial, fraction: float, *, is_best: bool = False) -> None:
        record, metric = self.study.record(trial), self.plan.metric
        num_trials = max(self.plan.num_trials, record.number + 1)
        self.on_progress(SweepProgress(record, metric, num_trials, fraction, is_best))

    def record(self) -> SweepRecord:
        """Return the record of the sweep so far."""
        num_validation = self.study.attributes.get(_DATA, {}).get("num_validation")
        trials = self.study.trials(self.folder.identity)
        # Earlier calls may have asked for more trials.
        num_trials = max(self.plan.num_trials, len(trials))
        return replace(
            self.plan, num_validation=num_validation, num_trials=num_trials, trials=trials
        )

    def write(self) -> SweepRecord:
        """Write the record and the best recipe, and return the record."""
        with self.folder.lock():  # A record that is older must not replace a newer one.
            record = self.record()
            best = record.best
            recipe = None if best is None else trial_recipe(self.recipe, best.settings)
            self.folder.write(record, None if recipe is None else final_recipe(recipe).to_yaml())
        return record


@dataclass(frozen=True)
class _Outcome:
    """How a trial ended: with a value, pruned (without one), or with an error."""

    value: float | None = None
    metrics: Mapping[str, float] | None = None
    error: str | None = None
