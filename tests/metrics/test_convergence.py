"""Convergence times on synthetic series and on the curves of the paper."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protosphere.metrics.convergence import (
    NEVER,
    Never,
    Threshold,
    Time,
    collapse_thresholds,
    compare_to_baseline,
    convergence_time,
    enters_and_stays,
    moving_average,
    percent,
    percent_to_collapse,
)

PAPER = json.loads((Path(__file__).parent / "paper_convergence.json").read_text())
LENGTH = 5500  # Iterations of the figure; the table lists each circle as a percentage of it.
METRICS = list(PAPER["figure"])
CIRCLES = {
    metric: {method: time for method, time, _ in panel["circles"]}
    for metric, panel in PAPER["figure"].items()
}


def _curves(metric: str) -> dict[str, list[tuple[float, float]]]:
    return {
        method: [(t, v) for t, v in curve]
        for method, curve in PAPER["figure"][metric]["curves"].items()
    }


def _number(time: Time) -> int | float:
    assert not isinstance(time, Never)
    return time


def _convergence_times(metric: str) -> dict[str, Time]:
    threshold = collapse_thresholds(100, 512)[metric]
    return {
        method: convergence_time(curve, threshold, length=LENGTH)
        for method, curve in _curves(metric).items()
    }


def test_thresholds_match_the_figure() -> None:
    thresholds = collapse_thresholds(100, 512)
    assert set(thresholds) == set(METRICS)
    for metric in METRICS:
        assert thresholds[metric].value == pytest.approx(PAPER["figure"][metric]["threshold"])


@pytest.mark.parametrize("metric", METRICS)
def test_metrics_converge_in_the_order_of_the_figure(metric: str) -> None:
    """Curves of 32 points cross later than the circles, which come from finer logs."""
    times = _convergence_times(metric)
    assert times.pop("ce") is NEVER
    circles = CIRCLES[metric]
    for method, early in circles.items():
        time = _number(times[method])
        assert early <= time <= LENGTH
        for other, late in circles.items():
            if early < late:
                assert time <= _number(times[other]), (method, other)


def test_disagreements_between_table_and_figure_of_the_paper() -> None:
    disagreements = {}
    for method, row in PAPER["table"]["to_95_percent_nc"].items():
        for metric, entry in row.items():
            circle = CIRCLES[metric].get(method)
            in_figure = NEVER if circle is None else round(_number(percent(circle, LENGTH)), 1)
            if in_figure != entry:
                disagreements[method, metric] = (entry, in_figure)
    assert disagreements == {
        ("ntce", "inter_effective_rank"): (52.4, 58.0),
        # The curve crosses after those of NormFace and NTCE.
        ("nonl", "weight_instance_alignment"): (79.4, NEVER),
    }
    times = _convergence_times("weight_instance_alignment")
    assert _number(times["nonl"]) > _number(times["normface"]) == _number(times["ntce"])


def test_percent_to_collapse_of_a_run() -> None:
    run = {metric: _curves(metric)["nonl"] for metric in METRICS} | {"loss": [(1, 2.0)]}
    result = percent_to_collapse(run, 100, 512, length=LENGTH)
    assert set(result) == set(METRICS)
    assert result["inter_effective_rank"] == pytest.approx(100 * 3001 / LENGTH)


def test_comparison_with_the_final_value_of_cross_entropy() -> None:
    """The second table of the paper: the same order, and similar values, from coarse curves."""
    sides = {metric: threshold.side for metric, threshold in collapse_thresholds(100, 512).items()}
    for metric in METRICS:
        curves = _curves(metric)
        for method, row in PAPER["table"]["to_ce_final"].items():
            result = compare_to_baseline(curves[method], curves["ce"], sides[metric], length=LENGTH)
            assert result.target == curves["ce"][-1][1]
            time, baseline_time = _number(result.time), _number(result.baseline_time)
            percent_of_baseline = _number(result.percent_of_baseline)
            assert result.percent_of_run == pytest.approx(100 * time / LENGTH)
            assert percent_of_baseline == pytest.approx(100 * time / baseline_time)
            if metric != "weights_effective_rank":
                assert percent_of_baseline < 11, (metric, method)
                assert row[metric] < 7.5
    weights = _curves("weights_effective_rank")
    percentages = {
        method: _number(
            compare_to_baseline(
                weights[method], weights["ce"], "at least", length=LENGTH
            ).percent_of_baseline
        )
        for method in ("nonl", "normface", "ntce")
    }
    # In the table: 35.4, 66.3, 73.9.
    assert percentages["nonl"] < percentages["normface"] < percentages["ntce"]


def test_never_is_not_a_number() -> None:
    diverged = [(1.0, 1.0), (2.0, 0.9)]
    assert convergence_time(diverged, Threshold(0.1, "at most")) is NEVER
    assert percent(NEVER, 10) is NEVER
    assert isinstance(NEVER, Never)
    assert str(NEVER) == "never"
    result = compare_to_baseline(diverged, [(1.0, 0.5), (2.0, 0.1)], "at most")
    assert result.time is NEVER
    assert result.percent_of_baseline is NEVER
    assert result.percent_of_run is NEVER


def test_convergence_at_the_first_time() -> None:
    threshold = Threshold(0.1, "at most")
    assert convergence_time([(0, 0.05)], threshold, length=100) == 0
    constant = [(0, 0.5), (50, 0.5), (100, 0.5)]
    assert (
        compare_to_baseline(
            [(0, 1.0), (51, 0.1), (100, 0.1)], constant, "at most"
        ).percent_of_baseline
        == math.inf
    )
    assert compare_to_baseline(constant, constant, "at most").percent_of_baseline == 100
    assert json.dumps({"time": NEVER}) == '{"time": "never"}'


def test_a_series_must_enter_and_stay() -> None:
    series = [(1, 0.0), (2, 1.0), (3, 0.0), (4, 0.05)]
    assert enters_and_stays(series, Threshold(0.1, "at most")) == 3
    assert enters_and_stays(series, Threshold(0.01, "at most")) is NEVER
    assert enters_and_stays(series, Threshold(0.01, "at most"), tolerance=0.04) == 3
    assert enters_and_stays(series, Threshold(-1.0, "at least")) == 1


def test_the_average_decays_with_time_and_not_with_samples() -> None:
    """One long step weighs as much as many short ones with the same value."""
    once = moving_average([(0, 1.0), (10, 0.0)], length=100)
    often = moving_average([(0, 1.0), *((t, 0.0) for t in range(1, 11))], length=100)
    assert once[-1][1] == pytest.approx(math.exp(-10))
    assert often[-1][1] == pytest.approx(once[-1][1])


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.floats(0.001, 1))
def test_the_average_stays_within_the_range_of_the_values(
    values: list[float], time_constant: float
) -> None:
    averages = moving_average(
        [(t + 1, v) for t, v in enumerate(values)], time_constant=time_constant
    )
    assert [time for time, _ in averages] == list(range(1, len(values) + 1))
    for index, (_, average) in enumerate(averages):
        prefix = values[: index + 1]
        assert min(prefix) - 1e-9 <= average <= max(prefix) + 1e-9


@pytest.mark.bad_input
def test_bad_series() -> None:
    threshold = Threshold(0.1, "at most")
    for series, message in (
        ([], "got none"),
        ([(1, 1.0), (1, 2.0)], "must increase, got 1 after 1"),
        ([(1, math.nan)], "must be finite"),
        ([(0, 1.0)], "length must be positive"),
    ):
        with pytest.raises(ValueError, match=message):
            convergence_time(series, threshold)
    with pytest.raises(ValueError, match="at least the last logged time, 20, got 15"):
        convergence_time([(10, 1.0), (20, 1.0)], threshold, length=15)
    with pytest.raises(ValueError, match="length must be positive"):
        percent(3, 0)
    with pytest.raises(ValueError, match="time_constant must be positive"):
        moving_average([(1, 1.0)], time_constant=0.0)
    with pytest.raises(ValueError, match="num_classes must be at least 2"):
        collapse_thresholds(1, 512)
