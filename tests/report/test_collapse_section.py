"""Convergence to collapse: thresholds and marks are those of the metrics, the optimum is bold."""

import math
from typing import Any

import numpy as np
import pytest

from protosphere.metrics.convergence import (
    NEVER,
    Never,
    Threshold,
    collapse_thresholds,
    convergence_time,
    moving_average,
    percent_to_collapse,
)
from protosphere.report.colors import PALETTE
from protosphere.report.content import Note, Section, Table
from protosphere.report.sections import training
from protosphere.report.sections.collapse import COLLAPSE_CURVES, create_section, run_curve
from protosphere.report.sources import ReportData, RunData
from support.report_content import drawn_texts
from support.report_runs import (
    blocks_of,
    create_run,
    decode,
    evaluations,
    find_figure,
    geometry_arrays,
)

K, D, EPOCHS = 10, 10, 20


def _metrics(pace: float) -> dict[str, list[float]]:
    """Metrics that approach collapse exponentially, each at its own pace."""
    times = [epoch / EPOCHS for epoch in range(1, EPOCHS + 1)]
    falling = [2 * math.exp(-pace * time) for time in times]
    rising = [(K - 1) * (1 - math.exp(-pace * time)) for time in times]
    return {
        "train_accuracy": [1 - value / 2 for value in falling],
        "weight_instance_alignment": falling,
        "weight_class_alignment": [value / 2 for value in falling],
        "weights_effective_rank": rising,
        "intra_effective_rank": [3 * value for value in falling],
        "inter_effective_rank": [0.99 * value for value in rising],
    }


def _run(name: str = "nonl", pace: float = 6.0, **fields: Any) -> RunData:
    return create_run(name, num_classes=K, records=evaluations(_metrics(pace)), **fields)


@pytest.mark.parametrize("pace", [0.5, 3.2, 6.0, 40.0])
def test_marks_are_where_the_moving_average_enters_to_stay(pace: float) -> None:
    metrics = _metrics(pace)
    series = {
        name: list(zip(range(1, EPOCHS + 1), values, strict=True))
        for name, values in metrics.items()
    }
    expected = percent_to_collapse(series, K, D)
    assert len(expected) == 5
    for name in COLLAPSE_CURVES:
        curve = run_curve(_run(pace=pace), name)
        assert curve is not None
        if name not in expected:
            assert curve.threshold is None
            continue
        assert curve.threshold == collapse_thresholds(K, D)[name]
        if expected[name] is NEVER:
            assert curve.reached is None
        else:
            assert curve.reached is not None
            assert curve.reached[0] == pytest.approx(expected[name])
            # The mark is on the moving average.
            average = {100 * time / EPOCHS: value for time, value in moving_average(series[name])}
            assert curve.reached[1] == pytest.approx(average[curve.reached[0]])


def test_the_six_panels_have_curves_thresholds_and_marks() -> None:
    figure = find_figure(create_section(ReportData((_run(),))), "collapse-curves")
    titles = [annotation["text"] for annotation in figure.layout["annotations"]]
    assert len(titles) == 6
    assert titles[0] == "(a) Training accuracy"
    bounds = [trace for trace in figure.data if trace["name"] == "95% of collapse"]
    values = sorted(trace["y"][0] for trace in bounds)
    assert values == sorted(row.value for row in collapse_thresholds(K, D).values())
    assert sum(trace["showlegend"] for trace in bounds) == 1
    lines = [trace for trace in figure.data if trace["name"] == "nonl"]
    assert len(lines) == 6
    assert sum(trace["showlegend"] for trace in lines) == 1
    np.testing.assert_allclose(decode(lines[0]["x"])[-1], EPOCHS)
    assert figure.layout["xaxis6"]["title"]["text"] == "epoch"


def test_runs_that_differ_in_length_and_dimension_have_a_common_time_and_named_lines() -> None:
    longer = create_run(
        "longer",
        num_classes=K,
        records=evaluations(_metrics(6.0), every=2),
        arrays=geometry_arrays(np.eye(K, 3 * D)),
    )
    figure = find_figure(create_section(ReportData((_run("nonl"), longer))), "collapse-curves")
    assert figure.layout["xaxis6"]["title"]["text"] == "% of the run"
    for name in ("nonl", "longer"):
        line = next(trace for trace in figure.data if trace["name"] == name)
        np.testing.assert_allclose(decode(line["x"])[-1], 100)
    bounds = [trace for trace in figure.data if trace["name"] == "95% of collapse"]
    lines = {trace["text"][1]: trace["y"][0] for trace in bounds if trace["yaxis"] == "y5"}
    assert lines == pytest.approx({f"d = {D}": 0.05 * D, f"d = {3 * D}": 0.15 * D})


def test_runs_that_were_evaluated_once_are_named_once() -> None:
    train = {"kind": "train", "epoch": 1, "loss": 1.0}
    last = evaluations({"nc1_ratio": [0.1]})
    for records, count in ([train, *last], 1), (last, 1):
        report = ReportData((create_run(records=records),))
        sections = [training.create_section(report), create_section(report)]
        blocks = [block for section in sections if section for block in section.blocks]
        notes = [block.text for block in blocks if isinstance(block, Note)]
        assert sum("evaluated only once" in text for text in notes) == count
        assert not any("`" in text for text in notes)


def test_marks_have_the_color_of_their_method_and_names_are_no_markup() -> None:
    section = create_section(ReportData((_run("ce"), _run("<b>nonl</b>"))))
    figure = find_figure(section, "collapse-curves")
    marks = [trace for trace in figure.data if trace["name"] == "reached, to stay"]
    colors = {trace["meta"]: trace["marker"]["color"] for trace in marks}
    assert colors == {"ce": PALETTE[0], "&lt;b&gt;nonl&lt;/b&gt;": PALETTE[1]}
    assert not [text for text in drawn_texts(section) if "<b>" in text]


def test_a_run_in_progress_is_drawn_over_the_epochs_of_its_recipe() -> None:
    run = _run(state="running", recipe={"schedule": {"epochs": 80}})
    curve = run_curve(run, "weight_class_alignment")
    assert curve is not None
    assert curve.points[-1][0] == 25
    series = [
        (epoch, value) for epoch, value in enumerate(_metrics(6.0)["weight_class_alignment"], 1)
    ]
    time = convergence_time(series, collapse_thresholds(K, D)["weight_class_alignment"], length=80)
    assert not isinstance(time, Never)
    assert curve.reached is not None
    assert curve.reached[0] == pytest.approx(100 * time / 80)


def _threshold(run: RunData, metric: str) -> Threshold | None:
    curve = run_curve(run, metric)
    assert curve is not None
    return curve.threshold


def test_thresholds_are_not_guessed() -> None:
    run = _run(class_names=(), arrays={})
    assert _threshold(run, "weight_class_alignment") is not None
    assert _threshold(run, "inter_effective_rank") is None
    known = _run(arrays={})
    assert _threshold(known, "inter_effective_rank") is not None
    assert _threshold(known, "intra_effective_rank") is None
    settings = {"convergence": {"settings": {"dim": 512}, "rows": []}}
    recorded = _run(arrays={}, results=settings)
    assert _threshold(recorded, "intra_effective_rank") == Threshold(25.6, "at most")


def _table(section: Section | None, title: str) -> Table:
    blocks = blocks_of(section)
    return next(block for block in blocks if isinstance(block, Table) and title in block.title)


def test_the_table_has_the_value_at_collapse_and_marks_the_nearest() -> None:
    far, near = _run("ce", pace=1.0), _run("nonl", pace=8.0)
    table = _table(create_section(ReportData((far, near))), "Metrics")
    column = table.columns.index("NC2: inter_effective_rank")
    assert table.rows[0][column] == "9"
    assert [row[0] for row in table.rows] == ["value at collapse", "ce", "nonl"]
    last = _metrics(8.0)["inter_effective_rank"][-1]
    assert table.rows[2][column] == f"{last:.3g}"
    assert (2, column) in table.best
    assert (1, column) not in table.best


def test_the_table_has_sample_deviations_over_seeds() -> None:
    runs = [
        create_run(f"a{seed}", method="a", seed=seed, records=evaluations({"nc1_ratio": [value]}))
        for seed, value in enumerate((0.1, 0.2))
    ]
    table = _table(create_section(ReportData(tuple(runs))), "Metrics")
    assert table.rows[1] == ("a", "0.15 ± 0.071")
    assert "over seeds" in table.meaning


def test_values_that_look_equal_are_equally_near() -> None:
    runs = [
        create_run(name, num_classes=K, records=evaluations({"weights_effective_rank": [value]}))
        for name, value in (("a", 9.0), ("b", 8.999), ("c", 8.9))
    ]
    table = _table(create_section(ReportData(tuple(runs))), "Metrics")
    assert table.best == {(1, 1), (2, 1)}


def test_different_numbers_of_classes_have_a_formula_and_no_best_value() -> None:
    other = create_run("other", num_classes=4, records=evaluations(_metrics(6.0)))
    table = _table(create_section(ReportData((_run(), other))), "Metrics")
    assert table.rows[0][table.columns.index("NC2: inter_effective_rank")] == "K − 1"
    assert not table.best
    assert "bold" not in table.meaning


def test_conditions_are_answered_in_words() -> None:
    values = {"nc1_ratio": [0.005], "nc2_simplex": [0.3], "nc4_agreement": [1.0]}
    table = _table(
        create_section(ReportData((create_run(records=evaluations(values)),))), "conditions"
    )
    assert table.rows == (("nonl", "yes (0.005)", "no (0.3)", "not measured", "yes (1)"),)


def test_runs_without_evaluations() -> None:
    assert create_section(ReportData((create_run(),))) is None
    section = create_section(ReportData((_run(), create_run("young"))))
    assert section is not None
    assert isinstance(section.blocks[-1], Note)
    assert "young" in section.blocks[-1].text


def test_metrics_that_are_not_finite_leave_a_gap() -> None:
    metrics = _metrics(6.0)
    metrics["weight_class_alignment"][3] = float("nan")
    curve = run_curve(create_run(records=evaluations(metrics)), "weight_class_alignment")
    assert curve is not None
    assert len(curve.points) == EPOCHS - 1
