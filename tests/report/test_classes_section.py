"""Results by class: the worst classes and their confusions equal those that a loop finds."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from protosphere.report.class_accuracy import (
    class_accuracies,
    confused_columns,
    group_means,
    worst_classes,
)
from protosphere.report.content import Note, Table
from protosphere.report.sections import classes, geometry
from protosphere.report.sections.classes import create_section
from protosphere.report.sources import ReportData, RunData
from support.report_runs import blocks_of, create_run, decode, find_figure, geometry_arrays, simplex


def _run(confusion: ArrayLike, name: str = "nonl", **fields: Any) -> RunData:
    confusion = np.asarray(confusion)
    arrays = geometry_arrays(simplex(len(confusion)), confusion)
    return create_run(name, num_classes=len(confusion), arrays=arrays, **fields)


@given(st.integers(2, 9), st.integers(1, 10), st.integers(0, 2**32 - 1))
def test_worst_classes_equal_a_loop(num_classes: int, count: int, seed: int) -> None:
    confusion = np.random.default_rng(seed).integers(0, 4, size=(num_classes, num_classes))
    rows = []
    for index in range(num_classes):
        total = sum(int(number) for number in confusion[index])
        if total == confusion[index, index]:  # Also if it has no images.
            continue
        others = [(-int(confusion[index, k]), k) for k in range(num_classes) if k != index]
        most, other = min(others)
        rows.append((int(confusion[index, index]) / total, index, total, other, -most / total))
    rows.sort(key=lambda row: row[:2])
    worst = [
        (one.accuracy, one.index, one.num_samples, one.confused_with, one.fraction)
        for one in worst_classes(confusion, count)
    ]
    assert worst == rows[:count]


def test_a_class_without_images_has_no_accuracy_and_is_nowhere_shown() -> None:
    confusion = [[8, 2, 0], [0, 0, 0], [0, 5, 5]]
    assert np.isnan(class_accuracies(np.array(confusion))[1])
    section = create_section(ReportData((_run(confusion),)))
    line = find_figure(section, "class-accuracy").data[0]
    assert line["text"] == ["c2", "c0"]
    np.testing.assert_allclose(decode(line["y"]), [50, 80])
    assert len(find_figure(section, "confusion-0").data[0]["y"]) == 2
    assert find_figure(section, "class-confidence-0").data[1]["text"] == ["c0", "c2"]


def test_the_table_names_the_most_frequent_wrong_prediction() -> None:
    confusion = [[8, 2, 0], [0, 10, 0], [1, 4, 5]]
    section = create_section(ReportData((_run(confusion),)))
    assert section is not None
    table = next(block for block in section.blocks if isinstance(block, Table))
    assert table.rows == (
        ("nonl", "c2", "50.0%", "10", "c1", "40.0%"),
        ("nonl", "c0", "80.0%", "10", "c1", "20.0%"),
    )


def test_confusion_is_in_percent_of_the_class_without_correct_predictions() -> None:
    confusion = [[6, 3, 0], [0, 10, 0], [1, 4, 15]]
    (trace,) = find_figure(create_section(ReportData((_run(confusion),))), "confusion-0").data
    assert trace["y"] == ["c0 (67%)", "c2 (75%)"]
    assert trace["x"] == ["c0", "c2", "c1"]
    expected = [[np.nan, 0, 100 / 3], [5, np.nan, 20]]
    np.testing.assert_allclose(decode(trace["z"]), expected, rtol=1e-6)


def test_columns_are_the_worst_classes_and_what_they_are_confused_with() -> None:
    confusion = np.diag([10] * 40)
    confusion[3, 30], confusion[3, 31], confusion[5, 33] = 4, 1, 9
    assert confused_columns(confusion, [5, 3], 4) == [5, 3, 33, 30]
    assert confused_columns(confusion, [5, 3], 10) == [5, 3, 33, 30, 31]


def test_accuracy_of_a_method_is_the_mean_over_seeds() -> None:
    runs = (
        _run([[8, 2], [0, 10]], "nonl-1", method="nonl"),
        _run([[6, 4], [5, 5]], "nonl-2", method="nonl"),
    )
    section = create_section(ReportData(runs))
    assert section is not None
    assert "one run of each method" not in section.intro
    (line,) = find_figure(section, "class-accuracy").data
    assert line["name"] == "nonl (2 seeds)"
    np.testing.assert_allclose(decode(line["y"]), [70, 75])


def test_ranks_of_different_numbers_of_classes_are_in_percent() -> None:
    runs = (_run([[8, 2], [0, 10]], "two"), _run(np.eye(4, dtype=int) + 1, "four"))
    two, four = find_figure(create_section(ReportData(runs)), "class-accuracy").data
    assert decode(two["x"]).tolist() == [50, 100]
    assert decode(four["x"]).tolist() == [25, 50, 75, 100]


@pytest.mark.parametrize(
    ("counts", "is_shown"),
    [((100, 10, 1), True), ((100, 99, 98), False), ((10**400, 10, 1), False), (None, False)],
)
def test_accuracy_over_training_images_is_shown_for_imbalanced_classes(
    counts: tuple[int, ...] | None, is_shown: bool
) -> None:
    run = _run([[8, 2, 0], [0, 10, 0], [1, 4, 5]], data={"class_counts": counts})
    section = create_section(ReportData((run,)))
    assert section is not None
    names = [getattr(block, "name", "") for block in section.blocks]
    assert ("accuracy-by-count" in names) == is_shown
    if is_shown:
        points = find_figure(section, "accuracy-by-count").data[0]
        assert decode(points["x"]).tolist() == [100, 10, 1]
        np.testing.assert_allclose(decode(points["y"]), [80, 100, 50])


def test_group_means_leave_out_classes_without_images() -> None:
    counts, values = np.array([1, 9, 5, 7]), np.array([0.1, 0.9, np.nan, 0.7])
    assert group_means(counts, values, 2) == [(4.0, pytest.approx(0.4)), (9.0, 0.9)]


def test_overconfident_classes_are_counted() -> None:
    run = _run([[8, 2, 0], [0, 10, 0], [1, 4, 5]])
    run.arrays["class_confidence"][:] = [0.9, 0.95, 0.6]
    figure = find_figure(create_section(ReportData((run,))), "class-confidence-0")
    assert "as for 2 of 3 classes" in figure.meaning


def test_runs_without_a_wrong_prediction() -> None:
    right, wrong = _run(np.eye(3, dtype=int), "right"), _run([[8, 2], [0, 10]], "wrong")
    texts = [
        getattr(block, "text", "") for block in blocks_of(create_section(ReportData((right,))))
    ]
    assert "No run has a wrong prediction." in texts
    table = next(
        block
        for block in blocks_of(create_section(ReportData((right, wrong))))
        if isinstance(block, Table)
    )
    assert [row[0] for row in table.rows] == ["wrong"]


def test_runs_without_arrays_are_named() -> None:
    assert create_section(ReportData((create_run(arrays={}),))) is None
    without_classes = {
        name: array for name, array in create_run().arrays.items() if name != "confusion"
    }
    section = create_section(ReportData((create_run(), create_run("bare", arrays=without_classes))))
    assert section is not None
    assert isinstance(section.blocks[-1], Note)
    assert "bare" in section.blocks[-1].text


def test_runs_without_any_arrays_are_named_once() -> None:
    report = ReportData((create_run(), create_run("bare", arrays={})))
    notes = [
        block.text
        for module in (geometry, classes)
        for block in getattr(module.create_section(report), "blocks", ())
        if isinstance(block, Note)
    ]
    assert len(notes) == 1
    assert notes[0].startswith("Geometry and results by class are not shown of bare")


def test_one_wrong_prediction_has_a_scale_and_a_singular() -> None:
    section = create_section(ReportData((_run([[3, 1], [0, 4]]),)))
    figure = find_figure(section, "confusion-0")
    assert (figure.data[0]["zmin"], figure.data[0]["zmax"]) == (0, 25)
    assert "for the class of the lowest accuracy" in figure.meaning


def test_many_runs_of_a_thousand_classes_stay_small() -> None:
    run = _run(np.eye(1000, dtype=int) * 7 + np.eye(1000, k=1, dtype=int) * 3)
    runs = tuple(
        create_run(f"run {i}", num_classes=1000, arrays=run.arrays, method=f"m{i // 2}")
        for i in range(22)
    )
    section = create_section(ReportData(runs))
    assert section is not None
    assert "one run of each method" in section.intro
    for block in blocks_of(section):
        if isinstance(block, Table):
            assert len(block.rows) <= 60
            continue
        figures = [figure for _, figure in getattr(block, "options", [("", block)])]
        assert len(figures) <= 11
        assert sum(len(json.dumps(figure.data)) for figure in figures) < 700_000, block.name


def test_hostile_class_names() -> None:
    names = ("<img src=x onerror=alert(1)>", "%{x}", "same", "same")
    confusion = np.eye(4, dtype=int) + 1
    run = _run(confusion, class_names=names, data={"class_counts": (9, 1, 1, 1)})
    section = create_section(ReportData((run,)))
    for block in blocks_of(section):
        if not isinstance(block, Table):
            assert "<img" not in json.dumps([block.data, block.layout])
    assert len(set(find_figure(section, "confusion-0").data[0]["x"])) == 4
