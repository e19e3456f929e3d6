"""``protosphere train`` and ``protosphere recipes``: from a name to a run folder; resumed, refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from protosphere.cli.app import app
from protosphere.recipes import catalog
from protosphere.recipes.runner import latest
from protosphere.recipes.schema import from_yaml
from protosphere.runs import RunFolder

runner = CliRunner()
SHORT = [
    "--set",
    "optimization.epochs=4",
    "--set",
    "evaluate_every=1",
    "--set",
    "save_every=1",
    "--device",
    "cpu",
]


def test_a_run_leaves_what_it_should(tmp_path: Path) -> None:
    result = runner.invoke(app, ["train", "digits-nonl", "--out", str(tmp_path / "run"), *SHORT])
    assert result.exit_code == 0, result.output
    assert "epoch 4: loss" in result.stdout
    run = RunFolder(tmp_path / "run")
    assert from_yaml(run.recipe.read_text()).loss.kind == "nonl"
    assert (
        run.read_json("machine.json")["versions"]["torch"] == torch.__version__.split("+")[0]
        or "+" in torch.__version__
    )
    assert run.read_json("classes.json") == list("0123456789")
    assert [record["epoch"] for record in run.records() if record["kind"] == "train"] == [
        1,
        2,
        3,
        4,
    ]
    last = latest(run.path)
    assert last["test_accuracy"] > 0.8
    assert {"nearest_mean_accuracy", "nc1_ratio", "nc4_agreement"} <= set(last)
    # The recipe in the folder runs again, exactly.
    again = runner.invoke(
        app, ["train", str(run.recipe), "--out", str(tmp_path / "again"), "--device", "cpu"]
    )
    assert again.exit_code == 0
    assert latest(tmp_path / "again") == last


def test_what_it_says_of_itself(tmp_path: Path) -> None:
    """Where a resumed run goes on, and that a batch is no larger than the data."""
    fewer = [
        "--set",
        "data.source=synthetic",
        "--set",
        "data.samples=20",
        "--set",
        "data.resolution=8",
    ]
    command = ["train", "digits-ce", "--out", str(tmp_path / "run"), *SHORT, *fewer]
    first = runner.invoke(app, command)
    assert first.exit_code == 0, first.output
    assert "a batch is all of them: optimization.batch is " in first.stdout
    assert "went on" not in first.stdout
    done = RunFolder(tmp_path / "run")
    last = sorted(done.checkpoints.iterdir())[-1]
    shutil.rmtree(last)
    second = runner.invoke(app, [*command, "--resume"])
    assert second.exit_code == 0, second.output
    assert "went on from step 3\n" in second.stdout
    whole = runner.invoke(app, [*command, "--resume", "--set", "optimization.batch=4"])
    assert "a batch is" not in whole.stdout


@pytest.mark.bad_input
def test_what_is_refused(tmp_path: Path) -> None:
    def said(*arguments: str) -> str:
        result = runner.invoke(app, list(arguments))
        assert result.exit_code == 1, result.output
        assert result.stderr.count("\n") == 1
        return result.stderr.strip()

    run = str(tmp_path / "run")
    assert runner.invoke(app, ["train", "digits-ce", "--out", run, *SHORT]).exit_code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert "must be resumed (--resume) or be another folder" in said(
        "train", "digits-ce", "--out", run, *SHORT
    )
    assert "it holds another one" in said("train", "digits-nonl", "--out", run, "--resume", *SHORT)
    assert {path: path.read_bytes() for path in before} == before, "nothing is overwritten"
    assert "did you mean digits-nonl?" in said("train", "digits-nol", "--out", str(tmp_path / "x"))
    assert "did you mean epochs?" in said(
        "train", "digits-ce", "--out", str(tmp_path / "x"), "--set", "optimization.epoch=1"
    )
    assert "cannot" in said("train", "none.yaml", "--out", str(tmp_path / "x"))
    missing = ["--set", f"data.root={tmp_path}/nothing"]
    assert "cifar100 must be in" in said(
        "train", "cifar100-ce", "--out", str(tmp_path / "x"), *missing
    )
    assert not (tmp_path / "x").exists()
    exploding = ["--set", "optimization.rate=1e30", "--set", "loss.kind=ce"]
    assert "there is no checkpoint" in said(
        "train", "digits-ce", "--out", str(tmp_path / "y"), *SHORT, *exploding
    )


def test_the_catalog() -> None:
    listing = runner.invoke(app, ["recipes"])
    assert all(name in listing.stdout for name in catalog.names())
    printed = runner.invoke(app, ["recipes", "cifar100-nonl", "--set", "seed=7"])
    assert from_yaml(printed.stdout).seed == 7
    assert runner.invoke(app, ["recipes", "nonsense"]).exit_code == 1
    schema = json.loads(runner.invoke(app, ["recipes", "--schema"]).stdout)
    assert schema["title"] == "Recipe"
