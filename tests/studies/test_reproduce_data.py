"""Data of a table are checked before anything is trained."""

from pathlib import Path

import pytest

from protosphere.data.splits import DataError
from protosphere.studies.reproduce import TargetPlan, plan_target, run_target
from protosphere.studies.reproduce_data import check_data
from protosphere.studies.reproduce_readings import RunReader
from support.reproductions import numbers_of, tiny_overrides, write_records


def _table5(out: Path) -> TargetPlan:
    overrides = [*tiny_overrides(), "training.batch_size=30"]
    return plan_target("table5", out=out, rows=["ntce"], columns=["mce"], overrides=overrides)


def test_corrupted_images_are_looked_for_before_training(tmp_path: Path) -> None:
    plan = _table5(tmp_path / "out")
    assert all(
        "10 classes, not 1000" in warning for warning in check_data(plan, RunReader(plan.runs))
    )
    reader = RunReader(plan.runs, corruption_folder=tmp_path / "missing")
    with pytest.raises(DataError, match="must be a folder of corrupted images; it does not exist"):
        check_data(plan, reader)


def test_classes_of_complete_runs_are_compared_with_the_papers(tmp_path: Path) -> None:
    def plan() -> TargetPlan:
        return plan_target("table1", out=tmp_path, rows=["nonl"], columns=["cifar100"])

    write_records(plan(), {"cifar100-nonl": 0.9})  # Of ten classes.
    (warning,) = check_data(plan(), RunReader(plan().runs))
    assert warning == ("the data for CIFAR-100 have 10 classes, not 100: they are not the paper's")
    (tmp_path / "cifar100-nonl-1000-epochs" / "classes.json").unlink()
    assert check_data(plan(), RunReader(plan().runs)) == ()


def test_data_from_elsewhere_are_not_said_to_be_downloadable(tmp_path: Path) -> None:
    overrides = ["data.source=arrays", f"data.path={tmp_path / 'no.npz'}"]
    plan = plan_target("table1", out=tmp_path, columns=["cifar10"], overrides=overrides)
    with pytest.raises(DataError, match=r"^table1 needs CIFAR-10: .*no\.npz"):
        check_data(plan, RunReader(plan.runs))


def test_a_run_whose_records_are_lost_has_failed(tmp_path: Path) -> None:
    plan = plan_target("table1", out=tmp_path, rows=["nonl"], columns=["cifar100"])
    result = run_target(plan, train=lambda *_: True)  # It says that there is nothing left to do.
    assert "must have the records of all epochs" in result.failures["cifar100-nonl-1000-epochs"]
    assert list(numbers_of(result).values()) == [None]
