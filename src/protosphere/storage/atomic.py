"""Atomic file writes: a reader sees the old content or the new one, never a part of it."""

import os
from contextlib import suppress
from pathlib import Path

from protosphere.storage.errors import StorageError


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically and flush it to disk.

    The content goes to a temporary file beside ``path``, which then replaces it.

    Args:
        path: File to write or replace.
        content: The bytes of the file.

    Raises:
        StorageError: The file could not be written. An existing file is left unchanged.
    """
    temporary = temporary_path(path)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):  # A read-only file system refuses the removal too.
            temporary.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {reason(error)}") from error


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
