"""The folder of a sweep: its identity, locks, and the files that several processes write."""

import fcntl
import os
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from protosphere.runs.sweeps import SweepRecord, write_sweep
from protosphere.storage.atomic import reason, write_atomically
from protosphere.storage.errors import StorageError
from protosphere.studies.sweep_settings import SweepError

BEST_FILE = "best.yaml"
_IDENTITY = ".sweep"


class SweepFolder:
    """The folder of a sweep. Processes that share it take turns where they must.

    Args:
        path: Path of the folder; it is created.

    Raises:
        SweepError: The folder has other files than those of a sweep.
        StorageError: The folder could not be created.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        identity = self.path / _IDENTITY
        if self.path.exists() and not self.path.is_dir():
            raise SweepError(f"--out must be a folder, got {self.path}, which is none")
        if self.path.exists() and not identity.exists():
            others = sorted(entry.name for entry in self.path.iterdir())
            # Another process may have started this sweep since: it creates the identity first.
            if others and not identity.exists():
                raise SweepError(
                    f"{self.path} must be empty or the folder of a sweep, but it contains "
                    f"{others[0]}"
                )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock_file = identity.open("a+")
            (self.path / "trials").mkdir(exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot create {self.path}: {reason(error)}") from error
        with self.lock():
            self.identity = self._read_identity()

    def _read_identity(self) -> str:
        """Return what tells this folder from those of other machines."""
        self._lock_file.seek(0)
        identity = self._lock_file.read().strip()
        if not identity:
            identity = uuid.uuid4().hex
            self._lock_file.write(identity)
            self._lock_file.flush()
            os.fsync(self._lock_file.fileno())
        return identity

    def close(self) -> None:
        """Release the folder."""
        self._lock_file.close()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for a moment; other processes wait."""
        fcntl.flock(self._lock_file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock_file, fcntl.LOCK_UN)

    def run_folder(self, number: int) -> Path:
        """Return the run folder of a trial.

        Args:
            number: Number of the trial.
        """
        return self.path / "trials" / f"{number:04d}"

    def claim(self, number: int) -> IO[str] | None:
        """Claim a trial for this process until the returned file is closed or the process ends.

        Args:
            number: Number of the trial.

        Returns:
            The locked file; None if another process has claimed the trial.
        """
        file = (self.path / "trials" / f".{number:04d}.lock").open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return None
        return file

    def check_runs(self, numbers: Collection[int]) -> None:
        """Check that the study knows all run folders; the folder must be locked.

        Args:
            numbers: Numbers of the trials of this folder in the study.

        Raises:
            SweepError: There is another run folder.
        """
        for path in sorted((self.path / "trials").iterdir()):
            if path.name.isdecimal() and int(path.name) not in numbers:
                raise SweepError(
                    f"{path} exists, but the storage does not know it; --storage and --study must "
                    "be those that the sweep was started with, or --out another folder"
                )

    def write(self, record: SweepRecord, best: str | None) -> None:
        """Write the record and the best recipe, and remove the checkpoints of other trials.

        The folder must be locked. What belongs to no trial of this folder is left alone.

        Args:
            record: The record.
            best: The best recipe as YAML, if there is one.

        Raises:
            StorageError: A file could not be written.
        """
        write_sweep(self.path, record)
        if best is not None:
            write_atomically(self.path / BEST_FILE, best.encode())
        for trial in record.trials:
            if trial.run and trial.state != "running" and trial != record.best:
                with suppress(OSError):  # A checkpoint too many does no harm.
                    shutil.rmtree(self.path / trial.run / "checkpoints")
