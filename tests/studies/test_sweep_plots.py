"""Phase diagrams of sweeps: the surface goes through the trials, pages and pictures are written."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protosphere.report.phase_diagram import (
    best_region,
    create_diagram,
    describe_region,
    log_ticks,
)
from protosphere.report.sweep_page import write_sweep_page
from protosphere.runs.sweeps import SweepRecord, SweepTrial
from protosphere.studies.plots.figures import write_figure
from protosphere.studies.plots.sweep import plot_sweep
from protosphere.studies.sweep_settings import parse_setting

LRS, TEMPERATURES = (0.01, 0.1, 1.0), (0.1, 0.2, 0.3)


def _plane(lr: float, temperature: float) -> float:
    """A function that is linear in log lr and in the temperature."""
    return 0.5 + 0.1 * math.log10(lr) + 0.3 * temperature


def _record(*settings: str, trials: list[SweepTrial]) -> SweepRecord:
    return SweepRecord(
        "digits",
        "",
        "accuracy",
        "maximize",
        100,
        "tpe",
        0,
        True,
        len(trials),
        tuple(map(parse_setting, settings)),
        tuple(trials),
    )


def _grid() -> SweepRecord:
    places = [(lr, temperature) for lr in LRS for temperature in TEMPERATURES]
    trials = [
        SweepTrial(
            number,
            "complete",
            {"optimizer.lr": lr, "loss.temperature": temperature},
            _plane(lr, temperature),
        )
        for number, (lr, temperature) in enumerate(places)
    ]
    failed = SweepTrial(9, "failed", {"optimizer.lr": 0.01, "loss.temperature": 0.1}, error="no")
    return _record(
        "optimizer.lr=0.01,0.1,1", "loss.temperature=0.1,0.2,0.3", trials=[*trials, failed]
    )


def test_the_surface_of_a_plane_is_the_plane() -> None:
    (panel,) = create_diagram(_grid())
    assert [axis.is_log for axis in panel.axes] == [True, False]
    assert panel.surface is not None
    x, y = panel.grid
    assert x[[0, -1]] == pytest.approx([0.01, 1.0])
    expected = [[_plane(lr, temperature) for lr in x] for temperature in y]
    np.testing.assert_allclose(panel.surface, expected, atol=1e-9)


def test_the_surface_ends_where_the_trials_end() -> None:
    trials = [
        SweepTrial(i, "complete", {"optimizer.lr": lr, "optimizer.momentum": m}, 0.1 * i)
        for i, (lr, m) in enumerate([(0.1, 0.0), (0.9, 0.0), (0.1, 0.9)])
    ]
    settings = ("optimizer.lr=0.1..1.0", "optimizer.momentum=0.0..0.9")
    (panel,) = create_diagram(_record(*settings, trials=trials))
    assert panel.surface is not None
    inside = ~np.isnan(panel.surface)
    assert inside[0].all()
    assert not inside[-1, 1:].any()
    # Two trials, or three on a line, span no surface.
    for count, momentum in ((2, 0.0), (3, 0.0)):
        flat = [
            replace(one, settings={**one.settings, "optimizer.momentum": momentum})
            for one in trials[:count]
        ]
        (panel,) = create_diagram(_record(*settings, trials=flat))
        assert panel.surface is None


def test_of_trials_at_one_place_the_best_counts() -> None:
    first, second, third = "a.b=1,2", "c.d=1,2", "e.f=x,y"
    places = [(a, c, e) for a in (1, 2) for c in (1, 2) for e in ("x", "y")]
    trials = [
        SweepTrial(i, "complete", {"a.b": a, "c.d": c, "e.f": e}, 0.1 * a + 0.5 * (e == "x"))
        for i, (a, c, e) in enumerate(places)
    ]
    panels = create_diagram(_record(first, second, third, trials=trials))
    assert [tuple(axis.key for axis in panel.axes) for panel in panels] == [
        ("a.b", "c.d"),
        ("a.b", "e.f"),
        ("c.d", "e.f"),
    ]
    surface = panels[0].surface
    assert surface is not None
    np.testing.assert_allclose(surface[:, [0, -1]], [[0.6, 0.7]] * len(surface))
    assert panels[1].surface is None
    assert panels[1].axes[1].names == ("x", "y")
    assert set(panels[1].points[:, 1]) == {0.0, 1.0}


def test_the_best_region_is_within_a_standard_error() -> None:
    record = _grid()
    best = max(_plane(lr, temperature) for lr in LRS for temperature in TEMPERATURES)
    error = math.sqrt(best * (1 - best) / 100)
    good = [
        (lr, temperature)
        for lr in LRS
        for temperature in TEMPERATURES
        if _plane(lr, temperature) >= best - error
    ]
    expected = {
        "optimizer.lr": (min(lr for lr, _ in good), max(lr for lr, _ in good)),
        "loss.temperature": (min(t for _, t in good), max(t for _, t in good)),
    }
    assert best_region(record) == expected
    text = describe_region(record)
    points = f"{100 * record.tolerance:.2g} percentage points"
    assert text.startswith(f"{len(good)} trials are within one standard error ({points}) of the ")
    assert describe_region(replace(record, trials=())) == "No trial is complete."


@pytest.mark.parametrize("num_settings", [1, 2, 3])
def test_pages_and_pictures_of_one_to_three_settings(tmp_path: Path, num_settings: int) -> None:
    settings = ["optimizer.lr=log:0.01..1", "loss.name=<ce>,ntce", "loss.temperature=0.1,0.2"]
    keys = [text.partition("=")[0] for text in settings[:num_settings]]
    values = [(0.01, "<ce>", 0.1), (0.1, "ntce", 0.2), (1.0, "<ce>", 0.2)]
    trials = [
        SweepTrial(i, "complete", dict(zip(keys, value, strict=False)), 0.5 + 0.1 * i)
        for i, value in enumerate(values)
    ]
    record = _record(*settings[:num_settings], trials=trials)
    assert write_sweep_page(tmp_path / "sweep.html", record)
    page = (tmp_path / "sweep.html").read_text(encoding="utf-8")
    assert page.count('data-figure="') == (3 if num_settings == 3 else 1)
    assert "within one standard error" in page
    write_figure(tmp_path / "sweep.png", plot_sweep(record))
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("low", "high"), [(0.05, 0.5), (0.09, 0.31), (1e-5, 1.0), (2.0, 30.0)])
def test_logarithmic_axes_have_at_least_four_numbers_within_the_trials(
    low: float, high: float
) -> None:
    ticks = log_ticks(np.array([low, high]))
    assert len(ticks) >= 4
    assert ticks == sorted(set(ticks))
    assert low / 1.2 < ticks[0] < ticks[-1] < 1.2 * high
    assert all(len(f"{tick:g}") <= 6 for tick in ticks)


def test_pictures_are_in_percent_and_say_which_side_is_good() -> None:
    trials = [
        SweepTrial(i, "complete", {"optimizer.lr": lr}, value)
        for i, (lr, value) in enumerate([(0.05, 0.5), (0.2, 0.75), (0.5, 0.625)])
    ]
    figure = plot_sweep(_record("optimizer.lr=log:0.05..0.5", trials=trials))
    (axes,) = figure.axes
    assert np.asarray(axes.lines[0].get_ydata()).tolist() == [50, 75, 62.5]
    assert axes.get_ylabel() == "accuracy in %"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.05", "0.1", "0.2", "0.5"]
    assert "Above the line" in figure.get_suptitle()
    plane = plot_sweep(_grid())
    assert plane.axes[-1].get_ylabel() == "accuracy in %"
    assert "On its side of the red line" in plane.get_suptitle()


def test_a_sweep_without_complete_trials_has_no_page(tmp_path: Path) -> None:
    record = _record("optimizer.lr=0.1,0.2", trials=[])
    assert not write_sweep_page(tmp_path / "sweep.html", record)
    assert not (tmp_path / "sweep.html").exists()
    with pytest.raises(ValueError, match="a figure needs a complete trial"):
        plot_sweep(record)
