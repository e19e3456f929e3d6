"""``train --log``: TensorBoard and W&B receive the metrics; a missing package is named."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from protosphere.runs import RunFolder
from support.commands import refusal, run_command, set_options

SHORT = [*set_options(schedule__epochs=2, evaluation__every=1), "--device", "cpu"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_tensorboard_receives_the_metrics(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_command("train", "digits-ce", "--out", run, *SHORT, "--log", "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    last = RunFolder(run).last_evaluation()
    assert last is not None
    accuracies = events.Scalars("accuracy")
    assert [event.step for event in accuracies] == [last["step"] // 2, last["step"]]
    assert accuracies[-1].value == pytest.approx(last["accuracy"])
    assert {"loss", "lr", "nc1_ratio"} <= set(events.Tags()["scalars"])


def test_wandb_receives_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {}
    logged: list[tuple[int, dict[str, float]]] = []
    finished: list[bool] = []

    class Run:
        def log(self, metrics: dict[str, float], step: int) -> None:
            logged.append((step, metrics))

        def finish(self) -> None:
            finished.append(True)

    def init(**given: Any) -> Run:
        options.update(given)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    run = tmp_path / "run"
    run_command("train", "digits-nonl", "--out", run, *SHORT, "--log", "wandb")
    assert (options["name"], options["resume"], finished) == ("digits-nonl", "allow", [True])
    assert options["config"]["loss"]["name"] == "nonl"
    step, metrics = logged[-1]
    last = RunFolder(run).last_evaluation()
    assert last is not None
    assert (step, metrics["accuracy"]) == (last["step"], last["accuracy"])


@pytest.mark.bad_input
def test_a_logger_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    run = tmp_path / "run"
    message = refusal("train", "digits-ce", "--out", run, *SHORT, "--log", "wandb")
    assert message == '--log wandb needs a package: pip install "protosphere[wandb]"'
    assert not run.exists()


@pytest.mark.bad_input
def test_a_package_of_an_extra_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    for name in [name for name in sys.modules if name.startswith("protosphere.recipes")]:
        monkeypatch.delitem(sys.modules, name)
    message = refusal("train", "digits-ce", "--out", tmp_path / "run", *SHORT)
    assert message == 'yaml is not installed: pip install "protosphere[train]"'
