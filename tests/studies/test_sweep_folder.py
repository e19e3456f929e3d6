"""The folder of a sweep: processes that start at the same time, and files that are missing."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from protosphere.storage import StorageError
from protosphere.studies.sweep_folder import SweepFolder


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_process_that_starts_while_another_creates_the_folder_joins_it(
    has_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process runs between any two looks at the folder."""
    out = tmp_path / "sweep"
    if has_folder:
        out.mkdir()
    identities: list[str] = []

    def create_before(method: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Path, *arguments: Any, **options: Any) -> Any:
            if path == out and not identities:
                identities.append("")  # The other process looks at the folder, too.
                with closing(SweepFolder(out)) as other:
                    identities[0] = other.identity
            return method(path, *arguments, **options)

        return look

    for name in ("mkdir", "iterdir"):
        monkeypatch.setattr(Path, name, create_before(getattr(Path, name)))
    with closing(SweepFolder(out)) as folder:
        assert identities == [folder.identity]


def test_a_folder_has_its_identity_before_any_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(StorageError, match="no space left"):
        SweepFolder(tmp_path / "sweep")
    assert list((tmp_path / "sweep").iterdir()) == []
