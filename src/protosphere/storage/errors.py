"""Errors of writing to disk."""


class StorageError(RuntimeError):
    """A file could not be written; the message names the file and the reason."""
