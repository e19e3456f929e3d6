"""The section on sweeps: trials in order, the diagram, and trials that are not complete."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protosphere.report.phase_diagram import create_diagram
from protosphere.report.read import read_sources
from protosphere.report.sections.sweep import create_section
from protosphere.report.sources import ReportData
from protosphere.runs.sweeps import SweepRecord, SweepSetting, SweepTrial, write_sweep
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

LR = SweepSetting("optimizer.lr", "log_range", low=0.01, high=1.0)
TEMPERATURE = SweepSetting("loss.temperature", "grid", (0.1, 0.2))


def _trial(number: int, lr: float, temperature: float, value: float, **fields: Any) -> SweepTrial:
    settings = {"optimizer.lr": lr, "loss.temperature": temperature}
    return SweepTrial(number, "complete", settings, value, **fields)


def _record(
    *trials: SweepTrial, settings: tuple[SweepSetting, ...] = (LR, TEMPERATURE)
) -> SweepRecord:
    return SweepRecord(
        "digits-nonl", "", "accuracy", "maximize", 400, "tpe", 0, True, 6, settings, trials
    )


@pytest.fixture
def record() -> SweepRecord:
    complete = [
        _trial(0, 0.01, 0.1, 0.80),
        _trial(1, 0.1, 0.1, 0.90),
        _trial(2, 1.0, 0.2, 0.85),
    ]
    error = "the loss must be finite" + "!<b>" * 200
    return _record(
        *complete,
        replace(complete[0], number=3, state="failed", value=None, error=error),
        replace(complete[1], number=4, state="pruned", value=None, evaluations=((2, 0.5),)),
    )


def test_trials_are_ordered_and_say_what_became_of_them(record: SweepRecord) -> None:
    section = create_section(ReportData((), sweeps={"sweep": record}))
    content = table(section, "Trials")
    assert column(content, "Trial") == ["0001", "0002", "0000", "0003", "0004"]
    assert column(content, "Accuracy") == ["90.00%", "85.00%", "80.00%", "–", "–"]
    assert bold(content) == ["90.00%"]
    states = column(content, "State")
    assert states[:3] == ["complete"] * 3
    assert states[3].startswith("failed: the loss must be finite!")
    assert len(states[3]) < 250
    assert states[4] == "pruned after epoch 2 at 50.00%"
    assert missing(section) == ["5 of 6 trials are finished; the same command continues the sweep."]
    best = "optimizer.lr=0.1, loss.temperature=0.1, with a validation accuracy of 90.00% on 400"
    assert best in notes(section)
    # One standard error is sqrt(0.9 * 0.1 / 400) = 1.5 points: no other trial is as good.
    assert (
        "No other trial is within one standard error (1.5 percentage points) of the best"
        in notes(section)
    )


def test_the_diagram_has_all_trials_and_the_best_one(record: SweepRecord) -> None:
    drawn = figures(create_section(ReportData((), sweeps={"sweep": record})))["sweep-0-0"]
    assert trace(drawn, "best")["x"] == [0.1]
    assert trace(drawn, "best")["y"] == [0.1]
    trials = trace(drawn, "trials")
    points = zip(trials["x"], trials["y"], trials["marker"]["color"], strict=True)
    # The best one is last, above the others.
    assert list(points) == [(0.01, 0.1, 80.0), (1.0, 0.2, 85.0), (0.1, 0.1, 90.0)]
    assert trace(drawn, "failed")["x"] == [0.01]
    assert "<b>" not in trace(drawn, "failed")["text"][0]
    assert trace(drawn, "pruned")["x"] == [0.1]
    assert drawn.layout["xaxis"]["type"] == "log"
    assert drawn.layout["xaxis"]["ticktext"] == ["0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1"]
    region = trace(drawn, "as good as the best")["contours"]
    assert region["value"] == pytest.approx(100 * (0.9 - math.sqrt(0.09 / 400)))


def test_a_metric_that_is_minimized_has_its_lowest_trial_first(record: SweepRecord) -> None:
    lowest = replace(record, metric="nc1_ratio", direction="minimize")
    section = create_section(ReportData((), sweeps={"sweep": lowest}))
    assert column(table(section, "Trials"), "Nc1 ratio")[:3] == ["0.8", "0.85", "0.9"]
    assert trace(figures(section)["sweep-0-0"], "best")["x"] == [0.01]


def test_one_setting_is_a_curve_and_three_have_a_menu() -> None:
    hostile = "<b>ce</b>"
    name = SweepSetting("loss.name", "grid", (hostile, "nonl"))
    trials = [
        SweepTrial(
            i, "complete", {"optimizer.lr": lr, "loss.name": loss, "loss.temperature": 0.1}, lr
        )
        for i, (lr, loss) in enumerate([(0.5, hostile), (0.1, "nonl")])
    ]
    single = _record(*trials, settings=(LR,))
    three = _record(*trials, settings=(LR, name, TEMPERATURE))
    section = create_section(ReportData((), sweeps={"first": single, "second": three}))
    overview = table(section, "Best settings of each sweep")
    assert column(overview, "Sweep") == ["first", "second"]
    assert column(overview, "Best value") == ["50.00%"] * 2
    assert column(overview, "Complete trials") == ["2 of 6"] * 2
    curve = figures(section)["sweep-0-0"]
    assert "trials above the dotted line are as good as the best" in curve.meaning
    assert trace(curve, "trials")["x"] == [0.1, 0.5]
    assert trace(curve, "trials")["y"] == pytest.approx([10.0, 50.0])
    assert options(section, "sweep-1") == [
        "optimizer.lr and loss.name",
        "optimizer.lr and loss.temperature",
        "loss.name and loss.temperature",
    ]
    labels = figures(section)["sweep-1-0"].layout["yaxis"]["ticktext"]
    assert labels == ['"&lt;b&gt;ce&lt;/b&gt;"', "nonl"]
    assert not [text for text in drawn_texts(section) if "<b>" in text]


@pytest.mark.bad_input
def test_trials_without_a_place_are_left_out_of_the_diagram(record: SweepRecord) -> None:
    odd = [
        SweepTrial(5, "complete", {"optimizer.lr": 0.1}, 0.99),
        SweepTrial(6, "complete", {"optimizer.lr": -1, "loss.temperature": 0.1}, 0.5),
        SweepTrial(7, "complete", {"optimizer.lr": "high", "loss.temperature": 0.1}, 0.5),
        SweepTrial(8, "complete", {"optimizer.lr": 0.1, "loss.temperature": 0.1}, None),
    ]
    (panel,) = create_diagram(replace(record, trials=(*record.trials, *odd)))
    assert [trial.number for trial in panel.trials] == [0, 1, 2]
    assert create_diagram(replace(record, trials=tuple(odd))) == []
    section = create_section(ReportData((), sweeps={"sweep": replace(record, trials=tuple(odd))}))
    assert column(table(section, "Trials"), "loss.temperature")[0] == "–"
    assert not figures(section)
    empty = create_section(ReportData((), sweeps={"sweep": replace(record, trials=())}))
    assert "No trial is complete." in notes(empty)
    assert missing(empty)[0].startswith("0 of 6 trials are finished")


def test_a_folder_with_the_machine_of_a_sweep_is_a_sweep_and_not_a_run(
    record: SweepRecord, tmp_path: Path
) -> None:
    write_sweep(tmp_path, record)
    (tmp_path / "machine.json").write_text("{}")
    report = read_sources([tmp_path])
    assert list(report.sweeps.values()) == [record]
    assert not report.runs
