"""The evaluation of a run that its results are taken from."""

from protosphere.report.curves import finite
from protosphere.report.read_run import section_value
from protosphere.report.sources import RunData
from protosphere.report.summaries import Summary, summarize
from protosphere.runs.folder import Record


def final_evaluation(run: RunData) -> Record | None:
    """Return the last evaluation of a run, or the best one if its recipe monitors a metric.

    Args:
        run: The run.

    Returns:
        The record; None if there is no evaluation.
    """
    if not run.evaluations:
        return None
    monitor = section_value(run.recipe, "checkpoint", "monitor")
    if not isinstance(monitor, str):
        return run.evaluations[-1]
    values = [finite(record.get(monitor)) for record in run.evaluations]
    known = [value for value in values if value is not None]
    if not known:
        return run.evaluations[-1]
    best = min(known) if monitor == "loss" else max(known)
    return run.evaluations[values.index(best)]


def counted_runs(runs: tuple[RunData, ...]) -> tuple[RunData, ...]:
    """Return the runs whose results count: complete ones, or all if none is complete.

    Args:
        runs: Runs of one method.
    """
    return tuple(run for run in runs if run.state == "complete") or runs


def summarize_metric(runs: tuple[RunData, ...], metric: str) -> Summary | None:
    """Return mean and deviation of a metric over the runs of a method; None if none has it.

    Args:
        runs: Runs of one method.
        metric: Name of the metric in the records.
    """
    records = [final_evaluation(run) or {} for run in counted_runs(runs)]
    values = [finite(record.get(metric)) for record in records]
    return summarize(value for value in values if value is not None)
