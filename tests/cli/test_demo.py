"""``protosphere demo``: six losses in one table, the probe that class means save, what to try."""

from pathlib import Path

import pytest

from protosphere.cli.demo import _best, _write_report
from protosphere.runs import RunFolder
from support.commands import invoke, refusal, run_command
from support.report_folders import write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def output(folder: Path) -> str:
    return run_command("demo", "--epochs", "2", "--out", folder)


@pytest.mark.parametrize(
    ("loss", "title"),
    [
        ("ce", "cross-entropy"),
        ("nonl", "NONL"),
        ("etf-dr", "ETF + DR"),
        ("scl", "SCL + means"),
    ],
)
def test_a_row_has_the_metrics_of_its_run(output: str, folder: Path, loss: str, title: str) -> None:
    (row,) = [line for line in output.splitlines() if line.strip().startswith(f"{title} ")]
    metrics = RunFolder(folder / loss).last_evaluation()
    assert metrics is not None
    assert f"{100 * metrics['accuracy']:.1f}%" in row
    assert f"{metrics['nc1_ratio']:.3g}" in row


def test_the_table_fits_80_columns_and_next_commands_follow(output: str, folder: Path) -> None:
    assert max(map(len, output.splitlines()[:15])) <= 80
    assert "…" not in output
    assert "Closest to neural collapse: " in output
    assert "within-class over between-class variance" in " ".join(output.split())
    assert "protosphere train cifar100-nonl --download" in output
    assert f"protosphere report {folder}  # " in output
    text = " ".join(output.split())
    assert "SCL needs no trained classifier: class means took 1 pass" in text


def test_the_last_line_is_the_path_of_a_report_of_the_six_runs(output: str, folder: Path) -> None:
    assert output.splitlines()[-1].endswith(f": {folder / 'report.html'}")
    page = (folder / "report.html").read_text(encoding="utf-8")
    for loss in ("ce", "normface", "ntce", "nonl", "etf-dr", "scl"):
        assert f"digits-{loss}" in page


def test_runs_that_are_complete_are_not_trained_again(output: str, folder: Path) -> None:
    again = invoke("demo", "--epochs", "2", "--out", folder)
    assert again.stdout.splitlines()[:14] == output.splitlines()[:14]
    # Without a terminal there is no progress bar, but a line for each loss.
    titles = [line.split(": 2 epochs, test accuracy ")[0] for line in again.stderr.splitlines()]
    assert titles == ["cross-entropy", "NormFace", "NTCE", "NONL", "ETF + DR", "SCL + means"]
    message = refusal("demo", "--epochs", "3", "--out", folder)
    assert "schedule.epochs is 2 there and 3 here" in message


def test_equal_values_share_the_best_place() -> None:
    assert _best({"a": "1", "b": "1", "c": "0.9"}, "higher") == {"a", "b"}
    assert _best({"a": "0.1", "b": "1e-3"}, "lower") == {"b"}


@pytest.mark.bad_input
def test_a_folder_that_cannot_be_written_to_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.access", lambda *_: False)
    message = refusal("demo")
    assert message == (
        f"cannot write protosphere-demo.html to {tmp_path}; give another folder with --out"
    )


def test_a_report_that_cannot_be_written_does_not_lose_the_results(tmp_path: Path) -> None:
    for loss in ("ce", "normface", "ntce", "nonl", "etf-dr", "scl"):
        write_run(tmp_path / loss, name=f"digits-{loss}")
    written = _write_report(tmp_path, tmp_path / "report.html")
    assert written == f"Report with figures, for a browser: {tmp_path / 'report.html'}"
    assert str(tmp_path / "nonl") in (tmp_path / "report.html").read_text(encoding="utf-8")
    # Folders that are deleted with the end of the demo are not named.
    _write_report(tmp_path, tmp_path / "report.html", names_folders=False)
    assert str(tmp_path) not in (tmp_path / "report.html").read_text(encoding="utf-8")
    refused = _write_report(tmp_path, tmp_path / "absent/report.html")
    assert refused.startswith("There is no report with figures: cannot write ")
