"""Compiled code of several runs: one form for other learning rates, never too many for torch."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from protosphere.studies.compiled_code import CompiledCode
from support.sweeps import quick_recipe, sweep


def test_code_is_dropped_before_there_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    resets: list[int] = []
    code, calls = CompiledCode("cpu"), 0
    monkeypatch.setattr("torch.compiler.reset", lambda: resets.append(calls))
    for number in range(1, 10):
        for lr in (0.1, 0.2):
            options = (f"loss.temperature={number / 10}", f"optimizer.lr={lr}")
            code.prepare(quick_recipe("training.compile=true", *options))
            calls += 1
    assert resets == [8, 16]  # Before every fifth temperature; learning rates share their code.


def test_nothing_is_dropped_where_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.compiler.reset", lambda: pytest.fail("it must not be called"))
    code = CompiledCode("cpu")
    for temperature in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        code.prepare(quick_recipe(f"loss.temperature={temperature}"))


@pytest.mark.long
@pytest.mark.compiled
def test_trials_with_other_learning_rates_are_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch.compiler.reset()
    counters.clear()
    recipe = quick_recipe("training.compile=true", epochs=1)
    over = ("optimizer.lr=0.1,0.2", "optimizer.weight_decay=0,0.001")
    record = sweep(tmp_path / "sweep", *over, recipe=recipe)
    assert [(trial.state, trial.error) for trial in record.trials] == [("complete", None)] * 4
    assert counters["stats"]["unique_graphs"] == 1
    torch.compiler.reset()
