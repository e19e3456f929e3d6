"""Result files of benchmarks: rows that are kept, resumed and replaced."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from protosphere.runs import RunFolderError
from protosphere.runs.results import ResultFile, list_results, read_result
from protosphere.storage.errors import StorageError


@dataclass(frozen=True)
class Row:
    name: str
    error: float | None
    count: int = 1


def test_rows_of_equal_settings_are_kept(tmp_path: Path) -> None:
    settings = {"step": 3, "sizes": (1, 2)}
    first = ResultFile(tmp_path, "noise", Row, settings)
    first.append(Row("a", 0.5), Row("b", None))
    second = ResultFile(tmp_path, "noise", Row, settings)
    assert second.rows == (Row("a", 0.5), Row("b", None))
    second.append(Row("c", 0.25, 4))
    result = read_result(tmp_path / "benchmarks" / "noise.json", Row)
    assert result.rows == (*first.rows, Row("c", 0.25, 4))
    assert result.settings == {"step": 3, "sizes": [1, 2]}
    assert list_results(tmp_path) == [tmp_path / "benchmarks" / "noise.json"]


def test_other_settings_start_again_and_write_nothing_before_a_row(tmp_path: Path) -> None:
    ResultFile(tmp_path, "noise", Row, {"step": 3}).append(Row("a", 0.5))
    other = ResultFile(tmp_path, "noise", Row, {"step": 4})
    assert other.rows == ()
    assert ResultFile(tmp_path, "noise", Row, {"step": 3}).rows == (Row("a", 0.5),)
    other.append(Row("b", 1.0))
    assert ResultFile(tmp_path, "noise", Row, {"step": 3}).rows == ()
    assert ResultFile(tmp_path, "noise", Row, {"step": 4}, recompute=True).rows == ()


def test_some_rows_can_be_replaced(tmp_path: Path) -> None:
    ResultFile(tmp_path, "noise", Row, {}).append(Row("a", 0.5), Row("b", 1.0))
    result = ResultFile(tmp_path, "noise", Row, {}, recompute=lambda row: row.name == "a")
    assert result.rows == (Row("b", 1.0),)
    assert len(ResultFile(tmp_path, "noise", Row, {}).rows) == 2
    result.append(Row("a", 0.25))
    assert ResultFile(tmp_path, "noise", Row, {}).rows == (Row("b", 1.0), Row("a", 0.25))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is damaged: it is not JSON"),
        ("[]", "must hold the benchmark, settings and rows of a result"),
        ({"rows": [{"name": "a"}]}, "has rows of another version of protosphere"),
        ({"rows": [{"name": "a", "error": 1.0, "x": 2}]}, "has rows of another version"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: object, message: str) -> None:
    path = tmp_path / "benchmarks" / "noise.json"
    path.parent.mkdir()
    if isinstance(content, dict):
        content = json.dumps({"benchmark": "noise", "settings": {}} | content)
    path.write_text(str(content))
    with pytest.raises(RunFolderError, match=message):
        ResultFile(tmp_path, "noise", Row, {})
    for recompute in (True, lambda _: True):
        assert ResultFile(tmp_path, "noise", Row, {}, recompute=recompute).rows == ()


@pytest.mark.bad_input
@pytest.mark.parametrize("has_folder", [False, True])
def test_a_folder_that_cannot_be_written_to_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_folder: bool
) -> None:
    ResultFile(tmp_path, "old", Row, {}).append(Row("a", 0.5))
    place = tmp_path / "benchmarks"
    if not has_folder:
        place = place.rename(tmp_path / "elsewhere").parent
    # The user of the tests may be root, whom permissions do not stop.
    monkeypatch.setattr("os.access", lambda path, _: Path(path) != place)
    with pytest.raises(StorageError, match=f"in its run folder; {place} cannot be written to"):
        ResultFile(tmp_path, "noise", Row, {})
    if has_folder:  # What is there can still be read.
        assert ResultFile(tmp_path, "old", Row, {}).rows == (Row("a", 0.5),)
