"""Averaged weights with three kinds of statistics: what the benchmark evaluates and shows."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from protosphere.evaluation.inference import collect_outputs
from protosphere.recipes.build import load_dataset
from protosphere.recipes.loading import load_run, read_recipe
from protosphere.recipes.runner import run_recipe
from protosphere.runs import RunFolder
from protosphere.runs.checkpoints import load_checkpoint
from protosphere.training.averaged_weights import AveragedWeights
from support.short_runs import few_digits


def test_weights_and_their_average_are_evaluated_with_three_kinds_of_statistics(
    import_benchmark: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    benchmark = import_benchmark("averaged_weights")
    monkeypatch.setattr(benchmark, "RESULTS", tmp_path / "averaged_weights.json")
    monkeypatch.setattr(benchmark, "NAME", "run")
    monkeypatch.setattr(benchmark, "EPOCHS", 2)
    monkeypatch.setattr(AveragedWeights, "refresh", AveragedWeights.refresh)
    benchmark.keep_averaged_statistics()
    settings = ["schedule.epochs=2", "training.ema_decay=0.9", "evaluation.every=1"]
    recipe = read_recipe("digits-ce", [*few_digits(), *settings, "name=run"])
    for _ in run_recipe(recipe, tmp_path / "run", load_dataset(recipe)):
        pass
    folder = RunFolder(tmp_path / "run")
    benchmark.compare_statistics(folder.path, "cpu")
    results = json.loads((folder.path / benchmark.FINAL).read_text())
    evaluation, checkpoint = folder.last_evaluation(), load_checkpoint(folder.checkpoints)
    assert evaluation is not None
    assert checkpoint is not None
    # Training has evaluated the average with averaged statistics, since the benchmark lets it.
    assert results["average, averaged statistics"] == pytest.approx(evaluation["accuracy"])
    run = load_run(folder.path)
    run.objective.load_state_dict(checkpoint.weights)
    outputs = collect_outputs(run.objective, run._loaders("test")[1])
    accuracy = float((outputs.predictions == outputs.labels).double().mean())
    assert results["weights"] == pytest.approx(accuracy)
    assert 0 < results["average, own statistics"] <= 1
    benchmark.collect(tmp_path)
    rows = json.loads((tmp_path / "averaged_weights.json").read_text())["rows"]
    assert [row["epoch"] for row in rows] == [1, 2]
    assert rows[-1] == {"epoch": 2, **results}


def test_the_job_trains_with_an_average(import_benchmark: Callable[[str], ModuleType]) -> None:
    benchmark = import_benchmark("averaged_weights")
    (job,) = benchmark.jobs()
    recipe = read_recipe(job.recipe, ["data.source=arrays", "data.path=x.npz", *job.overrides])
    assert (recipe.training.ema_decay, recipe.schedule.epochs) == (0.999, 100)
    assert (job.prepare, job.finish) == (
        benchmark.keep_averaged_statistics,
        benchmark.compare_statistics,
    )
