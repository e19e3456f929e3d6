"""How the numbers of a table are read from runs, and what happens if one cannot be."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from protosphere.evaluation.probes import ProbeResult
from protosphere.runs import RunFolderError
from protosphere.studies import reproduce_readings
from protosphere.studies.reproduce import TargetPlan, plan_target, read_numbers, run_target
from protosphere.studies.reproduce_readings import RunReader
from protosphere.studies.reproduce_runs import PlannedRun
from protosphere.training import TrainingError
from support.reproductions import numbers_of, refuse_training, write_records


def test_probes_of_runs_without_weights_are_read(tmp_path: Path) -> None:
    def plan(*overrides: str) -> TargetPlan:
        return plan_target("table14", out=tmp_path, rows=["cifar10"], overrides=overrides)

    write_records(plan(), {"cifar10-scl": 0.9})
    rows = [
        ProbeResult("linear", "backbone", 0.91, 100, 1.0),
        ProbeResult("cached_linear", "output", 0.92, 1, 1.0),
        ProbeResult("cached_linear", "backbone", 0.93, 1, 1.0),
        ProbeResult("class_means", "output", 0.94, 1, 1.0),
    ]
    folder = tmp_path / "cifar10-scl-1000-epochs" / "benchmarks"
    with pytest.raises(RunFolderError, match=r"must have a checkpoint or probes\.json"):
        read_numbers(plan())
    folder.mkdir()
    settings = {"probe": {"lr": 5.0}}
    content = {"benchmark": "probes", "settings": settings, "rows": [asdict(row) for row in rows]}
    (folder / "probes.json").write_text(json.dumps(content))
    assert list(numbers_of(run_target(plan(), train=refuse_training)).values()) == pytest.approx(
        [91, 93, 94]
    )
    # Other probes cannot be fitted without weights.
    assert read_numbers(plan("probe.lr=5"))[0].value == pytest.approx(91)
    with pytest.raises(RunFolderError, match=r"checkpoint to change probe\.lr to 0\.1; .*5\.0"):
        read_numbers(plan("probe.lr=0.1"))


def test_a_benchmark_that_fails_is_recorded_and_the_other_numbers_are_read(tmp_path: Path) -> None:
    rows = ["cifar10 nonl", "cifar10 scl_linear_probe"]

    def plan() -> TargetPlan:
        return plan_target("table3", out=tmp_path, rows=rows, columns=["inter_effective_rank"])

    names = ["cifar10-nonl", "cifar10-scl"]
    write_records(plan(), dict.fromkeys(names, 8.0), metric="inter_effective_rank")
    result = run_target(plan(), train=refuse_training)
    assert list(numbers_of(result).values()) == [8.0, None]
    assert list(result.failures) == ["cifar10 scl_linear_probe, inter_effective_rank"]
    assert "must have a checkpoint or probes.json" in next(iter(result.failures.values()))
    assert json.loads((tmp_path / "table3.json").read_text())["failures"] == result.failures


def test_a_benchmark_that_has_failed_is_not_computed_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = plan_target("table14", out=tmp_path, rows=["cifar10"])
    (run,) = plan.runs
    reader = RunReader(plan.runs)
    monkeypatch.setattr(PlannedRun, "has_weights", property(lambda _: True))
    monkeypatch.setattr(reproduce_readings, "load_run", lambda *_, **__: None)
    computed = []

    def compute(*_: Any) -> tuple[ProbeResult, ...]:
        computed.append(1)
        raise TrainingError("the loss must be finite")

    for title in ("linear probe", "linear probe", "another"):
        with pytest.raises(TrainingError, match="must be finite"):
            reader.benchmark(run, "probes", ProbeResult, compute, title=title)
    assert len(computed) == 2


def test_changed_probes_are_those_that_are_fitted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    overrides = ["probe.lr=0.1", "probe.epochs=7", "probe.milestones=[3]"]
    plan = plan_target("table14", out=tmp_path, rows=["cifar10"], scale=0.5, overrides=overrides)
    ((run, planned),) = plan.runs.items()
    assert planned.recipe.probe.epochs == 7
    monkeypatch.setattr(PlannedRun, "has_weights", property(lambda _: True))
    loaded: dict[str, Any] = {}
    monkeypatch.setattr(
        reproduce_readings, "load_run", lambda *_, **options: loaded.update(options)
    )
    RunReader(plan.runs).benchmark(run, "probes", ProbeResult, lambda *_: ())
    assert set(overrides) <= set(loaded["overrides"])
