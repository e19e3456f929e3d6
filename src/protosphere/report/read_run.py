"""Read one run folder for a report: whatever can be read, and what is missing in words."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import yaml
from numpy.typing import NDArray

from protosphere.report.curves import finite
from protosphere.report.sources import RunData
from protosphere.runs.arrays import ARRAYS_FILE, EvaluationArrays, read_arrays_of
from protosphere.runs.folder import Record, RunFolder, RunFolderError
from protosphere.runs.metadata import DataMetadata, read_class_names
from protosphere.runs.results import list_results
from protosphere.storage.atomic import reason

State = Literal["complete", "running", "incomplete", "unknown"]
# A folder with one of these is a run, even if the others are missing.
_RUN_FILES = ("recipe.yaml", "metrics.jsonl", "machine.json")
_SQUARE = ("class_cosines", "prototype_cosines", "confusion")
_PER_CLASS = ("class_means", "prototypes", "class_accuracy", "class_confidence", "means_3d")


def is_run(path: Path) -> bool:
    """Return whether a folder is that of a run.

    Args:
        path: The folder.
    """
    return any((path / name).is_file() for name in _RUN_FILES)


def read_run(path: Path) -> RunData:
    """Read a run, without its name in the report.

    Args:
        path: The run folder.

    Returns:
        The run; name and method are those of its recipe, or of the folder if there is none.
    """
    return _Reader(path).read()


class _Reader:
    """Reads the files of a run and collects what is missing."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.problems: list[str] = []

    def read(self) -> RunData:
        recipe = self._read_recipe()
        is_running = self.folder.is_locked()
        records = self._read_records(is_running)
        state: State = "running" if is_running else "unknown"
        if records is not None:
            state = find_state(recipe, records, is_running=is_running)
        records = records or ()
        if state == "incomplete" and section_value(recipe, "schedule", "epochs"):
            self.problems.insert(0, _describe_end(recipe, records))
        best = best_evaluation(recipe, records)
        arrays, arrays_step = self._read_arrays(records, None if best is None else best["step"])
        class_names = self._read_class_names()
        arrays = self._check_shapes(arrays, len(class_names))
        seed = recipe.get("seed")
        name = str(recipe.get("name") or self.folder.path.resolve().name)
        return RunData(
            name=name,
            path=self.folder.path,
            method=name,
            seed=seed if isinstance(seed, int) else None,
            state=state,
            recipe=recipe,
            machine=self._read_machine(),
            data=self._read_data(),
            class_names=class_names,
            records=records,
            results=self._read_results(),
            arrays=arrays,
            arrays_step=arrays_step,
            problems=tuple(self.problems),
        )

    def _miss(self, name: str, consequence: str, error: RunFolderError | None = None) -> None:
        """Record that a file is missing, or damaged as an error says."""
        if not (self.folder.path / name).exists() or error is None:
            what = f"{name} is missing"
        else:
            what = str(error).replace(f"{self.folder.path}/", "")
        self.problems.append(f"{what}: {consequence}.")

    def _read_recipe(self) -> dict[str, Any]:
        consequence = "the settings of the run are not known"
        if not self.folder.recipe.exists():
            self._miss("recipe.yaml", consequence)
            return {}
        try:
            content = yaml.safe_load(self.folder.recipe.read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError):
            content = None
        if isinstance(content, dict) and all(isinstance(key, str) for key in content):
            return content
        self.problems.append(f"recipe.yaml is damaged: {consequence}.")
        return {}

    def _read_records(self, is_running: bool) -> tuple[Record, ...] | None:
        """The records; None if nothing says how far the run has come."""
        consequence = "curves and results are not available, nor how far the run has come"
        if not self.folder.metrics.exists():
            if not is_running:
                self._miss("metrics.jsonl", consequence)
            return None
        try:
            records, num_skipped = self.folder.read_records()
        except RunFolderError as error:
            self._miss("metrics.jsonl", consequence, error)
            return None
        kept = tuple(record for record in records if _is_record(record))
        num_skipped += len(records) - len(kept)
        if num_skipped and not is_running:  # The last line may be in the middle of being written.
            lines = "1 line" if num_skipped == 1 else f"{num_skipped} lines"
            self.problems.append(
                f"metrics.jsonl is damaged: {lines} could not be read and "
                f"{'is' if num_skipped == 1 else 'are'} left out."
            )
        return kept if kept or not num_skipped else None

    def _read_machine(self) -> Mapping[str, Any]:
        consequence = "device, package versions and commit are not known"
        try:
            content = self.folder.read_json("machine.json")
        except RunFolderError as error:
            self._miss("machine.json", consequence, error)
            return {}
        if isinstance(content, dict):
            return content
        self.problems.append(f"machine.json is damaged: {consequence}.")
        return {}

    def _read_data(self) -> Mapping[str, Any]:
        try:
            return asdict(DataMetadata.read(self.folder))
        except RunFolderError as error:
            self._miss("data.json", "the numbers of images are not known", error)
            return {}

    def _read_class_names(self) -> tuple[str, ...]:
        try:
            return tuple(read_class_names(self.folder))
        except RunFolderError as error:
            self._miss("classes.json", "classes have numbers instead of names", error)
            return ()

    def _read_arrays(self, records: tuple[Record, ...], step: int | None) -> EvaluationArrays:
        """The arrays of a step, or of the last evaluation."""
        has_evaluation = any(record.get("kind") == "evaluation" for record in records)
        if not has_evaluation and not (self.folder.path / ARRAYS_FILE).exists():
            return EvaluationArrays({}, None)  # They come with the first evaluation.
        try:
            return read_arrays_of(self.folder, step)
        except RunFolderError as error:
            consequence = "heat maps, the 3-D view and accuracies of classes are not available"
            self._miss(ARRAYS_FILE, consequence, error)
            return EvaluationArrays({}, None)

    def _check_shapes(
        self, arrays: dict[str, NDArray[Any]], num_names: int
    ) -> dict[str, NDArray[Any]]:
        """Return the arrays, or none if they do not fit each other and the class names."""
        known = {name: arrays[name] for name in (*_SQUARE, *_PER_CLASS) if name in arrays}
        counts = {array.shape[0] if array.ndim else 0 for array in known.values()}
        counts |= {array.shape[-1] for name, array in known.items() if name in _SQUARE}
        if num_names:
            counts.add(num_names)
        if known and len(counts) > 1:
            self.problems.append(
                f"{ARRAYS_FILE} is left out: its arrays and classes.json must be of one number of "
                f"classes, got {' and '.join(map(str, sorted(counts)))}."
            )
            return {}
        return arrays

    def _read_results(self) -> dict[str, Mapping[str, Any]]:
        results: dict[str, Mapping[str, Any]] = {}
        try:
            paths = list_results(self.folder)
        except OSError as error:
            self.problems.append(f"Cannot read benchmarks: {reason(error)}.")
            return {}
        for path in paths:
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError):
                content = None
            if _is_result(content):
                results[path.stem] = content
            else:
                self.problems.append(
                    f"benchmarks/{path.name} is damaged: its results are left out."
                )
        return results


def _is_record(record: Mapping[str, Any]) -> bool:
    """Whether a record has what sections rely on: step and epoch."""
    if record.get("kind") not in ("train", "evaluation"):
        return True
    return finite(record.get("step")) is not None and finite(record.get("epoch")) is not None


def _is_result(content: object) -> bool:
    return (
        isinstance(content, dict)
        and isinstance(content.get("settings"), dict)
        and isinstance(content.get("rows"), list)
        and all(isinstance(row, dict) for row in content["rows"])
    )


def section_value(recipe: Mapping[str, Any], section: str, key: str) -> Any:
    """Return a value of a recipe; None if the recipe does not have it.

    Args:
        recipe: Recipe as plain values.
        section: Name of the section.
        key: Key in the section.

    >>> section_value({"loss": {"name": "nonl"}}, "loss", "name")
    'nonl'
    """
    content = recipe.get(section)
    return content.get(key) if isinstance(content, Mapping) else None


def best_evaluation(recipe: Mapping[str, Any], records: Iterable[Record]) -> Record | None:
    """Return the best evaluation by the metric that a recipe monitors; None if there is none.

    Args:
        recipe: Recipe as plain values.
        records: Records of the run, oldest first.
    """
    monitor = section_value(recipe, "checkpoint", "monitor")
    if not isinstance(monitor, str):
        return None
    monitored = [
        record
        for record in records
        if record.get("kind") == "evaluation" and isinstance(record.get(monitor), int | float)
    ]
    sign = -1 if monitor == "loss" else 1

    def value_of(record: Record) -> float:
        value = finite(record[monitor])
        return -math.inf if value is None else sign * value

    return max(monitored, key=value_of, default=None)  # The first one of several equal ones.


def find_state(recipe: Mapping[str, Any], records: Iterable[Record], *, is_running: bool) -> State:
    """Return whether a run has its last evaluation, goes on, or has ended before.

    A run that has stopped early, because the monitored metric has not improved for as many
    evaluations as its patience, is complete.

    Args:
        recipe: Recipe as plain values.
        records: Records of the run, oldest first.
        is_running: Whether a process uses the run folder.

    >>> records = [{"kind": "evaluation", "step": 30, "epoch": 3}]
    >>> find_state({"schedule": {"epochs": 3}}, records, is_running=False)
    'complete'
    >>> find_state({"schedule": {"epochs": 4}}, records, is_running=False)
    'incomplete'
    """
    evaluations = [record for record in records if record.get("kind") == "evaluation"]
    epochs = finite(section_value(recipe, "schedule", "epochs"))
    if evaluations and epochs is not None and evaluations[-1]["epoch"] >= epochs:
        return "complete"
    if is_running:
        return "running"
    return "complete" if _has_stopped_early(recipe, evaluations) else "incomplete"


def _has_stopped_early(recipe: Mapping[str, Any], evaluations: list[Record]) -> bool:
    patience = finite(section_value(recipe, "checkpoint", "patience"))
    best = best_evaluation(recipe, evaluations)
    if best is None or patience is None:
        return False
    monitor = section_value(recipe, "checkpoint", "monitor")
    monitored = [one for one in evaluations if isinstance(one.get(monitor), int | float)]
    return len(monitored) - 1 - monitored.index(best) >= patience


def _describe_end(recipe: Mapping[str, Any], records: tuple[Record, ...]) -> str:
    epochs = section_value(recipe, "schedule", "epochs")
    last = max((one for record in records if (one := finite(record.get("epoch")))), default=0)
    if last == epochs:
        return f"The run has ended after epoch {last:g} without its last evaluation."
    return f"The run has ended after {last:g} of {epochs} epochs."
