"""Curves over epochs: one line per method, the mean over its seeds, whatever the runs lack."""

import json
import math
import statistics
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from protosphere.report.content import Figure
from protosphere.report.curves import group_methods, mean_curve, read_series, shorten
from protosphere.report.sections.training import create_section
from protosphere.report.sources import ReportData
from support.report_runs import blocks_of, create_run, decode, evaluations, find_figure


def _train(losses: Iterable[float], **values: float) -> list[dict[str, Any]]:
    return [
        {"kind": "train", "step": epoch, "epoch": epoch, "loss": loss, "lr": 0.1, **values}
        for epoch, loss in enumerate(losses, start=1)
    ]


def _lines(figure: Figure) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in figure.data if "name" in trace}


def test_a_line_is_the_mean_over_seeds_and_its_band_one_standard_deviation() -> None:
    losses = ([3.0, 2.0, 1.0], [5.0, 2.5, 0.0])
    runs = [
        create_run(f"nonl-{seed}", method="nonl", seed=seed, records=_train(values))
        for seed, values in enumerate(losses)
    ]
    figure = find_figure(create_section(ReportData(tuple(runs))), "training-loss")
    band, line = figure.data
    assert line["name"] == "nonl (2 seeds)"
    means = [statistics.fmean(values) for values in zip(*losses, strict=True)]
    deviations = [statistics.stdev(values) for values in zip(*losses, strict=True)]
    np.testing.assert_allclose(decode(line["x"]), [1, 2, 3])
    np.testing.assert_allclose(decode(line["y"]), means, rtol=1e-6)
    upper = [mean + deviation for mean, deviation in zip(means, deviations, strict=True)]
    lower = [mean - deviation for mean, deviation in zip(means, deviations, strict=True)]
    np.testing.assert_allclose(decode(band["y"]), [*upper, *lower[::-1]], rtol=1e-6)


def test_a_seed_that_ended_early_counts_as_long_as_it_ran() -> None:
    curve = mean_curve([[(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)], [(1.0, 4.0)]])
    assert curve.times.tolist() == [1, 2, 3]
    assert curve.mean.tolist() == [3, 4, 6]
    assert curve.counts.tolist() == [2, 1, 1]
    assert math.isnan(curve.deviation[1])


def test_values_that_are_not_finite_numbers_are_left_out() -> None:
    records: list[dict[str, Any]] = [
        {"epoch": 1, "loss": float("nan")},
        {"epoch": 2, "loss": "2.0"},
        {"epoch": 3, "loss": True},
        {"epoch": 5, "loss": 0.5},
        {"epoch": 4, "loss": 1.5},
        {"epoch": 4, "loss": 1.0},
        {"loss": 9.0},
    ]
    assert read_series(records, "loss") == [(4, 1.0), (5, 0.5)]


def test_accuracy_is_in_percent_and_names_its_split() -> None:
    records = [
        record | {"split": "validation"} for record in evaluations({"accuracy": [0.5, 0.75]})
    ]
    section = create_section(ReportData((create_run(records=records),)))
    figure = find_figure(section, "training-accuracy")
    assert figure.title == "Accuracy on validation images"
    assert decode(figure.data[0]["y"]).tolist() == [50, 75]


def test_a_single_evaluation_is_no_curve_unless_the_run_goes_on() -> None:
    records = [*_train([1.0]), *evaluations({"accuracy": [0.5]})]
    ended, running = (
        create_run(state, state=state, records=records) for state in ("complete", "running")
    )
    section = create_section(ReportData((ended, running)))
    assert list(_lines(find_figure(section, "training-accuracy"))) == ["running"]
    assert blocks_of(section)[-1].text.startswith("complete was evaluated only once")


def test_runs_without_records_are_named() -> None:
    runs = (create_run("ce", records=_train([1.0])), create_run("lost"))
    assert "lost" in blocks_of(create_section(ReportData(runs)))[-1].text
    assert create_section(ReportData((create_run("lost"),))) is None


def test_either_all_lines_have_markers_or_none() -> None:
    short, long = (create_run(f"run {n}", records=_train([1.0] * n)) for n in (20, 200))
    for runs, expected in ((short,), {"lines+markers"}), ((short, long), {"lines"}):
        figure = find_figure(create_section(ReportData(runs)), "training-loss")
        assert {trace["mode"] for trace in figure.data} == expected
    # A line of one point would not be visible.
    young = create_run("young", records=_train([1.0]))
    figure = find_figure(create_section(ReportData((long, young))), "training-loss")
    assert [trace["mode"] for trace in figure.data] == ["lines", "lines+markers"]


def test_methods_have_one_color_each_and_a_dash_when_colors_repeat() -> None:
    methods = group_methods([create_run(f"method {index}") for index in range(20)])
    assert len({(method.color, method.dash) for method in methods}) == 20


def test_fifty_long_runs_stay_small() -> None:
    records = _train([1.0] * 1000, images_per_second=1e4)
    runs = tuple(create_run(f"run {index}", records=records) for index in range(50))
    for figure in blocks_of(create_section(ReportData(runs))):
        assert len(json.dumps(figure.data)) < 50 * 6_000


def test_names_cannot_be_markup_or_templates() -> None:
    name = "<script>%{x}</script>"
    figure = find_figure(
        create_section(ReportData((create_run(name, records=_train([1.0])),))), "training-loss"
    )
    assert "<script>" not in json.dumps(figure.data)
    assert all("script" not in trace["hovertemplate"] for trace in figure.data)
    assert list(_lines(figure)) == ["&lt;script&gt;%&#123;x}&lt;/script&gt;"]


@pytest.mark.parametrize("length", [5, 16, 33])
def test_shortened_names_keep_both_ends(length: int) -> None:
    name = "cifar100-resnet18-temperature-0.07"
    short = shorten(name, length)
    assert len(short) == length
    first, last = short.split("…")
    assert name.startswith(first)
    assert name.endswith(last)
