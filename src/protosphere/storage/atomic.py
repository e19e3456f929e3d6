"""Atomic file writes: a reader sees the old content or the new one, never a part of it."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from protosphere.storage.errors import StorageError


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically and flush it to disk.

    The content goes to a temporary file beside ``path``, which then replaces it. Several threads or
    processes may write the same file: one waits for the other, and the last one's content stays.

    Args:
        path: File to write or replace.
        content: The bytes of the file.

    Raises:
        StorageError: The file could not be written. An existing file is left unchanged.
    """
    temporary = temporary_path(path)
    try:
        with _open_alone(temporary) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):  # A read-only file system refuses the removal too.
            temporary.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {reason(error)}") from error


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically; equal contents give equal bytes.

    Args:
        path: File to write or replace.
        content: Lists, dictionaries, strings, numbers, booleans and None.

    Raises:
        StorageError: The file could not be written.
    """
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_atomically(path, text.encode())


def create_folder(path: Path, *, parents: bool = True) -> None:
    """Create a folder unless it exists.

    Args:
        path: The folder.
        parents: Whether to create the folders that it is in, too.

    Raises:
        StorageError: The folder could not be created.
    """
    try:
        path.mkdir(parents=parents, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot create {path}: {reason(error)}") from error


def _open_alone(path: Path) -> IO[bytes]:
    """Open a temporary file, empty, as soon as nobody else writes to it."""
    while True:
        file = path.open("ab")  # It may be another writer's: "wb" would empty it.
        try:
            with suppress(ImportError, OSError):  # Not on Windows, nor on every file system.
                import fcntl  # noqa: PLC0415

                fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    file.truncate(0)
                    return file
        except BaseException:
            file.close()
            raise
        file.close()  # The other writer has renamed or removed it.


def sync_folder(path: Path) -> None:
    """Flush a directory entry to disk, so that a rename survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary_path(path: Path) -> Path:
    """Return the name of the temporary file that :func:`write_atomically` uses for ``path``."""
    return path.with_name(f".{path.name}.part")


def reason(error: OSError) -> str:
    """Return the operating system's description of an error, in lower case."""
    return (error.strerror or "unknown error").lower()
