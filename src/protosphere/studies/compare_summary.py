"""What follows from the values of runs: deviations, differences to a baseline, best methods."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from protosphere.runs.comparison import (
    BestMethod,
    ComparedMethod,
    ComparedMetric,
    ComparedRun,
    Comparison,
    FailedRun,
    MetricDifference,
    MetricSummary,
    Outcome,
    PendingRun,
)
from protosphere.studies.compare_metrics import describe_metrics
from protosphere.studies.compare_plan import ComparisonPlan
from protosphere.studies.compare_records import Outcomes, RunResult
from protosphere.studies.compare_statistics import (
    adjust_p_values,
    paired_difference,
    summarize,
)


class NoCompleteRunError(ValueError):
    """There is no complete run to compare; the message says why."""


# Values of one metric by method and seed.
Values = Mapping[str, Mapping[int, float]]


def values_of(metric: str, runs: Sequence[ComparedRun], methods: Sequence[str]) -> Values:
    """Return the values of a metric by method and seed, without runs that do not have it.

    Args:
        metric: Name of the metric.
        runs: The runs.
        methods: Names of the methods, in the order of the result.
    """
    return {
        method: {
            run.seed: run.values[metric]
            for run in runs
            if run.method == method and metric in run.values
        }
        for method in methods
    }


def summarize_metric(metric: str, values: Values) -> list[MetricSummary]:
    """Return mean and standard deviation of a metric for each method that has it.

    Args:
        metric: Name of the metric.
        values: Its values.
    """
    rows = []
    for method, by_seed in values.items():
        if by_seed:
            summary = summarize(list(by_seed.values()))
            rows.append(MetricSummary(method, metric, len(by_seed), *summary))
    return rows


def compare_to_baseline(
    metric: ComparedMetric, values: Values, *, baseline: str, confidence: float
) -> list[MetricDifference]:
    """Return the paired differences of all other methods to the baseline.

    p-values are adjusted for the number of methods (Holm), not for the number of metrics.

    Args:
        metric: The metric.
        values: Its values.
        baseline: Name of the baseline.
        confidence: Confidence of the intervals.

    Returns:
        One difference for each method that has a seed in common with the baseline.
    """
    rows = []
    for method, by_seed in values.items():
        seeds = tuple(seed for seed in by_seed if seed in values[baseline])
        if method == baseline or not seeds:
            continue
        result = paired_difference(
            [_score(metric, by_seed[seed]) for seed in seeds],
            [_score(metric, values[baseline][seed]) for seed in seeds],
            confidence=confidence,
        )
        rows.append(MetricDifference(method, metric.name, seeds, *result, None, None))
    adjusted = iter(adjust_p_values([row.p_value for row in rows if row.p_value is not None]))
    return [
        row if row.p_value is None else _judge(row, next(adjusted), metric, confidence)
        for row in rows
    ]


def _score(metric: ComparedMetric, value: float) -> float:
    """Return what is compared: the value, or its distance from the best one."""
    return value if metric.target is None else abs(value - metric.target)


def seed_differences(
    metric: ComparedMetric, runs: Sequence[ComparedRun], method: str, baseline: str
) -> list[float]:
    """Return the differences of a method to the baseline, seed by seed.

    Args:
        metric: The metric.
        runs: The runs of the comparison.
        method: Name of the method.
        baseline: Name of the baseline.
    """
    values = values_of(metric.name, runs, (method, baseline))
    return [
        _score(metric, value) - _score(metric, values[baseline][seed])
        for seed, value in values[method].items()
        if seed in values[baseline]
    ]


def _judge(
    row: MetricDifference, p_value: float, metric: ComparedMetric, confidence: float
) -> MetricDifference:
    outcome: Outcome = "not clear"
    # Compared like this because 1 − 0.95 is not 0.05 in floating point.
    if p_value + confidence < 1:
        is_better = row.mean > 0 if metric.direction == "higher" else row.mean < 0
        outcome = "better" if is_better else "worse"
        if metric.direction is None:
            outcome = "different"
    return replace(row, adjusted_p_value=p_value, outcome=outcome)


def find_best_method(
    metric: ComparedMetric,
    values: Values,
    differences: Sequence[MetricDifference],
    *,
    baseline: str,
) -> BestMethod | None:
    """Return the method with the best mean over the seeds that all methods have in common.

    Methods without a single value do not take part.

    Args:
        metric: The metric.
        values: Its values.
        differences: What :func:`compare_to_baseline` returned.
        baseline: Name of the baseline.

    Returns:
        The best method; None if the metric has no direction, fewer than two methods have it, or
        they have no seed in common.
    """
    measured = {method: by_seed for method, by_seed in values.items() if by_seed}
    if metric.direction is None or len(measured) < 2:
        return None
    first, *others = measured.values()
    seeds = tuple(seed for seed in first if all(seed in other for other in others))
    if not seeds:
        return None
    means = {
        method: summarize([_score(metric, by_seed[seed]) for seed in seeds]).mean
        for method, by_seed in measured.items()
    }
    best = max(means.values()) if metric.direction == "higher" else min(means.values())
    winners = tuple(method for method, mean in means.items() if mean == best)
    if winners == (baseline,):
        beaten = tuple(row.method for row in differences if row.outcome == "worse")
    else:
        is_clear = any(row.outcome == "better" and row.method in winners for row in differences)
        beaten = (baseline,) if is_clear else ()
    return BestMethod(metric.name, seeds, winners, beaten)


def create_comparison(plan: ComparisonPlan, outcomes: Outcomes, *, confidence: float) -> Comparison:
    """Compute everything that a comparison says of its runs.

    Args:
        plan: The runs.
        outcomes: Those that are complete or have failed.
        confidence: Confidence of the intervals.

    Raises:
        NoCompleteRunError: No run is complete.
    """
    found = [outcomes[run.key] for run in plan.runs if run.key in outcomes]
    results = [outcome for outcome in found if isinstance(outcome, RunResult)]
    failures = tuple(outcome for outcome in found if isinstance(outcome, FailedRun))
    pending = tuple(PendingRun(*run.key) for run in plan.runs if run.key not in outcomes)
    if not results:
        raise NoCompleteRunError(_why_no_run_is_complete(failures, pending))
    runs = tuple(result.run for result in results)
    num_classes = len(results[0].class_names)
    metrics = describe_metrics({name for run in runs for name in run.values}, num_classes)
    summaries: list[MetricSummary] = []
    differences: list[MetricDifference] = []
    best: list[BestMethod] = []
    for metric in metrics:
        values = values_of(metric.name, runs, tuple(plan.recipes))
        rows = compare_to_baseline(metric, values, baseline=plan.baseline, confidence=confidence)
        summaries += summarize_metric(metric.name, values)
        differences += rows
        if winner := find_best_method(metric, values, rows, baseline=plan.baseline):
            best.append(winner)
    machines: list[dict[str, Any]] = []
    for result in results:
        if result.machine is not None and result.machine not in machines:
            machines.append(result.machine)
    return Comparison(
        split=results[0].data.split,
        num_images=results[0].data.num_eval,
        num_classes=num_classes,
        confidence=confidence,
        baseline=plan.baseline,
        seeds=plan.seeds,
        metrics=metrics,
        methods=tuple(
            ComparedMethod(name, recipe.model_dump(mode="json", exclude={"seed"}))
            for name, recipe in plan.recipes.items()
        ),
        runs=runs,
        failures=failures,
        pending=pending,
        summaries=tuple(summaries),
        differences=tuple(differences),
        best=tuple(best),
        machines=tuple(machines),
    )


def _why_no_run_is_complete(failures: Sequence[FailedRun], pending: Sequence[PendingRun]) -> str:
    if pending or not failures:
        return "no run is complete yet; the same command continues"
    first = failures[0]
    others = f" ({len(failures) - 1} more have failed)" if len(failures) > 1 else ""
    return f"no run is complete; {first.method}, seed {first.seed}: {first.error}{others}"
