"""Writing files that are complete or absent, whatever happens to the process."""

from protosphere.storage.atomic import (
    create_folder,
    sync_folder,
    temporary_path,
    write_atomically,
    write_json,
)
from protosphere.storage.errors import StorageError

__all__ = [
    "StorageError",
    "create_folder",
    "sync_folder",
    "temporary_path",
    "write_atomically",
    "write_json",
]
