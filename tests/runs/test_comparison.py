"""The file of a comparison: equal values give equal bytes, and damaged files are named."""

import json
from pathlib import Path

import pytest

from protosphere.runs import RunFolderError
from protosphere.runs.comparison import (
    BestMethod,
    ComparedMethod,
    ComparedMetric,
    ComparedRun,
    Comparison,
    FailedRun,
    MetricDifference,
    MetricSummary,
    PendingRun,
    read_comparison,
    write_comparison,
)

COMPARISON = Comparison(
    split="test",
    num_images=100,
    num_classes=10,
    confidence=0.95,
    baseline="ce",
    seeds=(42, 43, 44),
    metrics=(ComparedMetric("accuracy", "higher"), ComparedMetric("mir", "target", 0.9)),
    methods=(ComparedMethod("ce", {"loss": {"name": "ce"}}), ComparedMethod("Käfer", {})),
    runs=(ComparedRun("ce", 42, "ce/seed-42", 30, 3, {"accuracy": 1 / 3}),),
    failures=(FailedRun("Käfer", 42, "Käfer/seed-42", "out of memory"),),
    pending=(PendingRun("ce", 43),),
    summaries=(MetricSummary("ce", "accuracy", 1, 1 / 3, None),),
    differences=(
        MetricDifference(
            "Käfer", "accuracy", (42, 43), 0.1, 0.01, 0.05, 0.15, 0.03, 0.06, "not clear"
        ),
    ),
    best=(BestMethod("accuracy", (42,), ("ce", "Käfer"), ()),),
    machines=({"device": "cpu", "versions": {"torch": "2.11"}},),
)


def test_a_comparison_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"
    write_comparison(path, COMPARISON)
    assert read_comparison(path) == COMPARISON
    before = path.read_bytes()
    write_comparison(path, read_comparison(path))
    assert path.read_bytes() == before
    assert next(iter(json.loads(before))) == "schema_version"


def test_rows_are_found_by_method_and_metric() -> None:
    assert COMPARISON.summary("ce", "accuracy") == COMPARISON.summaries[0]
    assert COMPARISON.summary("ce", "mir") is None
    assert COMPARISON.difference("Käfer", "accuracy") == COMPARISON.differences[0]
    assert COMPARISON.difference("ce", "accuracy") is None


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "of schema version 1, got 2"),
        ({"schema_version": None}, "of schema version 1, got None"),
        ({"runs": None}, "is damaged: it is not a comparison"),
        ({"runs": [{"method": "ce"}]}, "is damaged: it is not a comparison"),
        ({"something": 1}, "is damaged: it is not a comparison"),
    ],
)
def test_a_file_that_is_no_comparison_is_named(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "comparison.json"
    path.write_text(json.dumps(COMPARISON.to_json() | change))
    with pytest.raises(RunFolderError, match=f"comparison.json .*{message}"):
        read_comparison(path)


@pytest.mark.bad_input
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"has no comparison\.json"):
        read_comparison(tmp_path / "comparison.json")
    (tmp_path / "comparison.json").write_text("{")
    with pytest.raises(RunFolderError, match="is damaged: it is not JSON"):
        read_comparison(tmp_path / "comparison.json")
    (tmp_path / "comparison.json").write_text("[]")
    with pytest.raises(RunFolderError, match="of schema version 1, got None"):
        read_comparison(tmp_path / "comparison.json")
