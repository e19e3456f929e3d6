"""When a run reaches collapse: the rule on hand-made series, and on the curves of the paper."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protosphere.metrics.convergence import (
    NEVER,
    Never,
    Threshold,
    against_baseline,
    collapse_thresholds,
    convergence_time,
    enters_and_stays,
    moving_average,
    percent,
    percent_to_collapse,
)

PAPER = json.loads((Path(__file__).parent / "paper_convergence.json").read_text())
LENGTH = 5500  # iterations of the figure: each circle, as a percentage of it, is the table's entry
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


def test_thresholds_are_those_of_the_figure() -> None:
    thresholds = collapse_thresholds(100, 512)
    assert set(thresholds) == set(METRICS)
    for metric in METRICS:
        assert thresholds[metric].value == pytest.approx(PAPER["figure"][metric]["threshold"])


@pytest.mark.parametrize("metric", METRICS)
def test_the_order_of_the_circles_comes_out(metric: str) -> None:
    """From curves of 32 points the crossings come later than the circles, which are from finer logs: in their order."""
    threshold = collapse_thresholds(100, 512)[metric]
    curves = _curves(metric)
    times = {
        method: convergence_time(curves[method], threshold, length=LENGTH) for method in curves
    }
    assert times["ce"] is NEVER
    circles = CIRCLES[metric]
    for one, early in circles.items():
        assert isinstance(times[one], int | float)
        assert early <= times[one] <= LENGTH
        for other, late in circles.items():
            if early < late:
                assert times[one] <= times[other], (one, other)
    drawn = sorted(circles, key=circles.get)
    if len({times[method] for method in drawn}) == len(drawn):
        assert sorted(drawn, key=times.get) == drawn


def test_where_the_papers_table_disagrees_with_its_figure() -> None:
    disagreements = {}
    for method, row in PAPER["table"]["to_95_percent_nc"].items():
        for metric, entry in row.items():
            circle = CIRCLES[metric].get(method)
            drawn = NEVER if circle is None else percent(circle, LENGTH)
            if drawn is NEVER or round(drawn, 1) != entry:
                disagreements[method, metric] = (
                    entry,
                    str(drawn) if drawn is NEVER else round(drawn, 1),
                )
    assert disagreements == {
        ("ntce", "inter_effective_rank"): (52.4, 58.0),
        ("nonl", "weight_instance_alignment"): (
            79.4,
            "never",
        ),  # its curve crosses after NormFace's and NTCE's
    }
    curves = _curves("weight_instance_alignment")
    threshold = collapse_thresholds(100, 512)["weight_instance_alignment"]
    times = {
        method: convergence_time(curves[method], threshold, length=LENGTH) for method in curves
    }
    assert times["nonl"] > times["normface"] == times["ntce"]


def test_percent_to_collapse_of_a_whole_run() -> None:
    run = {metric: _curves(metric)["nonl"] for metric in METRICS} | {"loss": [(1, 2.0)]}
    found = percent_to_collapse(run, 100, 512, length=LENGTH)
    assert set(found) == set(METRICS)
    assert found["inter_effective_rank"] == pytest.approx(100 * 3001 / LENGTH)


def test_against_cross_entropys_final_value() -> None:
    """The paper's second table: at its coarse grid the same order, and the same kind of numbers."""
    sides = {metric: threshold.side for metric, threshold in collapse_thresholds(100, 512).items()}
    for metric in METRICS:
        curves = _curves(metric)
        for method, row in PAPER["table"]["to_ce_final"].items():
            found = against_baseline(curves[method], curves["ce"], sides[metric], length=LENGTH)
            assert found.target == curves["ce"][-1][1]
            assert found.percent_of_run == pytest.approx(100 * found.time / LENGTH)
            assert found.percent_of_baseline == pytest.approx(
                100 * found.time / found.baseline_time
            )
            if metric != "weights_effective_rank":
                assert found.percent_of_baseline < 11, (metric, method)
                assert row[metric] < 7.5
    weights = _curves("weights_effective_rank")
    shares = {
        method: against_baseline(
            weights[method], weights["ce"], "at least", length=LENGTH
        ).percent_of_baseline
        for method in ("nonl", "normface", "ntce")
    }
    assert shares["nonl"] < shares["normface"] < shares["ntce"], "as in the table: 35.4, 66.3, 73.9"


def test_never_is_a_value_of_its_own() -> None:
    away = [(1.0, 1.0), (2.0, 0.9)]
    assert convergence_time(away, Threshold(0.1, "at most")) is NEVER
    assert percent(NEVER, 10) is NEVER
    assert isinstance(NEVER, Never)
    assert str(NEVER) == "never"
    found = against_baseline(away, [(1.0, 0.5), (2.0, 0.1)], "at most")
    assert found.time is NEVER
    assert found.percent_of_baseline is NEVER
    assert found.percent_of_run is NEVER


def test_at_the_first_moment() -> None:
    threshold = Threshold(0.1, "at most")
    assert convergence_time([(0, 0.05)], threshold, length=100) == 0
    there = [(0, 0.5), (50, 0.5), (100, 0.5)]
    assert (
        against_baseline([(0, 1.0), (51, 0.1), (100, 0.1)], there, "at most").percent_of_baseline
        == math.inf
    )
    assert against_baseline(there, there, "at most").percent_of_baseline == 100
    assert json.dumps({"time": NEVER}) == '{"time": "never"}'


def test_entering_is_not_enough() -> None:
    series = [(1, 0.0), (2, 1.0), (3, 0.0), (4, 0.05)]
    assert enters_and_stays(series, Threshold(0.1, "at most")) == 3
    assert enters_and_stays(series, Threshold(0.01, "at most")) is NEVER
    assert enters_and_stays(series, Threshold(0.01, "at most"), tolerance=0.04) == 3
    assert enters_and_stays(series, Threshold(-1.0, "at least")) == 1


def test_the_average_forgets_with_time_and_not_with_samples() -> None:
    """A pause of Δt weighs like many short steps whose values are the last one."""
    once = moving_average([(0, 1.0), (10, 0.0)], length=100)
    often = moving_average([(0, 1.0), *((t, 0.0) for t in range(1, 11))], length=100)
    assert once[-1][1] == pytest.approx(math.exp(-10))
    assert often[-1][1] == pytest.approx(once[-1][1])


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.floats(0.001, 1))
def test_the_average_stays_between_the_extremes(values: list[float], share: float) -> None:
    averages = moving_average([(t + 1, v) for t, v in enumerate(values)], share=share)
    assert [time for time, _ in averages] == list(range(1, len(values) + 1))
    for index, (_, average) in enumerate(averages):
        seen = values[: index + 1]
        assert min(seen) - 1e-9 <= average <= max(seen) + 1e-9


@pytest.mark.bad_input
def test_bad_series() -> None:
    threshold = Threshold(0.1, "at most")
    for series, message in (
        ([], "it is empty"),
        ([(1, 1.0), (1, 2.0)], "must rise"),
        ([(1, math.nan)], "must be finite"),
        ([(0, 1.0)], "must have a length"),
    ):
        with pytest.raises(ValueError, match=message):
            convergence_time(series, threshold)
    with pytest.raises(ValueError, match="reach its last logged time, 20; got 15"):
        convergence_time([(10, 1.0), (20, 1.0)], threshold, length=15)
    with pytest.raises(ValueError, match="must be positive"):
        percent(3, 0)
    with pytest.raises(ValueError, match="share must be positive"):
        moving_average([(1, 1.0)], share=0.0)
    with pytest.raises(ValueError, match="two classes"):
        collapse_thresholds(1, 512)


@pytest.mark.whole_program
def test_it_needs_no_torch() -> None:
    check = (
        "import sys; from protosphere.metrics import convergence, definitions, verdicts; "
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], check=True, capture_output=True)
