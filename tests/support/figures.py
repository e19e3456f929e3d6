"""Figures of commands, caught instead of written: writing takes most of the time."""

from pathlib import Path
from typing import Any

import pytest


def catch_figures(monkeypatch: pytest.MonkeyPatch) -> dict[Path, Any]:
    """Keep figures instead of writing them.

    Args:
        monkeypatch: Undoes it at the end of the test.

    Returns:
        The figures by path, which fills while commands run.
    """
    pytest.importorskip("matplotlib")
    figures: dict[Path, Any] = {}
    monkeypatch.setattr("protosphere.studies.plots.figures.write_figure", figures.__setitem__)
    return figures


def titles(figure: Any) -> list[str]:
    """Return the titles of the panels of a figure; color bars have none."""
    return [title for axes in figure.axes if (title := axes.get_title(loc="left"))]


def legend_texts(figure: Any) -> list[str]:
    """Return the texts of the legend below a figure."""
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]
