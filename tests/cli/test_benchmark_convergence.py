"""``protosphere benchmark convergence``: tables, JSON, the picture, and bad input."""

import json
from pathlib import Path

import pytest

from protosphere.studies.convergence import CONVERGENCE_METRICS
from support.commands import invoke, refusal, run_command
from support.short_runs import logged_run

RISING = {metric: [(e, 0.5 * e) for e in range(1, 21)] for metric in CONVERGENCE_METRICS}
FALLING = {metric: [(e, 1 / e) for e in range(1, 21)] for metric in CONVERGENCE_METRICS}
TWENTY = ("schedule.epochs=20", "evaluation.every=1")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    logged_run(tmp_path / "nonl", FALLING, *TWENTY)
    logged_run(tmp_path / "ce", RISING, *TWENTY, recipe="digits-ce")
    return tmp_path


def test_both_parts_of_the_table(runs: Path) -> None:
    output = run_command(
        "benchmark", "convergence", runs / "nonl", "--baseline", runs / "ce", columns=250
    )
    first, second = output.split("II. Time to reach the last value of")
    assert first.startswith("I. Percent of the run until 95% of neural collapse")
    lines = [line.split() for line in first.splitlines() if line[:2] in ("no", "ce")]
    # 1/e enters 0.1 at epoch 10, or at 11 on average; it never grows to a rank of 8.55.
    assert lines[0][:2] == ["nonl", "nonl"]
    assert lines[0][2:] == ["55.0", "55.0", "never", "5.0", "never"]
    # e/2 reaches 8.55 at epoch 18, and as an alignment it only leaves the threshold.
    assert lines[1][1:] == ["ce", "never", "never", "90.0", "never", "90.0"]
    assert "% of the run" in second
    assert "its percentages are multiples of 5" in output


def test_json_has_rows_and_the_state_of_the_runs(runs: Path) -> None:
    output = run_command("benchmark", "convergence", runs / "nonl", runs / "ce", "--json")
    record = json.loads(output)
    assert record["baseline"] is None
    assert [(one["method"], one["epochs"], one["complete"]) for one in record["runs"]] == [
        ("nonl", 20, True),
        ("ce", 20, True),
    ]
    (row, *_) = record["runs"][0]["rows"]
    assert (row["metric"], row["final"]) == ("weight_instance_alignment", 0.05)
    curves = json.loads((runs / "nonl/benchmarks/convergence_curves.json").read_text())
    assert len(curves["rows"]) == 100


def test_what_is_missing_is_said(runs: Path) -> None:
    some = {metric: RISING[metric][:10] for metric in CONVERGENCE_METRICS[:3]}
    logged_run(runs / "cheap", some, *TWENTY, "evaluation.metrics=cheap")
    output = run_command("benchmark", "convergence", runs / "cheap", columns=250)
    assert "cheap: intra_effective_rank: not logged (the recipe has evaluation.metrics" in output
    assert "cheap has 10 of 20 epochs; percentages are of these" in output
    assert "Part II compares with a run: --baseline RUN" in output


def test_a_single_evaluation_tells_nothing(runs: Path) -> None:
    last = {metric: [(20, 0.5)] for metric in CONVERGENCE_METRICS}
    logged_run(runs / "once", last, "schedule.epochs=20", "evaluation.every=50")
    output = run_command("benchmark", "convergence", runs / "once", columns=250)
    assert "once was evaluated once, at its end; `evaluation.every` must be smaller" in output
    assert "multiples" not in output


@pytest.mark.long
def test_the_curves_are_drawn(runs: Path) -> None:
    pytest.importorskip("matplotlib")
    path = runs / "curves.svg"
    command = ["benchmark", "convergence", runs / "nonl", "--baseline", runs / "ce"]
    result = invoke(*command, "--plot", path)
    assert result.exit_code == 0
    assert f"Drew the curves of 2 runs to {path}" in result.stderr
    content = path.read_text()
    assert content.count("<!-- training progress in % -->") == len(CONVERGENCE_METRICS)
    assert content.count("<!-- nonl -->") == 1
    assert "--plot must be a new file" in refusal(*command, "--plot", path)


@pytest.mark.bad_input
def test_what_is_refused(runs: Path) -> None:
    logged_run(runs / "other", RISING, class_counts=(3,) * 4)
    command = ["benchmark", "convergence", runs / "nonl"]
    assert refusal(*command, "--baseline", runs / "other") == (
        f"a baseline must have the classes of the run: {runs / 'nonl'} has 10 classes and "
        f"{runs / 'other'} has 4"
    )
    assert not (runs / "nonl/benchmarks").exists()
    assert refusal(*command, runs / "x") == f"{runs / 'x'} is not a run folder: it has no recipe"
    assert refusal(*command, "--plot", runs / "x.html") == (
        f"--plot must be a file that ends in .png or .svg or .pdf, got {runs / 'x.html'}"
    )
