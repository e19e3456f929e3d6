"""The evaluation of a run that its results are taken from."""

from collections.abc import Iterable

from protosphere.report.curves import finite
from protosphere.report.read_run import best_evaluation, section_value
from protosphere.report.sources import RunData
from protosphere.report.summaries import MISSING, Summary, summarize
from protosphere.runs.folder import Record


def final_evaluation(run: RunData) -> Record | None:
    """Return the last evaluation of a run, or the best one if its recipe monitors a metric.

    The best one is that of the checkpoint which ``protosphere evaluate`` loads.

    Args:
        run: The run.

    Returns:
        The record; None if there is no evaluation.
    """
    if not run.evaluations:
        return None
    return _best_evaluation(run) or run.evaluations[-1]


def _best_evaluation(run: RunData) -> Record | None:
    return best_evaluation(run.recipe, run.records)


def shows_last(run: RunData) -> bool:
    """Return whether results are those of the last evaluation.

    Args:
        run: The run.
    """
    return not run.evaluations or final_evaluation(run) is run.evaluations[-1]


def lacks_best_arrays(run: RunData) -> bool:
    """Return whether the arrays of a run are of the last evaluation, but its results of another.

    Args:
        run: The run.
    """
    record = final_evaluation(run)
    if record is None or not run.arrays or shows_last(run):
        return False
    return bool(run.arrays_step != record["step"])


def describe_arrays(runs: Iterable[RunData]) -> str:
    """Return which evaluations the arrays of runs are of, to follow "the".

    Args:
        runs: Runs with arrays.
    """
    shown = list(runs)
    if not any(map(lacks_best_arrays, shown)):
        return describe_evaluations(shown)
    if all(lacks_best_arrays(run) or shows_last(run) for run in shown):
        return "last evaluation"
    return "last evaluation, or the best one where the run folder has it"


def describe_evaluation(run: RunData) -> str:
    """Return which evaluation of a run its results are of; a dash if there is none.

    Args:
        run: The run.
    """
    record = final_evaluation(run)
    if record is None:
        return MISSING
    kind = "last" if _best_evaluation(run) is None else "best"
    epochs = section_value(run.recipe, "schedule", "epochs")
    of = "" if finite(epochs) is None else f" of {epochs}"
    return f"{kind} evaluation, epoch {record['epoch']:g}{of}"


def describe_evaluations(runs: Iterable[RunData]) -> str:
    """Return which evaluations the results of runs are of, to follow "the".

    Args:
        runs: The runs.
    """
    evaluated = [run for run in runs if run.evaluations]
    best = [run for run in evaluated if _best_evaluation(run) is not None]
    if not best:
        return "last evaluation"
    if len(best) < len(evaluated):
        return "last evaluation, or the best one where the recipe monitors a metric"
    texts = {describe_evaluation(run) for run in best}
    return texts.pop() if len(texts) == 1 else "best evaluation by the monitored metric"


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
