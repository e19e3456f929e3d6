"""The run folder: what is on disk, and how it is read and written. Pure Python, but for :mod:`checkpoints`."""

from protosphere.runs.folder import RunFolder, RunFolderError

__all__ = ["RunFolder", "RunFolderError"]
