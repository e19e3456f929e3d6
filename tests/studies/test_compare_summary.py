"""What follows from values by method and seed: clear differences and best methods."""

import math

import pytest

from protosphere.runs.comparison import ComparedMetric, ComparedRun
from protosphere.studies.compare_metrics import SHOWN_METRICS, describe_metrics, select_metrics
from protosphere.studies.compare_summary import (
    compare_to_baseline,
    find_best_method,
    seed_differences,
    summarize_metric,
    values_of,
)

HIGHER = ComparedMetric("accuracy", "higher")
LOWER = ComparedMetric("loss", "lower")
TARGET = ComparedMetric("mir", "target", 0.5)
OPEN = ComparedMetric("mir_published", None)


def _values(*series: list[float]) -> dict[str, dict[int, float]]:
    """Methods a, b, ... with seeds 0, 1, ..."""
    return {name: dict(enumerate(numbers)) for name, numbers in zip("abc", series, strict=False)}


def test_values_are_by_method_and_seed_without_those_that_are_missing() -> None:
    runs = [
        ComparedRun("b", 7, "", 1, 1, {"loss": 1.0}),
        ComparedRun("a", 7, "", 1, 1, {"loss": 2.0}),
        ComparedRun("a", 8, "", 1, 1, {}),
    ]
    assert values_of("loss", runs, ["a", "b", "c"]) == {"a": {7: 2.0}, "b": {7: 1.0}, "c": {}}
    rows = summarize_metric("loss", values_of("loss", runs, ["a", "b", "c"]))
    assert [(row.method, row.num_seeds, row.mean) for row in rows] == [("a", 1, 2.0), ("b", 1, 1.0)]


@pytest.mark.parametrize(
    ("metric", "outcome"),
    [(HIGHER, "better"), (LOWER, "worse"), (OPEN, "different"), (TARGET, "worse")],
)
def test_the_outcome_follows_the_direction(metric: ComparedMetric, outcome: str) -> None:
    values = _values([0.50, 0.52, 0.48], [0.70, 0.71, 0.69])
    (row,) = compare_to_baseline(metric, values, baseline="a", confidence=0.95)
    assert (row.method, row.outcome) == ("b", outcome)
    (row,) = compare_to_baseline(metric, values, baseline="b", confidence=0.95)
    assert row.outcome == {"better": "worse", "worse": "better"}.get(outcome, outcome)


def test_distances_from_the_target_are_compared() -> None:
    values = _values([0.4, 0.4], [0.55, 0.55])
    (row,) = compare_to_baseline(TARGET, values, baseline="a", confidence=0.95)
    assert row.mean == pytest.approx(0.05 - 0.1)
    runs = [
        ComparedRun(method, seed, "", 1, 1, {"mir": value})
        for method, by_seed in values.items()
        for seed, value in by_seed.items()
    ]
    assert seed_differences(TARGET, runs, "b", "a") == pytest.approx([-0.05, -0.05])
    best = find_best_method(TARGET, values, [row], baseline="a")
    assert best is not None
    assert best.methods == ("b",)


def test_p_values_are_adjusted_for_the_number_of_methods() -> None:
    # Differences 1, 2, 3 have p = 0.0742 (tests/studies/test_compare_statistics.py): clear at 90%
    # on their own, and not as the smallest of two.
    one = _values([0.0, 0.0, 0.0], [1.0, 2.0, 3.0])
    two = _values([0.0, 0.0, 0.0], [1.0, 2.0, 3.0], [1.0, -2.0, 1.5])
    (alone,) = compare_to_baseline(HIGHER, one, baseline="a", confidence=0.9)
    first, second = compare_to_baseline(HIGHER, two, baseline="a", confidence=0.9)
    assert alone.p_value == alone.adjusted_p_value == pytest.approx(0.0742, abs=1e-4)
    assert first.adjusted_p_value == pytest.approx(2 * 0.0742, abs=2e-4)
    assert second.adjusted_p_value == second.p_value
    assert (alone.outcome, first.outcome, second.outcome) == ("better", "not clear", "not clear")
    assert (first.low, first.high) == (alone.low, alone.high), "intervals are not adjusted"


def test_methods_without_a_common_seed_have_no_difference() -> None:
    values = {"a": {0: 1.0}, "b": {1: 2.0}, "c": {0: 3.0}}
    (row,) = compare_to_baseline(HIGHER, values, baseline="a", confidence=0.95)
    assert (row.method, row.seeds, row.mean, row.outcome) == ("c", (0,), 2.0, None)
    assert find_best_method(HIGHER, values, [row], baseline="a") is None


def test_the_best_method_has_the_best_mean_over_the_seeds_of_all() -> None:
    values = {"a": {0: 0.5, 1: 0.5}, "b": {0: 0.4, 1: 0.7}, "c": {0: 0.6, 2: 0.0}, "d": {}}
    best = find_best_method(HIGHER, values, [], baseline="a")
    assert best is not None
    assert (best.seeds, best.methods, best.clearly_better_than) == ((0,), ("c",), ())
    best = find_best_method(LOWER, values, [], baseline="a")
    assert best is not None
    assert best.methods == ("b",)
    tied = find_best_method(HIGHER, _values([0.5], [0.5]), [], baseline="a")
    assert tied is not None
    assert tied.methods == ("a", "b")
    assert find_best_method(OPEN, values, [], baseline="a") is None
    assert find_best_method(HIGHER, {"a": {0: 1.0}, "b": {}}, [], baseline="a") is None


def test_the_best_method_names_what_it_is_clearly_better_than() -> None:
    values = _values([0.50, 0.52, 0.48], [0.70, 0.71, 0.69], [0.1, 0.6, 0.3])
    for baseline, beaten in (("a", ("a",)), ("b", ("a",)), ("c", ())):
        rows = compare_to_baseline(HIGHER, values, baseline=baseline, confidence=0.95)
        best = find_best_method(HIGHER, values, rows, baseline=baseline)
        assert best is not None
        assert (best.methods, best.clearly_better_than) == (("b",), beaten)


def test_metrics_have_the_directions_of_the_catalog() -> None:
    logged = ["mir", "accuracy", "inter_effective_rank", "ece", "nc1_ratio", "something"]
    rows = {metric.name: metric for metric in describe_metrics(logged, 10)}
    assert list(rows) == ["accuracy", "ece", "nc1_ratio", "inter_effective_rank", "mir"]
    assert [row.direction for row in rows.values()] == [
        "higher",
        "lower",
        "lower",
        "higher",
        "target",
    ]
    assert rows["mir"].target == pytest.approx(1 / 9 + 8 * math.log(8) / (9 * math.log(9)))
    assert describe_metrics(["mir"], 2) == (ComparedMetric("mir", None),)


def test_selections_of_metrics() -> None:
    assert select_metrics([]) == SHOWN_METRICS
    assert select_metrics(["nc1_ratio", "accuracy"]) == ("nc1_ratio", "accuracy")
    assert select_metrics(["all"])[:2] == ("accuracy", "nearest_mean_accuracy")
    with pytest.raises(ValueError, match=r"got acuracy; did you mean accuracy\?"):
        select_metrics(["acuracy"])
