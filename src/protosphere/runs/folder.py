"""A run folder: recipe, facts and logged metrics, written so that no moment of death leaves it damaged. Pure Python.

RUN/recipe.yaml       what was run, and runs again
RUN/machine.json      where, and with which versions
RUN/metrics.jsonl     one record a line, as they came
RUN/classes.json      the names of the classes
RUN/data.json         how many images, and what tells them from others
RUN/geometry.safetensors  of the last evaluation: class means, cosines, confusion, a view in three dimensions
RUN/checkpoints/      the last ones (see checkpoints.py)
RUN/.lock             held while a process uses the folder
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from protosphere.storage.atomic import reason, temporary_path, write_atomically
from protosphere.storage.errors import StorageError

Record: TypeAlias = Mapping[str, Any]


class RunFolderError(ValueError):
    """A run folder cannot be used; the sentence says why."""


def _differs(one: str, other: str) -> str | None:
    return None if one == other else "the texts differ"


class RunFolder:
    """A folder of one run.

    Args:
        path: where; made when the recipe is written.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def recipe(self) -> Path:
        """The file of the recipe."""
        return self.path / "recipe.yaml"

    @property
    def metrics(self) -> Path:
        """The file of logged metrics."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder. A process that dies in any way lets go of it.

        Raises:
            RunFolderError: another process holds it.
        """
        import fcntl  # noqa: PLC0415  Of Linux and macOS; without it no run folder is written.

        self._refuse_foreign()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / ".lock").open("a+")
        except OSError as error:
            raise RunFolderError(
                f"{self.path} must be a folder to write to; {reason(error)}"
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise RunFolderError(
                    f"{self.path} must be free; process {holder} is using it"
                ) from None
            with suppress(
                OSError
            ):  # On a full disk the lock holds all the same, and only its holder's name is lost.
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
            yield

    def begin(self, recipe: str, *, differs: Callable[[str, str], str | None] = _differs) -> None:
        """Write the recipe of a new run, or see that the folder is of this one.

        A run that came to nothing, without a record or a checkpoint, gives way to another.

        Args:
            recipe: its text.
            differs: says how the text in the folder differs from this one, or that it does not.

        Raises:
            RunFolderError: the folder holds another recipe, or things that are no run.
        """
        if self.recipe.exists():
            if (
                (self.path / "machine.json").exists()
                and not self.records()
                and not any(self.checkpoints.glob("*"))
            ):
                self.write_recipe(recipe)
                return
            how = differs(self.recipe.read_text(encoding="utf-8", errors="replace"), recipe)
            if how is not None:
                raise RunFolderError(
                    f"{self.path} must be a run of this recipe; it holds another one: {how}"
                )
            return
        self._refuse_foreign()
        self.path.mkdir(parents=True, exist_ok=True)
        self.write_recipe(recipe)

    def write_recipe(self, recipe: str) -> None:
        """Write the recipe, whole or not at all."""
        write_atomically(self.recipe, recipe.encode())

    def _refuse_foreign(self) -> None:
        if self.recipe.exists() or not self.path.is_dir():
            return
        own = {
            ".lock",
            temporary_path(self.recipe).name,
        }  # The part is of a process that died while it wrote it.
        foreign = sorted(entry.name for entry in self.path.iterdir() if entry.name not in own)
        if foreign:
            raise RunFolderError(f"{self.path} must be empty or a run; it holds {foreign[0]}")

    def write_json(self, name: str, content: Any) -> None:
        """Write facts, whole or not at all."""
        write_atomically(
            self.path / name, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
        )

    def read_json(self, name: str) -> Any:
        """Read facts.

        Raises:
            RunFolderError: there are none, or they are damaged.
        """
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunFolderError(f"{self.path} must hold {name}; it does not") from None
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise RunFolderError(f"{name} in {self.path} must be JSON; it is damaged") from None

    def log(self, record: Record) -> None:
        """Add a record to the metrics; it is on the disk when this returns. A line that was cut off is not read."""
        line = json.dumps(record, ensure_ascii=False) + "\n"
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"cannot write {self.metrics}: {reason(error)}") from error

    def records(self) -> list[dict[str, Any]]:
        """The metrics logged so far; the last of each ``kind`` and ``step``, and nothing that was cut off."""
        if not self.metrics.exists():
            return []
        found: dict[Any, dict[str, Any]] = {}
        for number, line in enumerate(
            self.metrics.read_text(encoding="utf-8", errors="replace").splitlines()
        ):
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(record, dict):
                key = (record.get("kind"), record["step"]) if "step" in record else number
                found[key] = record
        return list(found.values())

    def forget_after(self, step: int) -> None:
        """Drop records of steps that a resumed run will take again."""
        kept = [record for record in self.records() if record.get("step", 0) <= step]
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in kept)
        write_atomically(self.metrics, lines.encode())
