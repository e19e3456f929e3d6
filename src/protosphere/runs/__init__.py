"""Run folders: the files of one training run, and how they are written and read.

Only :mod:`protosphere.runs.checkpoints` needs torch; everything else can be read without it.
"""

from protosphere.runs.folder import RunFolder, RunFolderError, find_run_folders

__all__ = ["RunFolder", "RunFolderError", "find_run_folders"]
