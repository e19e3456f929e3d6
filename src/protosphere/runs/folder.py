"""A run folder: the recipe, metadata and logged metrics of one training run.

Every file is written so that a process may be killed at any moment without damaging it.

RUN/recipe.yaml           the recipe; running it again gives the same run
RUN/machine.json          device, system and package versions
RUN/metrics.jsonl         one record per line, in the order of logging
RUN/classes.json          class names, in the order of the class indices
RUN/data.json             sizes and fingerprints of the splits, normalization
RUN/geometry.safetensors  arrays of the last evaluation, for plots (see arrays.py), and those of
                          the best one in geometry-best.safetensors if a metric is monitored
RUN/checkpoints/          the newest checkpoints (see checkpoints.py)
RUN/.lock                 locked while a process uses the folder
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeAlias

from protosphere.storage.atomic import (
    create_folder,
    reason,
    temporary_path,
    write_atomically,
    write_json,
)
from protosphere.storage.errors import StorageError

Record: TypeAlias = Mapping[str, Any]
_LOG = logging.getLogger("protosphere")
_LOCK_ATTEMPTS = 5


class RunFolderError(ValueError):
    """A run folder cannot be used; the message says why."""


class RunFolderInUseError(RunFolderError):
    """Another process has locked a run folder; the message names the process."""


def _lock_file(file: IO[str]) -> None:
    """Lock a file, or raise OSError if another process has locked it.

    Whoever only asks for the lock (:meth:`RunFolder.is_locked`) has it for an instant, which the
    further attempts outlast.
    """
    import fcntl  # noqa: PLC0415  Only on Linux and macOS; reading a run works without it.

    for _ in range(_LOCK_ATTEMPTS - 1):
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.01)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _compare_texts(stored: str, given: str) -> str | None:
    return None if stored == given else "the texts differ"


def find_run_folders(path: Path | str) -> list[Path]:
    """Return a run folder itself, or else the run folders in it, at most three levels down.

    Only the first level that has run folders counts, so that runs below other runs, such as the
    trials of a sweep, are not mixed with them.

    Args:
        path: A run folder, or a folder that contains run folders.

    Raises:
        RunFolderError: The folder does not exist or is a file, or is no run folder and contains
            none.
    """
    path = Path(path)
    if not path.is_dir():
        problem = "it is a file" if path.exists() else "it does not exist"
        raise RunFolderError(f"{path} must be a run folder; {problem}")
    for level in range(4):
        if found := sorted(file.parent for file in path.glob("*/" * level + "recipe.yaml")):
            return found
    raise RunFolderError(f"{path} is not a run folder and contains none")


class RunFolder:
    """The folder of one training run.

    Args:
        path: Path of the folder; it is created when the folder is locked or the run is started.

    >>> RunFolder("runs/digits").metrics.name
    'metrics.jsonl'
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @property
    def recipe(self) -> Path:
        """Path of the recipe."""
        return self.path / "recipe.yaml"

    @property
    def metrics(self) -> Path:
        """Path of the logged metrics."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Path of the folder with the checkpoints."""
        return self.path / "checkpoints"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for this process; the lock ends with the process, however it ends.

        Raises:
            RunFolderInUseError: Another process has locked the folder.
            RunFolderError: The folder contains other files.
            StorageError: The folder could not be created.
        """
        self._check_ownership()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / ".lock").open("a+")
        except OSError as error:
            raise StorageError(f"cannot create {self.path}: {reason(error)}") from error
        with file:
            try:
                _lock_file(file)
            except OSError:
                file.seek(0)
                process = file.read().strip() or "of unknown id"
                raise RunFolderInUseError(f"{self.path} is in use by process {process}") from None
            # On a full disk the lock still works; only the process id is missing from it.
            with suppress(OSError):
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
            yield

    def is_locked(self) -> bool:
        """Return whether a process uses the folder at this moment."""
        try:
            import fcntl  # noqa: PLC0415

            with (self.path / ".lock").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except (ImportError, OSError):  # There is no lock, or the file system has none.
            return False
        return False

    def start(
        self, recipe: str, *, compare: Callable[[str, str], str | None] = _compare_texts
    ) -> None:
        """Write the recipe of a new run, or check that the folder belongs to this recipe.

        The recipe of a run that was started but has neither records nor checkpoints is replaced.

        Args:
            recipe: Text of the recipe.
            compare: Function of the stored and the given text; returns how they differ, or None
                if they describe the same run.

        Raises:
            RunFolderError: The folder holds a run of another recipe, or files that are not a run.
            StorageError: The recipe could not be written.
        """
        if self.recipe.exists():
            is_unused = (
                (self.path / "machine.json").exists()
                and not self.records()
                and not any(self.checkpoints.glob("*"))
            )
            if is_unused:
                self.write_recipe(recipe)
                return
            difference = compare(self._read_text(self.recipe), recipe)
            if difference is not None:
                options = (
                    f"`train --resume --out {self.path}` continues it, and with another --out "
                    f"--init-from {self.path} starts new training from its weights"
                )
                if not any(self.checkpoints.glob("*")):
                    options = "it has no checkpoint: remove the folder, or choose another one"
                raise RunFolderError(
                    f"{self.path} holds a run of another recipe: {difference}; {options}"
                )
            return
        self._check_ownership()
        create_folder(self.path)
        self.write_recipe(recipe)

    def write_recipe(self, recipe: str) -> None:
        """Write the recipe atomically.

        Args:
            recipe: Text of the recipe.

        Raises:
            StorageError: The file could not be written.
        """
        write_atomically(self.recipe, recipe.encode())

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file atomically.

        Args:
            name: File name inside the folder.
            content: Lists, dictionaries, strings, numbers, booleans and None.

        Raises:
            StorageError: The file could not be written.
        """
        write_json(self.path / name, content)

    def read_json(self, name: str) -> Any:
        """Read a JSON file.

        Args:
            name: File name inside the folder.

        Returns:
            The content of the file.

        Raises:
            RunFolderError: The file is missing, unreadable or damaged.
        """
        path = self.path / name
        if not path.exists():
            raise RunFolderError(f"{self.path} has no {name}")
        try:
            return json.loads(self._read_text(path, errors="strict"))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            raise RunFolderError(f"{path} is damaged: it is not JSON") from None

    def log(self, record: Record) -> None:
        """Append a record to the metrics and flush it to disk.

        Args:
            record: Values by name; ``kind`` and ``step`` identify the record.

        Raises:
            StorageError: The record could not be written.
        """
        line = json.dumps(record, ensure_ascii=False) + "\n"
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"cannot write {self.metrics}: {reason(error)}") from error

    def records(self) -> list[dict[str, Any]]:
        """Return the logged metrics, oldest first.

        Of several records of one ``kind`` and ``step`` the last one counts. Incomplete lines, as a
        killed process may leave them, are skipped.
        """
        return self.read_records()[0]

    def read_records(self) -> tuple[list[dict[str, Any]], int]:
        """Return the logged metrics as :meth:`records` does, and the number of skipped lines.

        Raises:
            RunFolderError: The file is unreadable.
        """
        if not self.metrics.exists():
            return [], 0
        records: dict[Any, dict[str, Any]] = {}
        num_skipped = 0
        for number, line in enumerate(self._read_text(self.metrics).splitlines()):
            try:
                record = json.loads(line)
            except (json.JSONDecodeError, RecursionError):
                record = None
            if isinstance(record, dict):
                key = (str(record.get("kind")), str(record["step"])) if "step" in record else number
                records[key] = record
            else:
                num_skipped += 1
        return list(records.values()), num_skipped

    def last_evaluation(self) -> dict[str, Any] | None:
        """Return the last record of kind ``"evaluation"``, or None if there is none."""
        evaluations = [record for record in self.records() if record.get("kind") == "evaluation"]
        return evaluations[-1] if evaluations else None

    def discard_records_after(self, step: int) -> None:
        """Remove the records of later steps, which a resumed run will log again.

        A warning is logged if a run is resumed whose metrics are missing.

        Args:
            step: Last step whose records are kept.

        Raises:
            StorageError: The file could not be written.
        """
        if step > 0 and not self.metrics.exists():
            _LOG.warning(
                "metrics.jsonl is missing in %s: the records up to step %d are lost",
                self.path,
                step,
            )
        kept = [record for record in self.records() if record.get("step", 0) <= step]
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in kept)
        write_atomically(self.metrics, lines.encode())

    def _check_ownership(self) -> None:
        """Raise RunFolderError if the folder has files but is not a run."""
        if self.recipe.exists() or not self.path.is_dir():
            return
        # A process that was killed while it wrote the recipe leaves the temporary file.
        own = {".lock", temporary_path(self.recipe).name}
        others = sorted(entry.name for entry in self.path.iterdir() if entry.name not in own)
        # Another process may have started this run since: it writes the recipe first.
        if others and not self.recipe.exists():
            raise RunFolderError(
                f"{self.path} must be empty or a run folder, but it contains {others[0]}"
            )

    def _read_text(self, path: Path, *, errors: str = "replace") -> str:
        try:
            return path.read_text(encoding="utf-8", errors=errors)
        except OSError as error:
            raise RunFolderError(f"cannot read {path}: {reason(error)}") from None
