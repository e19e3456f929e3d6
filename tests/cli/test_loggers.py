"""``--log``: TensorBoard's own reader finds the numbers; W&B is given them; a missing package is named."""

import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from protosphere.cli.app import app
from protosphere.recipes.runner import latest

runner = CliRunner()
SHORT = ["--set", "optimization.epochs=2", "--set", "evaluate_every=1", "--device", "cpu"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_tensorboard(tmp_path: Path) -> None:
    result = runner.invoke(
        app, ["train", "digits-ce", "--out", str(tmp_path / "run"), *SHORT, "--log", "tensorboard"]
    )
    assert result.exit_code == 0, result.output
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    last = latest(tmp_path / "run")
    assert [event.step for event in events.Scalars("test_accuracy")] == [
        last["step"] // 2,
        last["step"],
    ]
    assert events.Scalars("test_accuracy")[-1].value == pytest.approx(last["test_accuracy"])
    assert {"loss", "rate", "nc1_ratio"} <= set(events.Tags()["scalars"])


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict = {"logged": []}

    class Run:
        def log(self, numbers: dict, step: int) -> None:
            seen["logged"].append((step, numbers))

        def finish(self) -> None:
            seen["finished"] = True

    def init(**options: object) -> Run:
        seen.update(options)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    result = runner.invoke(
        app, ["train", "digits-nonl", "--out", str(tmp_path / "run"), *SHORT, "--log", "wandb"]
    )
    assert result.exit_code == 0, result.output
    assert (seen["name"], seen["resume"], seen["finished"]) == ("digits-nonl", "allow", True)
    assert seen["config"]["loss"]["kind"] == "nonl"
    step, numbers = seen["logged"][-1]
    assert numbers["test_accuracy"] == latest(tmp_path / "run")["test_accuracy"]
    assert step == latest(tmp_path / "run")["step"]


@pytest.mark.bad_input
def test_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    result = runner.invoke(
        app, ["train", "digits-ce", "--out", str(tmp_path / "run"), *SHORT, "--log", "wandb"]
    )
    assert result.exit_code == 1
    assert 'pip install "protosphere[wandb]"' in result.stderr
    result = runner.invoke(
        app, ["train", "digits-ce", "--out", str(tmp_path / "run"), *SHORT, "--log", "paper"]
    )
    assert result.exit_code == 1
    assert "--log must be tensorboard or wandb; got paper" in result.stderr
    monkeypatch.setitem(sys.modules, "yaml", None)
    for name in [name for name in sys.modules if name.startswith("protosphere.recipes")]:
        monkeypatch.delitem(sys.modules, name)
    result = runner.invoke(app, ["train", "digits-ce", "--out", str(tmp_path / "run"), *SHORT])
    assert result.exit_code == 1
    assert 'yaml must be installed for this: pip install "protosphere[train]"' in result.stderr
