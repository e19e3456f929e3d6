"""Tables over seeds: means, sample deviations, best marks, and rows of damaged files."""

from typing import Any

import pytest

from protosphere.report.benchmark_rows import (
    describe_data,
    group_results,
    read_benchmarks,
    seed_note,
)
from protosphere.report.summaries import Summary, find_best, format_summary, summarize
from protosphere.report.summary_tables import Column, TableRow, create_table
from support.report_content import bold, create_run, report_of


def test_the_deviation_is_that_of_a_sample() -> None:
    summary = summarize([0.70, 0.72, 0.77])
    assert summary is not None
    assert summary.mean == pytest.approx(0.73)
    # Squared deviations 0.0009 + 0.0001 + 0.0016, divided by n - 1.
    assert summary.std == pytest.approx((0.0026 / 2) ** 0.5)
    assert format_summary(summary) == "73.0 ± 3.6"
    assert summarize([0.5]) == Summary(0.5, None, 1)
    assert summarize([]) is None


@pytest.mark.parametrize(
    ("means", "better", "expected"),
    [
        ([0.5, 0.7, 0.6], "higher", [1]),
        ([0.5, 0.7, 0.6], "lower", [0]),
        # A table shows 70.0 for both.
        ([0.7000, 0.7004, 0.6], "higher", [0, 1]),
        ([None, 0.7], "higher", []),
        ([], "lower", []),
    ],
)
def test_the_best_means(means: list[float | None], better: Any, expected: list[int]) -> None:
    summaries = [None if mean is None else Summary(mean, None, 1) for mean in means]
    assert find_best(summaries, better) == expected


def test_only_comparable_rows_compete_and_never_is_worse_than_a_number() -> None:
    def row(name: str, cell: Summary | str | None, data: str) -> TableRow:
        return TableRow((name, data), (cell, None), data)

    content = create_table(
        "Title",
        "Meaning.",
        titles=("Method", "Data"),
        columns=(Column("Error", "lower"), Column("Paper")),
        rows=[
            row("a", Summary(0.2, None, 1), "first"),
            row("b", Summary(0.3, None, 1), "first"),
            row("c", Summary(0.9, None, 1), "second"),
            row("d", "never", "second"),
            row("e", None, "second"),
        ],
    )
    assert content.columns == ("Method", "Data", "Error")  # No row has a number of the paper.
    assert [cells[2] for cells in content.rows] == ["20.0", "30.0", "90.0", "never", "–"]
    assert bold(content) == ["20.0", "90.0"]


def test_data_are_named_in_a_table_only_if_they_differ() -> None:
    rows = [TableRow((name, "digits"), (Summary(0.5, None, 1),)) for name in "ab"]
    content = create_table(
        "T", "M.", titles=("Method", "Data"), columns=(Column("Error"),), rows=rows
    )
    assert content.columns == ("Method", "Error")


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("content", "num_rows", "note"),
    [
        ({"rows": [{"error": 0.5}], "settings": {}}, 1, None),
        ({"rows": [{"error": 0.5, "new_field": []}]}, 1, None),
        ({"rows": [{"error": "high"}, {"error": 0.5}, {}, None]}, 1, "3 of 4 rows of x.json"),
        ({"rows": [{"error": float("nan")}]}, 0, "1 of 1 rows of x.json"),
        ({"rows": []}, 0, "x.json has no rows"),
        ({"rows": "many"}, 0, "x.json has no rows"),
        ([], 0, "x.json has no rows"),
    ],
)
def test_rows_without_their_fields_are_left_out_and_named(
    content: Any, num_rows: int, note: str | None
) -> None:
    run = create_run("ce", {})
    results: Any = run.results
    results["x"] = content
    benchmarks, notes = read_benchmarks(report_of(run), "x", numbers=("error",))
    assert sum(len(benchmark.rows) for benchmark in benchmarks) == num_rows
    assert [one.kind for one in notes] == ([] if note is None else ["missing"])
    if note is not None:
        assert note in notes[0].text
        assert notes[0].text.startswith("ce, seed 0: ")


def test_runs_are_grouped_by_method_and_by_what_they_were_tested_on() -> None:
    rows = {"x": [{"error": 0.5}]}
    runs = [
        create_run("ce", rows, seed=0, settings={"test": "a"}),
        create_run("nonl", rows, settings={"test": "b"}),
        create_run("ce", rows, seed=1, settings={"test": "a"}),
    ]
    benchmarks, _ = read_benchmarks(report_of(*runs), "x")
    groups = group_results(benchmarks, test_setting="test")
    assert [(group.method, group.data, group.num_runs) for group in groups] == [
        ("ce", "digits", 2),
        ("nonl", "digits (2)", 1),
    ]
    part = {"data": {"source": "digits", "validation_fraction": 0.5}}
    halves = [create_run("ce", rows), create_run("nonl", rows, recipe=part)]
    other = group_results(read_benchmarks(report_of(*halves), "x")[0])
    assert [group.data for group in other] == ["digits", "digits (2)"]
    (note,) = seed_note(groups)
    assert note.text.startswith("Methods with one run: nonl.")
    assert seed_note(groups[:1]) == []


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"source": "arrays", "path": "/data/cifar100.npz"}, "cifar100"),
        ({"source": "cifar10", "long_tail": 0.01}, "cifar10, long tail 0.01"),
        ({"source": "cifar10", "label_noise": {"fraction": 0.4}}, "cifar10, label noise 0.4"),
        ({"source": "cifar100", "class_groups": "superclasses"}, "cifar100, grouped classes"),
        (None, "unknown data"),
    ],
)
def test_names_of_data(data: Any, expected: str) -> None:
    assert describe_data(create_run("ce", {}, recipe={"data": data})) == expected
