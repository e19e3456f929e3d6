"""The folder of a sweep: processes that start together, missing files, and studies of others."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protosphere.recipes.build import load_dataset
from protosphere.runs.sweeps import read_sweep
from protosphere.storage import StorageError
from protosphere.studies.sweep_folder import SweepFolder
from protosphere.studies.sweep_settings import SweepError
from support.sweeps import sweep, train_nothing

OVER = "optimizer.lr=0.1,0.2"


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a finished sweep, whose second trial is the best; trials train nothing."""
    monkeypatch.setattr("protosphere.studies.sweep.run_recipe", train_nothing)
    sweep(tmp_path / "own", OVER)
    return tmp_path / "own"


def _contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "sweep.db")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_process_that_starts_while_another_creates_the_folder_joins_it(
    has_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process runs between any two looks at the folder."""
    out = tmp_path / "sweep"
    if has_folder:
        out.mkdir()
    identities: list[str] = []

    def create_before(method: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Path, *arguments: Any, **options: Any) -> Any:
            if path == out and not identities:
                identities.append("")  # The other process looks at the folder, too.
                with closing(SweepFolder(out)) as other:
                    identities[0] = other.identity
            return method(path, *arguments, **options)

        return look

    for name in ("mkdir", "iterdir"):
        monkeypatch.setattr(Path, name, create_before(getattr(Path, name)))
    with closing(SweepFolder(out)) as folder:
        assert identities == [folder.identity]


def test_a_folder_has_its_identity_before_any_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(StorageError, match="no space left"):
        SweepFolder(tmp_path / "sweep")
    assert list((tmp_path / "sweep").iterdir()) == []


@pytest.mark.bad_input
@pytest.mark.parametrize("other", ["storage", "study", "full storage", "lost database"])
def test_a_finished_sweep_is_kept_from_a_study_that_does_not_know_it(
    other: str, finished: Path
) -> None:
    over, options = OVER, dict[str, Any]()
    if other == "lost database":
        (finished / "sweep.db").unlink()
    elif other == "study":
        over, options = "optimizer.lr=0.3,0.4", {"study": "other"}
    else:
        options = {"storage": f"journal:{finished.parent / 'other.log'}"}
    if other == "full storage":  # Its best trial is the first one.
        over = "optimizer.lr=0.2,0.1"
        sweep(finished.parent / "other", over, **options)
    before = _contents(finished)
    assert "trials/0001/checkpoints/weights" in before
    with pytest.raises(SweepError, match=r"own/trials/0000 exists, but the storage does not know"):
        sweep(finished, over, **options)
    assert _contents(finished) == before
    assert (finished / "sweep.db").exists() == (other != "lost database")


@pytest.mark.bad_input
def test_a_sweep_that_another_command_starts_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protosphere.studies.sweep.run_recipe", train_nothing)
    out = tmp_path / "own"

    def load_after_another_sweep(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr("protosphere.studies.sweep.load_dataset", load_dataset)
        sweep(out, OVER)
        return load_dataset(*arguments, **options)

    monkeypatch.setattr("protosphere.studies.sweep.load_dataset", load_after_another_sweep)
    with pytest.raises(SweepError, match="trials/0000 exists, but the storage does not know it"):
        sweep(out, OVER, storage=f"journal:{tmp_path / 'other.log'}")
    assert len(read_sweep(out).trials) == 2
    assert (out / "trials/0001/checkpoints/weights").exists()


def test_weights_of_trials_that_are_no_trials_of_the_folder_are_kept(finished: Path) -> None:
    """Whatever the record says of a trial in another folder with the same number."""
    record = read_sweep(finished)
    others = tuple(replace(trial, value=0.5 - trial.number, run="") for trial in record.trials)
    with closing(SweepFolder(finished)) as folder, folder.lock():
        folder.write(replace(record, trials=others), None)
    assert (finished / "trials/0001/checkpoints/weights").exists()


def test_a_record_names_the_run_folders_of_its_own_folder(finished: Path) -> None:
    out = finished.parent
    storage = f"journal:{out / 'shared.log'}"
    first = sweep(out / "a", OVER, sampler="random", trials=1, storage=storage)
    second = sweep(out / "b", OVER, sampler="random", trials=2, storage=storage)
    assert [trial.run for trial in first.trials] == ["trials/0000"]
    assert [trial.run for trial in second.trials] == ["", "trials/0001"]


def test_a_sweep_has_as_many_trials_as_there_are(finished: Path) -> None:
    out = finished.parent
    storage = f"journal:{out / 'shared.log'}"
    options: dict[str, Any] = {"sampler": "random", "storage": storage}
    assert len(sweep(out / "a", OVER, trials=2, **options).trials) == 2
    assert sweep(out / "a", OVER, trials=1, **options).num_trials == 2
