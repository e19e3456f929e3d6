"""Writing files that are complete or absent, whatever happens to the process."""

from protosphere.storage.atomic import sync_folder, temporary_path, write_atomically
from protosphere.storage.errors import StorageError

__all__ = ["StorageError", "sync_folder", "temporary_path", "write_atomically"]
