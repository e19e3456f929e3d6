"""The section on comparisons: means, best marks, intervals, and runs without a result."""

from dataclasses import replace
from typing import Any

import pytest

from protosphere.report.page import create_page
from protosphere.report.sections.comparison import create_section
from protosphere.report.sources import ReportData
from protosphere.runs.comparison import (
    BestMethod,
    ComparedMethod,
    ComparedMetric,
    ComparedRun,
    Comparison,
    FailedRun,
    MetricDifference,
    MetricSummary,
    PendingRun,
)
from support.report_content import (
    bold,
    column,
    drawn_texts,
    figures,
    missing,
    notes,
    options,
    table,
    trace,
)


def _difference(metric: str, mean: float, low: float, high: float, outcome: Any) -> Any:
    return MetricDifference("nonl", metric, (0, 1), mean, 0.01, low, high, 0.01, 0.02, outcome)


@pytest.fixture
def comparison() -> Comparison:
    values = {("ce", 0): 0.70, ("ce", 1): 0.74, ("nonl", 0): 0.75, ("nonl", 1): 0.77}
    return Comparison(
        split="test",
        num_images=1000,
        num_classes=10,
        confidence=0.95,
        baseline="ce",
        seeds=(0, 1),
        metrics=(
            ComparedMetric("accuracy", "higher"),
            ComparedMetric("nc1_ratio", "lower"),
            ComparedMetric("mir", "target", 1.0),
            ComparedMetric("mir_published", None),
        ),
        methods=(ComparedMethod("ce", {}), ComparedMethod("nonl", {})),
        runs=tuple(
            ComparedRun(method, seed, f"{method}-{seed}", 10, 2, {"accuracy": value, "mir": value})
            for (method, seed), value in values.items()
        ),
        failures=(),
        pending=(),
        summaries=(
            MetricSummary("ce", "accuracy", 2, 0.72, 0.0283),
            MetricSummary("nonl", "accuracy", 2, 0.76, 0.0141),
            MetricSummary("ce", "nc1_ratio", 1, 0.05, None),
        ),
        differences=(
            _difference("accuracy", 0.04, 0.01, 0.09, "better"),
            _difference("mir", -0.04, -0.30, 0.20, "not clear"),
        ),
        best=(
            BestMethod("accuracy", (0, 1), ("nonl",), ("ce",)),
            BestMethod("mir", (0, 1), ("nonl",), ()),
        ),
        machines=(),
    )


def _report(*comparisons: Comparison) -> ReportData:
    return ReportData(
        (), comparisons={f"run {index}": one for index, one in enumerate(comparisons)}
    )


def test_means_and_the_best_method_of_each_metric(comparison: Comparison) -> None:
    content = table(create_section(_report(comparison)), "Mean over seeds")
    assert column(content, "Metric") == [
        "Complete runs", "accuracy ↑", "nc1_ratio ↓", "mir →", "mir_published"
    ]  # fmt: skip
    assert column(content, "ce") == ["2", "72.00 ± 2.83", "0.05000", "–", "–"]
    assert column(content, "nonl") == ["2", "76.00 ± 1.41", "–", "–", "–"]
    assert bold(content) == ["76.00 ± 1.41", "–"]
    assert column(content, "Best is clearly better than")[1:3] == ["ce", "–"]
    assert "1,000 test images of 10 classes" in content.meaning


def test_differences_are_drawn_with_their_intervals_and_seeds(comparison: Comparison) -> None:
    section = create_section(_report(comparison))
    # The other metrics have no difference.
    assert options(section, "comparison-0") == ["accuracy ↑", "mir →"]
    drawn = figures(section)["comparison-0-0"]
    better = trace(drawn, "clearly better")
    assert better["x"] == pytest.approx([4.0])
    assert better["error_x"]["array"] == pytest.approx([5.0])
    assert better["error_x"]["arrayminus"] == pytest.approx([3.0])
    assert trace(drawn, "single seeds")["x"] == pytest.approx([5.0, 3.0])
    assert "right of the line is better" in drawn.meaning
    # Distances from 1: 0.25 - 0.30 and 0.23 - 0.26.
    nearer = figures(section)["comparison-0-2"]
    assert trace(nearer, "single seeds")["x"] == pytest.approx([-0.05, -0.03])
    assert "left of the line is better" in nearer.meaning
    content = table(section, "Differences to ce")
    assert content.rows[0][1:] == (
        "nonl", "2", "+4.00", "[+1.00, +9.00]", "0.02", "clearly better"
    )  # fmt: skip
    assert column(content, "Result") == ["clearly better", "not clear"]


def test_a_lower_metric_is_better_on_the_left_and_names_are_no_markup(
    comparison: Comparison,
) -> None:
    hostile = "<b>nonl</b>"
    row = replace(comparison.differences[0], method=hostile, metric="nc1_ratio")
    runs = tuple(
        replace(run, method=run.method.replace("nonl", hostile), values={"nc1_ratio": 0.5})
        for run in comparison.runs
    )
    section = create_section(_report(replace(comparison, runs=runs, differences=(row,))))
    assert "left of the line is better" in figures(section)["comparison-0-1"].meaning
    assert any("&lt;b&gt;" in text for text in drawn_texts(section))
    assert not [text for text in drawn_texts(section) if "<b>" in text]


def test_one_seed_has_no_interval_and_a_caveat(comparison: Comparison) -> None:
    row = replace(
        comparison.differences[0],
        seeds=(0,), std=None, low=None, high=None, p_value=None, adjusted_p_value=None,
        outcome=None,
    )  # fmt: skip
    single = replace(comparison, seeds=(0,), differences=(row,), split="validation")
    section = create_section(_report(single))
    assert trace(figures(section)["comparison-0-0"], "not tested")["error_x"]["array"] == [0]
    content = table(section, "Differences to ce")
    assert column(content, "95% interval") == column(content, "p (Holm)") == ["–"]
    assert "There is one seed" in notes(section)
    assert "of validation images" in notes(section)


def test_runs_without_a_result_are_named(comparison: Comparison) -> None:
    hostile = "<script>alert(1)</script>"
    broken = replace(
        comparison,
        failures=(FailedRun("nonl", 2, "x", f"the loss must be finite{hostile}"),),
        pending=(PendingRun("ce", 2), PendingRun("nonl", 3)),
    )
    section = create_section(_report(broken, comparison))
    assert missing(section) == [
        f"run 0: nonl, seed 2, has failed: the loss must be finite{hostile}.",
        "run 0: Runs that are not complete: ce (seed 2), nonl (seed 3).",
    ]
    content = table(section, "run 0: Mean over seeds")
    assert content.rows[0][1:3] == ("2 (1 pending)", "2 (1 failed, 1 pending)")
    assert section is not None
    assert hostile not in create_page("t", "s", [section])
    assert create_section(ReportData(())) is None
