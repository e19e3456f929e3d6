"""Reproduce a table of the paper: plan its runs, train those that are missing, read its numbers."""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from protosphere.data.splits import DataError
from protosphere.recipes.build import load_dataset
from protosphere.recipes.schema import RecipeError
from protosphere.recipes.schema.text import parse_value
from protosphere.report.paper import paper_value
from protosphere.storage import create_folder, write_json
from protosphere.studies.common import describe_error, free_memory
from protosphere.studies.compare import Trainer
from protosphere.studies.compiled_code import CompiledCode
from protosphere.studies.reproduce_readings import RunReader, Value
from protosphere.studies.reproduce_runs import PaperRun, PlannedRun, get_base_recipe, plan_run
from protosphere.studies.reproduce_targets import Cell, Target, get_target

_LOG = logging.getLogger("protosphere")


@dataclass(frozen=True)
class TargetPlan:
    """What a table needs.

    Attributes:
        target: The table, with the rows and columns that were chosen.
        scale: Fraction of the paper's epochs.
        out: Folder of the runs.
        runs: The runs, by the run of the paper.
        data: Titles of the datasets that it trains on.
        transfer_sets: Names of the sets that it transfers to.
        overrides: What is changed in all recipes.
    """

    target: Target
    scale: float
    out: Path
    runs: dict[PaperRun, PlannedRun]
    data: tuple[str, ...]
    transfer_sets: tuple[str, ...]
    overrides: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[PlannedRun, ...]:
        """The runs that are not complete."""
        return tuple(run for run in self.runs.values() if not run.is_complete)

    @property
    def hours_left(self) -> float | None:
        """Estimated hours of training on one H200 that are left; None if they are not known."""
        hours = [run.hours_left for run in self.missing]
        return None if None in hours else sum((hour or 0.0 for hour in hours), 0.0)


@dataclass(frozen=True)
class Number:
    """One number of a table, ours beside the paper's.

    Attributes:
        row: Name of the row.
        column: Name of the column.
        epochs: Number of epochs of our runs.
        paper_epochs: Number of epochs of the paper's runs.
        value: Our number; ``"never"`` for what did not happen; None if runs are missing.
        paper: The paper's number, if it prints one.
        runs: Our run folders, relative to that of the reproduction.
    """

    row: str
    column: str
    epochs: int
    paper_epochs: int
    value: Value
    paper: float | None
    runs: tuple[str, ...]

    @property
    def difference(self) -> float | None:
        """Our number minus the paper's."""
        is_known = isinstance(self.value, float | int) and self.paper is not None
        return float(self.value) - self.paper if is_known else None  # type: ignore[arg-type, operator]


@dataclass(frozen=True)
class Reproduction:
    """A table of the paper beside our numbers.

    Attributes:
        target: Name of the table.
        title: What it shows.
        scale: Fraction of the paper's epochs.
        note: What is different from the paper.
        numbers: The numbers.
        failures: Why runs have no result, by their folder.
        pending: Folders of runs that are not complete.
        overrides: What was changed in all recipes.
    """

    target: str
    title: str
    scale: float
    note: str
    numbers: tuple[Number, ...]
    failures: dict[str, str]
    pending: tuple[str, ...]
    overrides: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with the differences."""
        content = asdict(self)
        content["numbers"] = [
            asdict(number) | {"difference": number.difference} for number in self.numbers
        ]
        plain: dict[str, Any] = json.loads(json.dumps(content))
        return plain


def plan_target(
    name: str,
    *,
    out: Path | str,
    scale: float = 1.0,
    overrides: Sequence[str] = (),
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> TargetPlan:
    """Return what a table needs; nothing is trained or written.

    Args:
        name: Name of the table or figure.
        out: Folder of the runs.
        scale: Fraction of the paper's epochs, greater than 0.
        overrides: Values of all recipes to replace, each ``dotted.path=value``.
        rows: Names of the rows; none for all.
        columns: Names of the columns; none for all.

    Raises:
        RecipeError: An override is not valid.
        RunFolderError: A folder holds a run of another recipe.
        ValueError: There is no such table, row or column, or the scale leaves no epoch.
    """
    if not 0 < scale <= 1:
        raise ValueError(f"scale must be greater than 0 and at most 1, got {scale:g}")
    target = _select(get_target(name), rows, columns)
    out = Path(out)
    needed = dict.fromkeys(
        run for cell in target.cells for run in (*cell.runs, *cell.reading.other_runs)
    )
    planned = {run: plan_run(run, out=out, scale=scale, overrides=overrides) for run in needed}
    _check_overrides(planned, overrides)
    sets = [one for cell in target.cells for one in cell.reading.transfer_sets]
    return TargetPlan(
        target,
        scale,
        out,
        planned,
        tuple(dict.fromkeys(run.data.title for run in needed)),
        tuple(dict.fromkeys(sets)),
        tuple(overrides),
    )


def check_data(plan: TargetPlan, reader: RunReader, *, download: bool = False) -> tuple[str, ...]:
    """Check that all data are there, before anything is trained.

    Args:
        plan: What the table needs.
        reader: The runs.
        download: Whether missing data are downloaded.

    Returns:
        Sentences about data that cannot be those of the paper.

    Raises:
        DataError: Some are not; the message says what needs them.
    """
    checked: set[tuple[str, str]] = set()
    warnings = []
    for run in plan.missing:
        section = run.run.data.title, run.recipe.data.model_dump_json()
        if section in checked:
            continue
        checked.add(section)
        try:
            dataset = load_dataset(run.recipe, download=download)
        except DataError as error:
            data = run.run.data
            raise DataError(
                f"{plan.target.name} needs {data.title} ({data.source}): {error}; "
                f"{_advice(plan, run)}"
            ) from None
        num_classes = dataset.train.num_classes
        if num_classes != run.run.data.num_classes:
            warnings.append(
                f"the data for {run.run.data.title} have {num_classes} classes, not "
                f"{run.run.data.num_classes}: they are not the paper's"
            )
    if any(not run.is_complete or run.has_weights for run in plan.runs.values()):
        for name in plan.transfer_sets:
            reader.transfer_set(name)
    return tuple(warnings)


def _advice(plan: TargetPlan, missing: PlannedRun) -> str:
    """What can be done about data that are missing."""
    title = missing.run.data.title
    others = [
        column
        for column in plan.target.columns
        if all(
            run.data.title != title
            for cell in plan.target.cells
            if cell.column == column
            for run in (*cell.runs, *cell.reading.other_runs)
        )
    ]
    hours = plan.hours_left
    cost = "" if hours is None else f" (about {hours:,.1f} hours of training on one H200)"
    text = f"--dry-run prints what all of it costs{cost} and the commands that run it elsewhere"
    if others:
        text += f"; {title} is not needed with --column {' or '.join(others)}"
    return text


def run_target(
    plan: TargetPlan,
    *,
    train: Trainer,
    reader: RunReader | None = None,
    device: torch.device | str = "cpu",
    report: Callable[[str], None] = lambda _: None,
) -> Reproduction:
    """Train the runs that are missing, one at a time, and read the numbers of a table.

    Complete runs are read, interrupted ones resumed. A run that fails is recorded, and the next one
    is trained. The result is written to OUT/NAME.json, and does not depend on how often the
    reproduction was interrupted.

    Args:
        plan: What the table needs.
        train: Function that trains a recipe into a folder, or resumes it there, and returns
            whether training is complete; after False the reproduction stops.
        reader: How numbers are read; None reads them with the defaults.
        device: Where to train.
        report: Called with a line of text before each run that is trained, and after a failure.

    Raises:
        DataError: Data of a benchmark are missing.
        RunFolderError: The records of a run are damaged.
        StorageError: The folder cannot be written to.
    """
    failures: dict[str, str] = {}
    runs, is_stopped = dict(plan.runs), False
    code, missing = CompiledCode(device), plan.missing
    if missing and len(missing) < len(runs):
        report(f"{len(runs) - len(missing)} of {len(runs)} runs are complete")
    for number, run in enumerate(missing, len(runs) - len(missing) + 1):
        report(f"Run {number} of {len(runs)}: {run.folder.name}, into {run.folder}")
        code.prepare(run.recipe)
        try:
            if not train(run.recipe, run.folder):
                is_stopped = True
                break
            epochs = run.recipe.schedule.epochs
            runs[run.run] = replace(run, is_complete=True, epochs_done=epochs)
        except Exception as error:  # The other runs are worth having, whatever has happened.
            _LOG.debug("%s has failed", run.folder, exc_info=True)
            failures[_relative(run.folder, plan.out)] = describe_error(error)
            report(f"{run.folder.name} has failed: {describe_error(error)}")
        free_memory()
    reader = RunReader(runs, device) if reader is None else replace(reader, runs=runs)
    result = Reproduction(
        plan.target.name,
        plan.target.title,
        plan.scale,
        plan.target.note,
        # Who stops training does not want to wait for benchmarks.
        read_numbers(plan, reader, logged_only=is_stopped),
        failures,
        tuple(_relative(run.folder, plan.out) for run in runs.values() if not run.is_complete),
        plan.overrides,
    )
    _write(plan.out / f"{plan.target.name}.json", result)
    return result


def read_numbers(
    plan: TargetPlan, reader: RunReader | None = None, *, logged_only: bool = False
) -> tuple[Number, ...]:
    """Read the numbers of a table from the runs that are complete; nothing is trained.

    Args:
        plan: What the table needs.
        reader: The runs; None for those of the plan.
        logged_only: Whether numbers that need a benchmark are left out.

    Returns:
        All numbers of the table; those whose runs are missing have the value None.

    Raises:
        RunFolderError: The records of a run are damaged, or have neither weights nor benchmark.
    """
    reader = RunReader(plan.runs) if reader is None else reader
    return tuple(
        _read_number(cell, reader, plan.out, logged_only=logged_only) for cell in plan.target.cells
    )


def _read_number(cell: Cell, reader: RunReader, out: Path, *, logged_only: bool) -> Number:
    planned = [reader.runs[run] for run in (*cell.runs, *cell.reading.other_runs)]
    value: Value = None
    is_read = cell.reading.is_logged or not logged_only
    if is_read and all(run.is_complete for run in planned):
        value = _combine([cell.reading.read(reader, run) for run in cell.runs], cell)
    own = [reader.runs[run] for run in cell.runs]
    epochs = own[0].recipe.schedule.epochs
    return Number(
        cell.row,
        cell.column,
        epochs,
        paper_epochs=_paper_epochs(cell.runs[0]),
        value=value,
        paper=paper_value(*cell.paper) if cell.paper else None,  # type: ignore[arg-type]
        runs=tuple(_relative(run.folder, out) for run in own),
    )


def _combine(values: list[Value], cell: Cell) -> Value:
    if len(values) == 1 and cell.combination != "std":
        return values[0]
    numbers = [value for value in values if isinstance(value, float | int)]
    if len(numbers) < len(values) or any(map(math.isnan, numbers)):
        return None
    combine: dict[str, Callable[[list[float]], float]] = {"mean": fmean, "std": stdev, "best": max}
    return combine[cell.combination](numbers)


def _paper_epochs(run: PaperRun) -> int:
    return get_base_recipe(run.recipe).schedule.epochs


def _select(target: Target, rows: Sequence[str], columns: Sequence[str]) -> Target:
    """Return a table with some of its rows and columns."""
    for what, chosen, known in (
        ("row", rows, target.rows),
        ("column", columns, target.columns),
    ):
        for name in chosen:
            if name not in known:
                raise ValueError(
                    f"a {what} of {target.name} must be one of {', '.join(known)}; got {name!r}"
                )
    cells = tuple(
        cell
        for cell in target.cells
        if (not rows or cell.row in rows) and (not columns or cell.column in columns)
    )
    if not cells:
        raise ValueError(f"{target.name} has no number in these rows and columns")
    return replace(target, cells=cells)


def _check_overrides(planned: Mapping[PaperRun, PlannedRun], overrides: Sequence[str]) -> None:
    """Refuse an override that no recipe has taken."""
    for override in overrides:
        key, _, text = override.partition("=")
        section, _, name = key.strip().partition(".")
        if section != "data" or "." in name or name == "root":  # Also of sets to transfer to.
            continue
        value = parse_value(text)
        taken = [run.recipe.data.model_dump(mode="json").get(name) for run in planned.values()]
        if value not in taken:
            raise RecipeError(f"no recipe of this table has {key.strip()}")


def _relative(folder: Path, out: Path) -> str:
    return folder.relative_to(out).as_posix()


def _write(path: Path, result: Reproduction) -> None:
    create_folder(path.parent)
    write_json(path, result.to_json())
