"""``protosphere report``: one page from folders on disk, whatever they are called and hold."""

import builtins
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any

import pytest

from protosphere.report import page as page_module
from support.commands import refusal, run_command
from support.report_folders import write_run

HOSTILE = "<script>alert(1)</script></script>"


@pytest.fixture
def _short_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave plotly's five megabytes out of the page."""
    monkeypatch.setattr(page_module, "_plotly_script", str)


@pytest.mark.usefixtures("_short_plotly")
def test_hostile_names_of_classes_recipes_and_folders_are_only_text(tmp_path: Path) -> None:
    folder = tmp_path / 'a"b&<img src=x onerror=alert(1)>'
    names = (HOSTILE, "%{x}", "b", "c")
    write_run(folder / "run", name=HOSTILE, class_names=names)
    write_run(folder / "plain", name="plain")
    out = tmp_path / "report.html"
    assert run_command("report", folder, "--out", out) == f"{out}: 2 runs\n"
    page = out.read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<img" not in page
    assert page.count("</script>") == page.count("<script")
    assert escape(HOSTILE) in page
    assert escape(str(folder / "run")) in page
    run_command("report", folder, "--out", tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page


@pytest.mark.usefixtures("_short_plotly")
def test_fifty_runs_with_a_dead_a_damaged_and_a_missing_one(tmp_path: Path) -> None:
    for index in range(47):
        write_run(tmp_path / f"runs/{index}", name=f"method-{index % 5}", seed=index)
    write_run(tmp_path / "runs/dead", name="dead", epochs=20, last_epoch=2)
    (write_run(tmp_path / "runs/damaged", name="damaged") / "machine.json").write_text("{")
    (write_run(tmp_path / "runs/missing", name="missing") / "metrics.jsonl").unlink()
    out = tmp_path / "report.html"
    assert run_command("report", tmp_path / "runs", "--out", out) == f"{out}: 50 runs\n"
    page = out.read_text(encoding="utf-8")
    assert "dead: The run has ended after 2 of 20 epochs." in page
    assert "damaged: machine.json is damaged: it is not JSON: device" in page
    assert "missing: metrics.jsonl is missing: curves and results are not available" in page
    assert len(page) < 3_000_000


@pytest.mark.usefixtures("_short_plotly")
def test_a_thousand_classes_stay_small(tmp_path: Path) -> None:
    names = [f"class {index}" for index in range(1000)]
    write_run(tmp_path / "run", class_names=names)
    run_command("report", tmp_path, "--out", tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 2_000_000


@pytest.mark.whole_program
def test_a_report_is_complete_and_torch_is_not_loaded(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    program = (
        "import sys\n"
        "from protosphere.cli.app import app\n"
        "app(['report', 'run'], standalone_mode=False)\n"
        "loaded = {'torch', 'protosphere.recipes', 'matplotlib'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, capture_output=True)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<title>digits-nonl</title>" in page
    assert "plotly.js v" in page


def test_a_file_that_exists_is_replaced_only_on_request(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    out = tmp_path / "mine.html"
    out.write_text("mine")
    message = refusal("report", tmp_path / "run", "--out", out)
    assert f"--out must be a new file, or --overwrite be given, got {out}" in message
    assert out.read_text() == "mine"
    assert "ends in .html or .htm" in refusal(
        "report", tmp_path / "run", "--out", tmp_path / "x.pdf"
    )


@pytest.mark.usefixtures("_short_plotly")
def test_a_report_is_replaced_by_a_later_one(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    out = tmp_path / "report.html"
    run_command("report", tmp_path / "run", "--out", out)
    write_run(tmp_path / "other", name="other")
    assert run_command("report", tmp_path, "--out", out) == f"{out}: 2 runs\n"
    page = out.read_text(encoding="utf-8")
    assert "other" in page
    # A page that only quotes a report is none.
    quoting = tmp_path / "quoting.html"
    quoting.write_text(f"<title>mine</title><pre>{page}</pre>", encoding="utf-8")
    assert "--overwrite be given" in refusal("report", tmp_path / "run", "--out", quoting)
    assert "mine" in quoting.read_text(encoding="utf-8")


def test_sources_are_checked_before_the_file(tmp_path: Path) -> None:
    out = tmp_path / "mine.html"
    out.write_text("mine")
    message = refusal("report", tmp_path / "nowhere", "--out", out)
    assert f"must be a folder or file that exists, got {tmp_path / 'nowhere'}" in message


@pytest.mark.parametrize("option", ["absent", "empty"])
def test_sources_without_a_run_are_refused_in_one_sentence(tmp_path: Path, option: str) -> None:
    (tmp_path / "empty").mkdir()
    message = refusal("report", tmp_path / option, "--out", tmp_path / "report.html")
    assert message.count("\n") <= 1
    assert str(tmp_path / option) in message
    assert not (tmp_path / "report.html").exists()


def test_without_plotly_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "run")
    original = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("plotly"):
            raise ImportError(name=name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    message = refusal("report", tmp_path / "run", "--out", tmp_path / "report.html")
    assert 'a report needs plotly: pip install "protosphere[report]"' in message
