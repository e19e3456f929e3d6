"""Compare recipes over seeds: train the runs that are missing, and compare their evaluations."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from protosphere.recipes.build import load_dataset
from protosphere.recipes.loading import read_run_recipe
from protosphere.recipes.runner import run_recipe
from protosphere.recipes.schema import Recipe, RecipeError, find_difference
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.comparison import COMPARISON_FILE, Comparison, write_comparison
from protosphere.runs.folder import RunFolderInUseError
from protosphere.storage import StorageError, create_folder
from protosphere.storage.atomic import reason
from protosphere.studies.common import describe_error, free_memory
from protosphere.studies.compare_plan import ComparisonPlan, PlannedRun, plan_comparison, with_seed
from protosphere.studies.compare_records import (
    Outcomes,
    RunResult,
    check_same_data,
    failed_run,
    is_complete,
    read_result,
)
from protosphere.studies.compare_statistics import check_confidence
from protosphere.studies.compare_summary import NoCompleteRunError, create_comparison

__all__ = ["NoCompleteRunError", "Trainer", "compare_runs", "run_comparison"]

# Trains a recipe into a run folder, or resumes it there; returns whether training is complete.
Trainer = Callable[[Recipe, Path], bool]
# Keys of a recipe's data that do not change which images it has.
_SAME_IMAGES = {"sampler", "workers", "in_memory"}
# Versions of a function that torch's compiler keeps unless it is told otherwise.
_COMPILED_VERSIONS = 8
_LOG = logging.getLogger("protosphere")


def run_comparison(
    targets: Sequence[str],
    *,
    out: Path | str,
    seeds: Sequence[int] | None = None,
    overrides: Sequence[str] = (),
    baseline: str | None = None,
    confidence: float = 0.95,
    device: torch.device | str = "cpu",
    download: bool = False,
    train: Trainer | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Train the runs that a comparison needs, one at a time, and compare them.

    Complete runs are read, interrupted ones resumed. A run that fails is recorded, and the next one
    is trained. OUT/comparison.json is written after each run, and does not depend on how often the
    comparison was interrupted.

    Several processes on one machine may call this with the same arguments and share the runs: a
    run that another process uses is left to it, and read when it is complete.

    Args:
        targets: Names of recipes, YAML files, run folders, or folders that contain run folders.
        out: Folder for the comparison, and for the runs that are trained, OUT/RECIPE/seed-N.
        seeds: Seeds of every method. None trains recipes with five seeds, and compares run folders
            as they are.
        overrides: Values of the recipes to replace, each ``dotted.path=value``.
        baseline: Method that the others are compared with: its name, or the target that it was
            given as. None for the first one.
        confidence: Confidence of the intervals, between 0 and 1.
        device: Where to train; ``"auto"`` finds a GPU.
        download: Whether a missing dataset is downloaded.
        train: Function that trains a recipe into a folder and returns whether training is
            complete; after False the comparison stops. None trains without output.
        report: Called with a line of text before each run that is trained, after a failure, and for
            runs that other processes use.

    Returns:
        The comparison. Its ``pending`` runs are those that a stopped comparison has left, or that
        other processes still use.

    Raises:
        RecipeError: A target is no recipe, or an override is not valid.
        RunFolderError: A folder is no run, or holds a run of another recipe or other data.
        NoCompleteRunError: No run is complete, because all of them have failed or the comparison
            was stopped before.
        ValueError: Another argument is not valid.
        StorageError: The folder cannot be written to.
    """
    out = Path(out)
    check_confidence(confidence)
    plan = plan_comparison(targets, out=out, seeds=seeds, overrides=overrides, baseline=baseline)
    outcomes = _read_runs(plan, out)
    missing = [run for run in plan.runs if run.key not in outcomes]
    _check_images(missing, download=download)
    create_folder(out)
    train = _create_trainer(device, download=download) if train is None else train
    num_runs = len(plan.runs)
    num_complete = sum(isinstance(outcome, RunResult) for outcome in outcomes.values())
    if missing and num_complete:
        report(f"{num_complete} of {num_runs} runs are complete")
    missing.sort(key=lambda run: plan.seeds.index(run.recipe.seed))  # All methods of a seed first.
    numbers = {run.key: number for number, run in enumerate(missing, len(outcomes) + 1)}
    in_use: list[PlannedRun] = []
    with _room_for_compiled_steps(len(plan.recipes)):
        while missing:
            run = missing.pop(0)
            name = f"{run.method}, seed {run.recipe.seed}"
            try:
                if _is_done(run):
                    report(f"{name} is complete: another process has trained it")
                else:
                    report(f"Run {numbers[run.key]} of {num_runs}: {name}, into {run.folder}")
                    if not train(run.recipe, run.folder):
                        break
                outcomes[run.key] = read_result(run, out)
            except RunFolderInUseError as error:
                in_use.append(run)
                report(f"{name} is left to another process: {error}")
            except Exception as error:  # The other runs are worth having, whatever has happened.
                _LOG.debug("%s has failed", name, exc_info=True)
                text = describe_error(error)
                outcomes[run.key] = failed_run(run, out, text)
                report(f"{name} has failed: {text}")
            free_memory()
            if any(isinstance(outcome, RunResult) for outcome in outcomes.values()):
                _write(plan, outcomes, confidence, out)
            if not missing:  # Runs that the other process has ended, or given up.
                missing = [one for one in in_use if not RunFolder(one.folder).is_locked()]
                in_use = [one for one in in_use if one not in missing]
    if in_use:
        runs = f"{len(in_use)} runs are still in use by other processes"
        if len(in_use) == 1:
            runs = "1 run is still in use by another process"
        report(f"{runs}; the process that ends last writes all runs to {COMPARISON_FILE}")
    return _write(plan, outcomes, confidence, out)


def _write(plan: ComparisonPlan, outcomes: Outcomes, confidence: float, out: Path) -> Comparison:
    """Write the comparison of all runs that are complete, whichever process has trained them."""
    with _lock(out):  # A file of fewer runs must not replace one of more.
        for run in plan.runs:
            if not isinstance(outcomes.get(run.key), RunResult) and _is_done(run):
                with suppress(RunFolderError):  # A run that cannot be read has failed.
                    outcomes[run.key] = read_result(run, out)
        check_same_data(plan, outcomes)
        comparison = create_comparison(plan, outcomes, confidence=confidence)
        write_comparison(out / COMPARISON_FILE, comparison)
    return comparison


@contextmanager
def _lock(out: Path) -> Iterator[None]:
    """Lock the file of a comparison for a moment; other processes wait."""
    try:
        file = (out / ".comparison.lock").open("a")
    except OSError as error:
        raise StorageError(f"cannot write {out / COMPARISON_FILE}: {reason(error)}") from error
    with file:
        with suppress(ImportError, OSError):  # Some systems, and some file systems, have no locks.
            import fcntl  # noqa: PLC0415

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_done(run: PlannedRun) -> bool:
    """Whether a run that is to be trained is complete; not if it is one of another recipe."""
    folder = RunFolder(run.folder)
    try:
        if run.is_given or folder.is_locked() or not is_complete(run.folder):
            return False
        return find_difference(read_run_recipe(folder), run.recipe) is None
    except (RunFolderError, RecipeError):
        return False


def compare_runs(
    folders: Sequence[Path | str],
    *,
    baseline: str | None = None,
    confidence: float = 0.95,
) -> Comparison:
    """Compare the runs that are there, grouped by recipe without the seed. Nothing is written.

    Args:
        folders: Run folders, or folders that contain run folders.
        baseline: Method that the others are compared with: its name, or the folder that it was
            given as. None for the first one.
        confidence: Confidence of the intervals, between 0 and 1.

    Raises:
        RunFolderError: A folder is not a run, or the runs have other data.
        NoCompleteRunError: No run is complete.
        ValueError: There is no such baseline, or the confidence is not between 0 and 1.
    """
    check_confidence(confidence)
    for folder in folders:
        if not Path(folder).is_dir():
            raise RunFolderError(f"{folder} must be a run folder; it does not exist")
    # No folder is taken for the recipe of its name.
    targets = [f"./{path}" if not Path(path).is_absolute() else str(path) for path in folders]
    plan = plan_comparison(targets, out=Path(), baseline=baseline)
    return create_comparison(plan, _read_runs(plan, Path()), confidence=confidence)


def _read_runs(plan: ComparisonPlan, out: Path) -> Outcomes:
    """Read the runs that need no training."""
    outcomes: Outcomes = {}
    for run in plan.runs:
        if run.is_given:
            try:
                outcomes[run.key] = read_result(run, out)
            except RunFolderError as error:
                outcomes[run.key] = failed_run(run, out, str(error))
        elif is_complete(run.folder):
            outcomes[run.key] = read_result(run, out)
    check_same_data(plan, outcomes)
    return outcomes


def _check_images(missing: Sequence[PlannedRun], *, download: bool) -> None:
    """Refuse images that are not there, or that differ, before anything is trained."""
    if not missing:
        return
    recipes: dict[str, Recipe] = {}
    for run in missing:
        recipes.setdefault(run.method, with_seed(run.recipe, missing[0].recipe.seed))
    sections = [
        recipe.data.model_dump(mode="json", exclude=_SAME_IMAGES) for recipe in recipes.values()
    ]
    if all(section == sections[0] for section in sections):
        load_dataset(missing[0].recipe, download=download)
        return
    described = {name: _describe_images(recipe, download) for name, recipe in recipes.items()}
    (first, known), *others = described.items()
    for name, images in others:
        for what, value in images.items():
            if known.get(what) != value:
                raise RunFolderError(
                    f"compared recipes must have the same data; {first} and {name} have "
                    f"different {what}"
                )


def _describe_images(recipe: Recipe, download: bool) -> dict[str, Any]:
    """Return everything that the data of compared recipes must have in common."""
    dataset = load_dataset(recipe, download=download)
    return {
        "splits to evaluate on": recipe.split,
        "classes": tuple(dataset.train.class_names),
        "training images": dataset.train.fingerprint(),
        "images to evaluate on": dataset.test.fingerprint(),
    }


def _create_trainer(device: torch.device | str, *, download: bool) -> Trainer:
    def train(recipe: Recipe, folder: Path) -> bool:
        dataset = load_dataset(recipe, download=download)
        for _ in run_recipe(recipe, folder, dataset, device=device, start="resume"):
            pass
        return True

    return train


@contextmanager
def _room_for_compiled_steps(num_methods: int) -> Iterator[None]:
    """Let the compiler keep the training step of every method, for the next seed."""
    if num_methods <= _COMPILED_VERSIONS // 2:
        yield
        return
    import torch._dynamo  # noqa: PLC0415  It takes seconds to import.

    with torch._dynamo.config.patch(recompile_limit=_COMPILED_VERSIONS + 2 * num_methods):
        yield
