"""Arrays of an evaluation: written atomically, read without torch."""

import os
from pathlib import Path

import numpy as np
import pytest

from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.arrays import (
    ARRAYS_FILE,
    BEST_ARRAYS_FILE,
    discard_best_arrays,
    keep_best_arrays,
    read_arrays,
    read_arrays_of,
    write_arrays,
)
from protosphere.storage import StorageError


def test_arrays_are_read_as_they_were_written(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    arrays = {
        "means": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32),
        "transposed": np.arange(6, dtype=np.int32).reshape(2, 3).T,
        "absent": np.array([np.nan, 1.0]),
        "empty": np.zeros((0, 3), np.float32),
    }
    write_arrays(run, {"old": np.ones(1)})
    write_arrays(run, arrays)
    loaded = read_arrays(run)
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype == array.dtype


def _first(run: RunFolder, step: int | None) -> tuple[float, int | None]:
    """Return the only number of the arrays of an evaluation, and the step that they are of."""
    arrays, found = read_arrays_of(run, step)
    return arrays["number"].item(), found


def test_the_arrays_of_the_best_evaluation_are_kept(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step, best in ((10, None), (20, 10), (30, 10), (40, 30), (50, 30)):
        if best is not None:
            keep_best_arrays(run, best)
        write_arrays(run, {"number": np.array(step)}, step=step)
    assert _first(run, 30) == (30, 30)
    assert _first(run, 50) == (50, 50)
    assert _first(run, None) == (50, 50)
    assert _first(run, 10) == (50, 50), "those of the last evaluation, if the others are gone"
    assert read_arrays(run)["number"] == 50
    discard_best_arrays(run)
    discard_best_arrays(run)
    assert _first(run, 30) == (50, 50)


def test_arrays_of_another_step_are_not_kept(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    keep_best_arrays(run, 10)  # There are none.
    write_arrays(run, {"number": np.array(1)}, step=10)
    keep_best_arrays(run, 10)
    # As a process leaves them that is killed before it saves the checkpoint of step 20.
    write_arrays(run, {"number": np.array(2)}, step=20)
    keep_best_arrays(run, 10)
    write_arrays(run, {"number": np.array(3)}, step=20)
    assert _first(run, 10) == (1, 10)
    assert _first(run, 20) == (3, 20)


def test_arrays_of_earlier_versions_are_of_an_unknown_step(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    write_arrays(run, {"number": np.array(1)})
    keep_best_arrays(run, 10)
    assert not (tmp_path / BEST_ARRAYS_FILE).exists()
    assert _first(run, 10) == (1, None)
    assert _first(run, None) == (1, None)


def test_one_damaged_file_does_not_hide_the_other(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    write_arrays(run, {"number": np.array(1)}, step=10)
    keep_best_arrays(run, 10)
    write_arrays(run, {"number": np.array(2)}, step=20)
    content = (tmp_path / ARRAYS_FILE).read_bytes()
    (tmp_path / ARRAYS_FILE).write_bytes(content[:-1])
    assert _first(run, 10) == (1, 10)
    keep_best_arrays(run, 20)
    assert _first(run, 10) == (1, 10), "a damaged file is not kept"
    with pytest.raises(RunFolderError, match=rf"{ARRAYS_FILE} is damaged"):
        read_arrays_of(run, 20)
    (tmp_path / ARRAYS_FILE).write_bytes(content)
    (tmp_path / BEST_ARRAYS_FILE).write_bytes(b"damaged")
    assert _first(run, 10) == (2, 20)


@pytest.mark.bad_input
def test_arrays_that_are_missing_or_damaged_are_refused(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with pytest.raises(RunFolderError, match=rf"has no {ARRAYS_FILE}"):
        read_arrays(run)
    write_arrays(run, {"means": np.ones((3, 4))})
    content = (tmp_path / ARRAYS_FILE).read_bytes()
    for damaged in (b"", content[:20], content[:-8], b"x" * 100):
        (tmp_path / ARRAYS_FILE).write_bytes(damaged)
        with pytest.raises(RunFolderError, match=rf"{ARRAYS_FILE} is damaged"):
            read_arrays(run)
    (tmp_path / ARRAYS_FILE).unlink()
    (tmp_path / ARRAYS_FILE).mkdir()
    with pytest.raises(RunFolderError, match=rf"cannot read .*{ARRAYS_FILE}: is a directory"):
        read_arrays(run)


def test_a_failed_write_keeps_the_old_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path)
    write_arrays(run, {"old": np.ones(1)})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="no space left on device"):
            write_arrays(run, {"new": np.ones(1)})
    assert list(read_arrays(run)) == ["old"]
