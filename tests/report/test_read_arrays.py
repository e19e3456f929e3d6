"""Which evaluation the arrays of a run are of: the best one if it was kept; the page says so."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protosphere.report.content import Note
from protosphere.report.read import read_sources
from protosphere.report.sections import classes, geometry, overview
from protosphere.report.sources import ReportData, RunData
from protosphere.runs import RunFolder
from protosphere.runs.arrays import (
    ARRAYS_FILE,
    BEST_ARRAYS_FILE,
    keep_best_arrays,
    read_arrays,
    write_arrays,
)
from support.report_folders import write_run
from support.report_runs import create_run, evaluations


def _read(path: Path) -> RunData:
    (run,) = read_sources([path]).runs
    return run


def _write(folder: Path, *, best: int) -> RunFolder:
    """Write a run of four evaluations as training does; one of them is the best."""
    recipe = {"checkpoint": {"monitor": "accuracy", "patience": None}}
    run = RunFolder(write_run(folder, recipe=recipe))
    records: list[dict[str, Any]] = run.records()
    for record in records:
        if record["kind"] == "evaluation":
            record["accuracy"] = 0.9 if record["epoch"] == best else 0.5
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    arrays = read_arrays(run)
    for epoch in range(1, 5):
        if epoch > best:
            keep_best_arrays(run, 10 * best)
        write_arrays(run, arrays | {"class_accuracy": np.full(4, epoch / 10)}, step=10 * epoch)
    return run


@pytest.mark.parametrize("best", [2, 3, 4])
def test_arrays_are_those_of_the_best_evaluation(tmp_path: Path, best: int) -> None:
    _write(tmp_path, best=best)
    run = _read(tmp_path)
    assert (run.problems, run.arrays_step) == ((), 10 * best)
    assert run.arrays["class_accuracy"].tolist() == [best / 10] * 4


def test_arrays_are_those_of_the_last_evaluation_if_others_are_not_there(tmp_path: Path) -> None:
    folder = _write(tmp_path, best=2)
    (tmp_path / BEST_ARRAYS_FILE).unlink()
    run = _read(tmp_path)
    assert (run.problems, run.arrays_step) == ((), 40)
    write_arrays(folder, read_arrays(folder))  # As earlier versions wrote them.
    run = _read(tmp_path)
    assert (run.problems, run.arrays_step) == ((), None)
    assert run.arrays["class_accuracy"].tolist() == [0.4] * 4


def test_arrays_are_those_of_the_last_evaluation_if_nothing_is_monitored(tmp_path: Path) -> None:
    _write(tmp_path, best=2)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("monitor: accuracy", "monitor: null"))
    assert _read(tmp_path).arrays_step == 40


def test_the_arrays_of_the_best_evaluation_are_enough(tmp_path: Path) -> None:
    _write(tmp_path, best=2)
    (tmp_path / ARRAYS_FILE).unlink()
    run = _read(tmp_path)
    assert (run.problems, run.arrays_step) == ((), 20)


RECIPE = {"schedule": {"epochs": 40}, "checkpoint": {"monitor": "accuracy", "patience": 2}}
RECORDS = evaluations({"accuracy": [0.3, 0.6, 0.5, 0.4]})
# Arrays of the best evaluation, of the last one, of an unknown step; a run that monitors nothing.
BEST = create_run("kept", recipe=RECIPE, records=RECORDS, arrays_step=2)
LAST = replace(BEST, name="last", arrays_step=4)
OLDER = replace(BEST, name="older", arrays_step=None)
PLAIN = create_run("plain", records=RECORDS, arrays_step=4)


@pytest.mark.parametrize("section", [geometry, classes])
@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([BEST], "of the best evaluation, epoch 2 of 40"),
        ([LAST], "of the last evaluation"),
        ([OLDER], "of the last evaluation"),
        ([PLAIN, OLDER], "of the last evaluation"),
        ([BEST, PLAIN], "of the last evaluation, or the best one where the recipe monitors a met"),
        ([BEST, OLDER], "of the last evaluation, or the best one where the run folder has it"),
    ],
)
def test_sections_say_which_evaluation_they_show(
    section: Any, runs: list[RunData], words: str
) -> None:
    intro = section.create_section(ReportData(tuple(runs))).intro
    assert words in intro
    assert ("or the best one" in intro) == ("or the best one" in words)


def test_the_overview_names_runs_whose_figures_show_another_evaluation() -> None:
    section = overview.create_section(ReportData((BEST, LAST, OLDER, PLAIN)))
    (note,) = [
        block.text
        for block in section.blocks
        if isinstance(block, Note) and "instead of the best one" in block.text
    ]
    assert "show the last evaluation of last and older instead of the best one" in note
