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

from protosphere.recipes.schema import RecipeError
from protosphere.recipes.schema.text import parse_value
from protosphere.report.paper import paper_value
from protosphere.runs import RunFolderError
from protosphere.storage import StorageError, create_folder, write_json
from protosphere.studies.common import describe_error, free_memory
from protosphere.studies.compare import Trainer
from protosphere.studies.compare_records import is_complete
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
        failures: Why runs have no result, by their folder; and why numbers have none, by row and
            column.
        pending: Folders of runs that are not complete.
        overrides: What was changed in all recipes.
        warnings: Sentences about data that cannot be those of the paper.
    """

    target: str
    title: str
    scale: float
    note: str
    numbers: tuple[Number, ...]
    failures: dict[str, str]
    pending: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

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
    sets = [one for cell in target.cells for one in cell.reading.transfer_sets]
    _check_overrides(planned, overrides, sets)
    return TargetPlan(
        target,
        scale,
        out,
        planned,
        tuple(dict.fromkeys(run.data.title for run in needed)),
        tuple(dict.fromkeys(sets)),
        tuple(overrides),
    )


def run_target(
    plan: TargetPlan,
    *,
    train: Trainer,
    reader: RunReader | None = None,
    device: torch.device | str = "cpu",
    warnings: Sequence[str] = (),
    report: Callable[[str], None] = lambda _: None,
) -> Reproduction:
    """Train the runs that are missing, one at a time, and read the numbers of a table.

    Complete runs are read, interrupted ones resumed. A run or a benchmark that fails is recorded,
    and the next one is computed. The result is written to OUT/NAME.json, and does not depend on how
    often the reproduction was interrupted.

    Args:
        plan: What the table needs.
        train: Function that trains a recipe into a folder, or resumes it there, and returns
            whether training is complete; after False the reproduction stops.
        reader: How numbers are read; None reads them with the defaults.
        device: Where to train; ``"auto"`` finds a GPU.
        warnings: What to say about the data in the result.
        report: Called with a line of text before each run that is trained, and after a failure.

    Raises:
        StorageError: The folder cannot be written to.
    """
    create_folder(plan.out)
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
            if not is_complete(run.folder):
                raise RunFolderError(f"{run.folder} must have the records of all epochs")
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
        read_numbers(plan, reader, logged_only=is_stopped, failures=failures),
        failures,
        tuple(_relative(run.folder, plan.out) for run in runs.values() if not run.is_complete),
        plan.overrides,
        tuple(warnings),
    )
    write_json(plan.out / f"{plan.target.name}.json", result.to_json())
    return result


def read_numbers(
    plan: TargetPlan,
    reader: RunReader | None = None,
    *,
    logged_only: bool = False,
    failures: dict[str, str] | None = None,
) -> tuple[Number, ...]:
    """Read the numbers of a table from the runs that are complete; nothing is trained.

    Args:
        plan: What the table needs.
        reader: The runs; None for those of the plan.
        logged_only: Whether numbers that need a benchmark are left out.
        failures: Takes why numbers could not be read, by row and column; if it is None, the first
            error is raised.

    Returns:
        All numbers of the table; those that are missing have the value None.

    Raises:
        RunFolderError: The records of a run are damaged, or have neither weights nor benchmark.
        StorageError: A folder cannot be written to.
    """
    reader = RunReader(plan.runs) if reader is None else reader
    numbers = []
    for cell in plan.target.cells:
        try:
            value = _read_value(cell, reader, logged_only=logged_only)
        except StorageError:
            raise
        except Exception as error:  # The other numbers are worth having, whatever has happened.
            if failures is None:
                raise
            _LOG.debug("%s, %s has failed", cell.row, cell.column, exc_info=True)
            failures[f"{cell.row}, {cell.column}"] = describe_error(error)
            value = None
        numbers.append(_create_number(cell, value, reader, plan.out))
    return tuple(numbers)


def _read_value(cell: Cell, reader: RunReader, *, logged_only: bool) -> Value:
    planned = [reader.runs[run] for run in (*cell.runs, *cell.reading.other_runs)]
    is_read = cell.reading.is_logged or not logged_only
    if not is_read or not all(run.is_complete for run in planned):
        return None
    return _combine([cell.reading.read(reader, run) for run in cell.runs], cell)


def _create_number(cell: Cell, value: Value, reader: RunReader, out: Path) -> Number:
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


def _check_overrides(
    planned: Mapping[PaperRun, PlannedRun], overrides: Sequence[str], transfer_sets: Sequence[str]
) -> None:
    """Refuse an override that no recipe has taken; ``data.root`` is that of transfer sets too."""
    for override in overrides:
        key, _, text = override.partition("=")
        section, _, name = key.strip().partition(".")
        if section != "data" or "." in name or (name == "root" and transfer_sets):
            continue
        value = parse_value(text)
        taken = [run.recipe.data.model_dump(mode="json").get(name) for run in planned.values()]
        if value not in taken:
            raise RecipeError(f"no recipe of this table has {key.strip()}")


def _relative(folder: Path, out: Path) -> str:
    return folder.relative_to(out).as_posix()
