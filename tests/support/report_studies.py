"""A comparison of two methods and a sweep of three trials, as reports read them."""

from typing import Any

from protosphere.runs.comparison import (
    ComparedMethod,
    ComparedMetric,
    ComparedRun,
    Comparison,
    MetricSummary,
)
from protosphere.runs.sweeps import SweepRecord, SweepSetting, SweepTrial


def create_comparison(**fields: Any) -> Comparison:
    """Return a comparison of one seed of two methods."""
    methods = ("digits-ce", "digits-nonl")
    values: dict[str, Any] = {
        "split": "test",
        "num_images": 600,
        "num_classes": 4,
        "confidence": 0.95,
        "baseline": methods[0],
        "seeds": (42,),
        "metrics": (ComparedMetric("accuracy", "higher"),),
        "methods": tuple(ComparedMethod(name, {"name": name}) for name in methods),
        "runs": tuple(
            ComparedRun(name, 42, f"{name}/seed-42", 40, 4, {"accuracy": 0.9}) for name in methods
        ),
        "failures": (),
        "pending": (),
        "summaries": tuple(MetricSummary(name, "accuracy", 1, 0.9, None) for name in methods),
        "differences": (),
        "best": (),
        "machines": ({"device": "cpu", "versions": {"torch": "2.9"}, "commit": "0123456789ab"},),
    }
    return Comparison(**values | fields)


def create_sweep() -> SweepRecord:
    """Return a sweep of three learning rates."""
    rates = (0.1, 0.2, 0.4)
    return SweepRecord(
        name="digits-nonl",
        recipe="name: digits-nonl\n",
        metric="accuracy",
        direction="maximize",
        num_validation=100,
        sampler="grid",
        seed=0,
        prune=False,
        num_trials=3,
        settings=(SweepSetting("optimizer.lr", "grid", rates),),
        trials=tuple(
            SweepTrial(number, "complete", {"optimizer.lr": rate}, value=0.9 - rate / 10)
            for number, rate in enumerate(rates)
        ),
    )
