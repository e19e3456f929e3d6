"""Results of benchmarks in a run folder: settings and rows, written after every addition.

RUN/benchmarks/NAME.json  {"benchmark": NAME, "settings": {...}, "rows": [{...}, ...]}
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from protosphere.runs.folder import RunFolder, RunFolderError
from protosphere.storage.atomic import create_folder, reason, write_json
from protosphere.storage.errors import StorageError

RowT = TypeVar("RowT")
_FOLDER = "benchmarks"


@dataclass(frozen=True)
class Result(Generic[RowT]):
    """The result of one benchmark of one run.

    Attributes:
        benchmark: Name of the benchmark.
        settings: Everything that determines the rows: weights, data, options.
        rows: The rows, instances of one frozen dataclass.
    """

    benchmark: str
    settings: dict[str, Any]
    rows: tuple[RowT, ...]


class ResultFile(Generic[RowT]):
    """RUN/benchmarks/NAME.json, which grows while a benchmark runs.

    Rows of an earlier call with equal settings are kept, so that an interrupted benchmark resumes;
    under other settings the file starts empty and is replaced at the first :meth:`append`.

    Args:
        folder: The run folder.
        name: Name of the benchmark, and of the file without its suffix.
        row_type: Frozen dataclass of the rows, with fields of JSON's types.
        settings: Everything that determines the rows: weights, data, options.
        recompute: Whether rows of an earlier call are discarded; or a function of a row, for those
            that are. The file keeps them until the first :meth:`append`.

    Raises:
        RunFolderError: The file is damaged; with ``recompute`` it is replaced instead.
        StorageError: There are no rows yet, and the folder cannot be written to.
    """

    def __init__(
        self,
        folder: RunFolder | Path | str,
        name: str,
        row_type: type[RowT],
        settings: Mapping[str, Any],
        *,
        recompute: bool | Callable[[RowT], bool] = False,
    ) -> None:
        root = folder.path if isinstance(folder, RunFolder) else Path(folder)
        self.path = root / _FOLDER / f"{name}.json"
        self.name = name
        # As JSON returns them: tuples are lists, and keys are strings.
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))
        self.rows: tuple[RowT, ...] = self._read_rows(row_type, recompute)
        if not self.rows:
            self._check_writable()

    def _read_rows(
        self, row_type: type[RowT], recompute: bool | Callable[[RowT], bool]
    ) -> tuple[RowT, ...]:
        if recompute is True or not self.path.exists():
            return ()
        try:
            stored = read_result(self.path, row_type)
        except RunFolderError:
            if recompute is False:
                raise
            return ()
        if stored.settings != self.settings:
            return ()
        return tuple(row for row in stored.rows if not (recompute and recompute(row)))

    def _check_writable(self) -> None:
        """Refuse a folder that cannot be written to before anything is computed for it."""
        folder = self.path.parent if self.path.parent.exists() else self.path.parent.parent
        if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
            raise StorageError(
                f"the results of a benchmark are kept in its run folder; {folder} cannot be "
                "written to"
            )

    def append(self, *rows: RowT) -> None:
        """Add rows and write the file atomically.

        Args:
            rows: The rows.

        Raises:
            StorageError: The file could not be written.
        """
        self.rows += rows
        content = {
            "benchmark": self.name,
            "settings": self.settings,
            "rows": [asdict(row) for row in self.rows],  # type: ignore[call-overload]
        }
        create_folder(self.path.parent, parents=False)
        write_json(self.path, content)


def read_result(path: Path | str, row_type: type[RowT]) -> Result[RowT]:
    """Read the result of a benchmark.

    Args:
        path: The file.
        row_type: Frozen dataclass of the rows.

    Raises:
        RunFolderError: The file is missing or damaged, or its rows are of another kind.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {reason(error)}") from None
    except ValueError:
        raise RunFolderError(
            f"{path} is damaged: it is not JSON; --recompute replaces it"
        ) from None
    keys = {"benchmark": str, "settings": dict, "rows": list}
    if not isinstance(content, dict) or any(
        not isinstance(content.get(key), kind) for key, kind in keys.items()
    ):
        raise RunFolderError(
            f"{path} must hold the benchmark, settings and rows of a result; --recompute replaces "
            "it"
        )
    names = {field.name for field in fields(row_type)}  # type: ignore[arg-type]
    required = {
        field.name
        for field in fields(row_type)  # type: ignore[arg-type]
        if field.default is MISSING and field.default_factory is MISSING
    }
    for row in content["rows"]:
        if not isinstance(row, dict) or not required <= set(row) <= names:
            raise RunFolderError(
                f"{path} has rows of another version of protosphere; --recompute replaces them"
            )
    rows = tuple(row_type(**row) for row in content["rows"])
    return Result(content["benchmark"], content["settings"], rows)


def list_results(folder: RunFolder | Path | str) -> list[Path]:
    """Return the result files of a run, sorted by name.

    Args:
        folder: The run folder.
    """
    root = folder.path if isinstance(folder, RunFolder) else Path(folder)
    return sorted((root / _FOLDER).glob("*.json"))
