"""Atomic writes: a file has its old content or its new content, whatever fails on the way."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from protosphere.storage import StorageError, sync_folder, temporary_path, write_atomically


def _fail(code: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"first", b"", b"a longer text than before"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("function", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("code", "reason"),
    [(errno.ENOSPC, "no space left on device"), (errno.EIO, "input/output error")],
)
def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(
    function: str, code: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os if function == "fsync" else Path, function, _fail(code))
        with pytest.raises(StorageError, match=f"cannot write {path}: {reason}"):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_the_content_is_on_disk_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    sync, replace = os.fsync, Path.replace

    def record_sync(descriptor: int) -> None:
        calls.append("sync")
        sync(descriptor)

    def record_replace(source: Path, target: Path) -> Path:
        calls.append("rename")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "replace", record_replace)
    write_atomically(tmp_path / "file", b"content")
    assert calls == ["sync", "rename", "sync"], "the file, then its name, then the folder"


def test_a_killed_process_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process cleans nothing up; the next write replaces its temporary file."""

    class KilledError(BaseException):
        pass

    def kill(_: int) -> None:
        raise KilledError

    path = tmp_path / "file"
    write_atomically(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", kill)
        with pytest.raises(KilledError):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert temporary_path(path).exists()
    write_atomically(path, b"newer")
    assert path.read_bytes() == b"newer"
    assert not temporary_path(path).exists()


def test_threads_that_write_one_file_replace_it_one_after_the_other(tmp_path: Path) -> None:
    """Threads stand for processes: each of them opens the file itself."""
    path = tmp_path / "file"
    contents = [bytes([65 + number]) * (100_000 + number) for number in range(4)]
    write_atomically(path, contents[0])
    with ThreadPoolExecutor(len(contents)) as pool:
        writes = [pool.submit(write_atomically, path, content) for content in 25 * contents]
        while not all(write.done() for write in writes):
            assert path.read_bytes() in contents
    for write in writes:
        write.result()
    assert path.read_bytes() in contents
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("error", [ImportError("no fcntl"), OSError(errno.ENOLCK, "no locks")])
def test_a_file_is_written_where_locks_do_not_exist(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("fcntl.flock", fail)
    write_atomically(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["missing/file", "document/file"])
def test_a_folder_that_does_not_exist_is_a_storage_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "document").write_text("text")
    with pytest.raises(StorageError, match=f"cannot write {tmp_path / name}: "):
        write_atomically(tmp_path / name, b"content")


def test_a_storage_error_keeps_the_original_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        write_atomically(tmp_path / "missing" / "file", b"content")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert not isinstance(caught.value, ValueError), "not the fault of a run folder or an argument"


def test_syncing_a_missing_folder_raises(tmp_path: Path) -> None:
    sync_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "missing")


@pytest.mark.whole_program
def test_storage_is_pure_python() -> None:
    check = (
        "import sys, protosphere.storage\n"
        "assert not {'torch', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], check=True, capture_output=True)
