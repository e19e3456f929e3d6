"""Arrays of an evaluation: written atomically, read without torch."""

import os
from pathlib import Path

import numpy as np
import pytest

from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs.arrays import ARRAYS_FILE, read_arrays, write_arrays
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
