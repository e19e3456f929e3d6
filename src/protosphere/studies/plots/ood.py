"""Figure of out-of-distribution detection: AUROC and FPR95 of each score."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protosphere.report.colors import NEUTRAL
from protosphere.studies.plots.figures import create_figure, draw_legend, styled
from protosphere.studies.plots.looks import Look, label, looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protosphere.studies.ood import OodRow

_CHANCE = 50.0


@styled
def plot_ood(runs: "Mapping[str, Sequence[OodRow]]") -> "Figure":
    """Draw how well scores tell images of unknown classes from those of runs.

    Each source of unknown images has two panels: AUROC (higher is better) and FPR95 (lower is
    better).

    Args:
        runs: Rows by the name of the run.

    Returns:
        The figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    everything = [row for rows in runs.values() for row in rows]
    # By their images: two sources may have the same name.
    sources = {row.fingerprint: row.against for row in everything}
    scores = list(dict.fromkeys(row.score for row in everything))
    figure, panels = create_figure(2 * len(sources), columns=4 if len(sources) > 1 else 2)
    drawn_as = looks(list(runs))
    for index, (fingerprint, against) in enumerate(sources.items()):
        area, error = panels[2 * index : 2 * index + 2]
        found = {
            name: own
            for name, rows in runs.items()
            if (own := [row for row in rows if row.fingerprint == fingerprint])
        }
        for place, (name, own) in enumerate(found.items()):
            # Beside each other, so that equal values do not hide one another.
            shift = 0.5 * ((place + 0.5) / len(found) - 0.5)
            areas = {row.score: row.auroc for row in own}
            errors = {row.score: row.fpr95 for row in own}
            for axes, values in ((area, areas), (error, errors)):
                _draw_points(axes, drawn_as[name], [values.get(one) for one in scores], shift)
        area.axhline(_CHANCE, color=NEUTRAL, linestyle="--", linewidth=1.0, label="chance")
        area.set_ylim(top=101)
        area.set_title(f"{label(against)}: AUROC")
        area.set_ylabel("AUROC in %, higher is better")
        error.set_ylim(0, 102)
        error.set_title(f"{label(against)}: FPR95")
        error.set_ylabel("FPR95 in %, lower is better")
        for axes in (area, error):
            axes.set_xticks(
                range(len(scores)), scores, rotation=35, ha="right", rotation_mode="anchor"
            )
            axes.set_xlim(-0.6, len(scores) - 0.4)
    draw_legend(figure, panels)
    return figure


def _draw_points(axes: Any, look: Look, values: Sequence[float | None], shift: float) -> None:
    known = [(place + shift, 100 * one) for place, one in enumerate(values) if one is not None]
    axes.plot(
        [x for x, _ in known],
        [y for _, y in known],
        look.marker,
        color=look.color,
        fillstyle="full" if not look.hatch else "none",
        label=look.text,
    )
