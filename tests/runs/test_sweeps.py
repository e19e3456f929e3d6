"""Records of sweeps: written and read back, the best trial, and what is as good as it."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protosphere.runs import RunFolderError
from protosphere.runs.sweeps import SweepRecord, SweepSetting, SweepTrial, read_sweep, write_sweep

SETTINGS = (
    SweepSetting("optimizer.lr", "log_range", low=0.1, high=1.0),
    SweepSetting("augmentation.mixing", "grid", values=(None, {"name": "mixup", "alpha": 0.2})),
)


def _record(*values: float | None, **changes: Any) -> SweepRecord:
    trials = tuple(
        SweepTrial(
            number,
            "failed" if value is None else "complete",
            {"optimizer.lr": 0.1 * (number + 1), "augmentation.mixing": None},
            value,
            evaluations=() if value is None else ((1, 0.1), (2, value)),
            metrics=None if value is None else {"accuracy": value},
            error="the loss must be finite" if value is None else None,
            run=f"trials/{number:04d}",
        )
        for number, value in enumerate(values)
    )
    record = SweepRecord(
        "digits", "name: digits\n", "accuracy", "maximize", 100, "tpe", 0, True, 5, SETTINGS, trials
    )
    return replace(record, **changes)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = _record(0.5, None, 0.7)
    write_sweep(tmp_path, record)
    assert read_sweep(tmp_path) == record
    assert read_sweep(tmp_path / "sweep.json") == record
    assert json.loads((tmp_path / "sweep.json").read_text())["best"] == 2


def test_the_best_trial_is_the_first_of_equal_ones() -> None:
    for values, direction, best in (
        ((0.5, 0.7, None, 0.7), "maximize", 1),
        ((0.5, 0.3, None, 0.3), "minimize", 1),
        ((None, None), "maximize", None),
        ((), "maximize", None),
    ):
        found = _record(*values, direction=direction).best
        assert (None if found is None else found.number) == best
    pruned = replace(_record(0.5).trials[0], number=1, state="pruned", value=None)
    assert _record(0.5, trials=(pruned, *_record(0.5).trials)).best == _record(0.5).trials[0]


def test_the_tolerance_is_a_standard_error_of_an_accuracy() -> None:
    assert _record(0.5, 0.8).tolerance == pytest.approx(math.sqrt(0.8 * 0.2 / 100))
    assert _record(0.5, 0.8, metric="loss", direction="minimize").tolerance == pytest.approx(0.005)
    assert _record().tolerance == 0.0


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"has no sweep\.json"),
        ("{", "is damaged: it is not JSON"),
        ("[]", "must hold the record of a sweep"),
        ('{"best": 0, "settings": [], "trials": []}', "must hold the record of a sweep"),
        ('{"best": 0, "settings": [{"key": "a"}], "trials": []}', "must hold the record"),
    ],
)
def test_a_damaged_record_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(RunFolderError, match=message):
        read_sweep(tmp_path / "sweep.json")


@pytest.mark.whole_program
def test_records_are_read_without_torch_and_optuna() -> None:
    check = "import sys; from protosphere.runs.sweeps import read_sweep; "
    check += "assert not {'torch', 'optuna', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
