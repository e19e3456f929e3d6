"""``protosphere benchmark ood`` and ``calibration`` on short runs, from the command line."""

import json
from pathlib import Path

import numpy as np
import pytest

from support.commands import invoke, refusal, run_command, usage_error
from support.figures import catch_figures, legend_texts, titles
from support.short_runs import short_run

pytestmark = pytest.mark.long


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for loss in ("ce", "nonl"):
        short_run(tmp_path, loss)
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "noise.npz", images=generator.integers(0, 255, (40, 8, 8), np.uint8))
    return tmp_path


def test_one_table_of_runs_and_scores(runs: Path) -> None:
    command = ["benchmark", "ood", runs / "ce", runs / "nonl", "--device", "cpu"]
    command += ["--against", runs / "noise.npz"]
    output = run_command(*command, columns=250)
    records = json.loads(run_command(*command, "--json"))["runs"]
    header = output.splitlines()[1].split()
    assert header[:3] == ["run", "method", "against"]
    lines = [line.split() for line in output.splitlines()[2:6]]
    for record, areas, errors in zip(records, lines[::2], lines[1::2], strict=True):
        assert areas[:4] == [Path(record["run"]).name, record["method"], "noise", "AUROC"]
        rows = record["rows"]
        assert [row["score"] for row in rows] == header[3:]
        assert areas[4:] == [f"{100 * row['auroc']:.1f}" for row in rows]
        assert errors == ["FPR95", *(f"{100 * row['fpr95']:.1f}" for row in rows)]


def test_scores_are_drawn(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = catch_figures(monkeypatch)
    path = runs / "scores.svg"
    command = ["benchmark", "ood", runs / "ce", runs / "nonl", "--device", "cpu", "--plot", path]
    result = invoke(*command, "--against", runs / "noise.npz")
    assert result.stderr.splitlines()[-1] == f"Drew scores of 2 runs to {path}"
    assert titles(figures[path]) == ["noise: AUROC", "noise: FPR95"]
    assert legend_texts(figures[path]) == ["ce", "nonl", "chance"]


def test_two_sources_of_one_name_have_a_line_each(runs: Path) -> None:
    (runs / "other").mkdir()
    images = np.random.default_rng(1).integers(0, 9, (30, 8, 8), np.uint8)
    np.savez(runs / "other/noise.npz", images=images)
    command = ["benchmark", "ood", runs / "ce", "--device", "cpu"]
    command += ["--against", runs / "noise.npz", "--against", f"noise={runs / 'other/noise.npz'}"]
    (record,) = json.loads(run_command(*command, "--json"))["runs"]
    assert {row["against"] for row in record["rows"]} == {"noise"}
    areas = [f"{100 * row['auroc']:.1f}" for row in record["rows"]]
    lines = [line.split()[4:] for line in run_command(*command, columns=250).splitlines()[2:6:2]]
    assert lines == [areas[:6], areas[6:]]


def test_a_source_that_was_measured_may_have_another_name(runs: Path) -> None:
    command = ["benchmark", "ood", runs / "ce", "--device", "cpu", "--against"]
    for source, name in ((runs / "noise.npz", "noise"), (f"static={runs / 'noise.npz'}", "static")):
        output = run_command(*command, source, columns=250)
        assert output.splitlines()[2].split()[2] == name
        content = json.loads((runs / "ce/benchmarks/ood.json").read_text())
        assert [row["against"] for row in content["rows"]] == [name] * 6


def test_calibration_of_head_and_class_means(runs: Path) -> None:
    pytest.importorskip("matplotlib")
    command = ["benchmark", "calibration", runs / "ce", runs / "nonl", "--device", "cpu"]
    result = invoke(*command, "--plot", runs / "reliability.svg", columns=250)
    assert result.exit_code == 0, result.output
    assert "Drew 4 reliability diagrams to" in result.stderr
    assert (runs / "reliability.svg").read_bytes().count(b"<!-- confidence in % -->") == 4
    lines = [line.split() for line in result.stdout.splitlines()]
    records = json.loads(run_command(*command, "--json"))["runs"]
    assert len(records[0]["reliability"]) == 2 * 2 * 15
    rows = [row for record in records for row in record["rows"]]
    for line, row in zip(lines[2:10], rows, strict=True):
        state = line.index(row["state"])
        assert line[state + 1 :] == [
            f"{row['temperature']:.3g}",
            f"{100 * row['accuracy']:.1f}",
            f"{100 * row['ece']:.1f}",
            f"{100 * row['adaptive_ece']:.1f}",
            f"{row['nll']:.3f}",
            f"{row['brier']:.3f}",
        ]
    note = "ce: T fitted on half of the test images (80), numbers of the other half (80)"
    assert note in result.stdout.splitlines()


def test_a_recipe_is_trained_first(runs: Path) -> None:
    path = runs / "ce/recipe.yaml"
    arguments = ["--out", runs / "trained", "--set", "schedule.epochs=1", "--device", "cpu"]
    result = invoke("benchmark", "calibration", path, *arguments, "--json")
    assert result.exit_code == 0, result.output
    assert "epoch 1/1" in result.stderr
    (record,) = json.loads(result.stdout)["runs"]
    assert record["recipe"] == "digits-ce"
    assert (runs / "trained/digits-ce/benchmarks/calibration.json").exists()


@pytest.mark.bad_input
def test_targets_are_checked_before_a_recipe_is_trained(runs: Path) -> None:
    path, out, folder = runs / "ce/recipe.yaml", runs / "trained", runs / "empty"
    folder.mkdir()
    command = ["benchmark", "calibration", path, "--out", out]
    assert refusal(*command, folder) == f"{folder} is not a run folder: it has no recipe"
    assert refusal(*command, runs / "nonl", "--set", "schedule.epochs=1") == (
        f"{runs / 'nonl'}: overrides must not change what was trained: schedule.epochs is 3 there "
        "and 1 here"
    )
    other = runs / "other.yaml"
    other.write_text(path.read_text().replace("seed: 42", "seed: 43"))
    assert refusal(*command, other) == (
        f"recipes must have different names, {path} and {other} are both digits-ce"
    )
    assert not out.exists()


@pytest.mark.bad_input
def test_what_is_refused(runs: Path) -> None:
    command = ["benchmark", "ood", runs / "ce", "--device", "cpu"]
    assert "Missing option '--against'" in usage_error(*command)
    assert "did you mean cifar10?" in refusal(*command, "--against", "cifar11")
    missing = runs / "none"
    assert refusal(*command, "--against", missing) == (
        f"{missing} must be a folder or an .npz file; it does not exist"
    )
    assert "must not be the test images of" in refusal(*command, "--against", _own_images(runs))
    same = [f"--against={name}={runs / 'noise.npz'}" for name in ("a", "b")]
    assert refusal(*command, *same) == "sources must have different images, a and b have the same"
    other = ["--against", runs / "noise.npz", "--split", "validation"]
    assert "there are no validation images" in refusal(*command, *other)
    plot = ["benchmark", "calibration", runs / "ce", "--plot", runs / "x.html"]
    assert "--plot must be a file that ends in" in refusal(*plot)


def _own_images(runs: Path) -> Path:
    """A file with the test images of the run, labels and names as a source has them."""
    from protosphere.recipes.loading import load_run

    test = load_run(runs / "ce").dataset("test").test
    path = runs / "own.npz"
    np.savez(path, x_test=test.images.numpy(), class_names=np.array(test.class_names))
    return path
