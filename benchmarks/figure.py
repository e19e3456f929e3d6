"""Draw the README's figure from the committed runs: the geometry of four losses over training.

The drawing is plain SVG on a transparent background, in colors that read on light and dark pages.

    python benchmarks/figure.py
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import runs

TARGET = Path(__file__).parents[1] / "docs/images/collapse.svg"
# Saturated mid-tones: a contrast of three or more against white and against near-black.
COLORS = {"ce": "#d9622b", "normface": "#9469e0", "ntce": "#1f9d6b", "nonl": "#3584e4"}
_TEXT, _GRID = "#7a828e", "#7a828e"
_WIDTH, _HEIGHT = 940, 340
_PANEL_WIDTH, _PANEL_HEIGHT, _TOP = 300, 222, 70
_LEFTS = (44, 520)
_LABEL_DISTANCE = 15
_EPOCHS = 100


@dataclass(frozen=True)
class Panel:
    """One diagram: what it shows, its ticks, and where a value stands between bottom and top.

    Attributes:
        metric: Key of the evaluation records.
        title: First line above the diagram.
        subtitle: Second line above the diagram.
        ticks: Labeled values of the vertical axis.
        position: Fraction of the height at which a value is drawn.
        optimum: Value at collapse, if it lies within the diagram.
        template: Format of the final values.
    """

    metric: str
    title: str
    subtitle: str
    ticks: tuple[float, ...]
    position: Callable[[float], float]
    optimum: float | None
    template: str


PANELS = (
    Panel(
        metric="inter_effective_rank",
        title="Effective rank of class means",
        subtitle="higher is better; 99 at neural collapse",
        ticks=(0, 25, 50, 75),
        position=lambda value: value / 105,
        optimum=99,
        template="{:.0f}",
    ),
    Panel(
        metric="nc1_ratio",
        title="Within/between-class variance",
        subtitle="lower is better, logarithmic; 0 at neural collapse",
        ticks=(0.03, 0.1, 0.3, 1, 3),
        position=lambda value: math.log(value / 0.03) / math.log(100),
        optimum=None,
        template="{:.2f}",
    ),
)


def draw() -> str:
    """Return the figure as SVG."""
    body = "\n".join(_panel(panel, left) for panel, left in zip(PANELS, _LEFTS, strict=True))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" role="img" font-size="13" fill="{_TEXT}" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">\n'
        "<title>Effective rank of class means and within/between-class variance of the training "
        "features over 100 epochs on CIFAR-100, for cross-entropy, NormFace, NTCE and NONL"
        f"</title>\n{body}\n</svg>\n"
    )


def _panel(panel: Panel, left: float) -> str:
    def x(epoch: float) -> float:
        return left + _PANEL_WIDTH * epoch / _EPOCHS

    def y(value: float) -> float:
        return _TOP + _PANEL_HEIGHT * (1 - panel.position(value))

    parts = [
        f'<text x="{left}" y="24" font-size="16" font-weight="600">{panel.title}</text>',
        f'<text x="{left}" y="45">{panel.subtitle}</text>',
    ]
    for tick in panel.ticks:
        parts.append(_line(left, y(tick), left + _PANEL_WIDTH, y(tick), opacity=0.25))
        parts.append(_text(left - 8, y(tick) + 4, f"{tick:g}", anchor="end"))
    if panel.optimum is not None:
        level = y(panel.optimum)
        parts.append(_line(left, level, left + _PANEL_WIDTH, level, dashes="5 4", opacity=0.9))
        parts.append(_text(left - 8, level + 4, f"{panel.optimum:g}", anchor="end"))
    for epoch in range(0, _EPOCHS + 1, 25):
        parts.append(_text(x(epoch), _TOP + _PANEL_HEIGHT + 20, f"{epoch}", anchor="middle"))
    parts.append(_text(x(_EPOCHS / 2), _TOP + _PANEL_HEIGHT + 39, "epoch", anchor="middle"))
    series = {loss: _series(loss, panel.metric) for loss in runs.SUMMARY_LOSSES}
    for loss, points in series.items():
        path = " ".join(f"{x(epoch):.1f},{y(value):.1f}" for epoch, value in points)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{COLORS[loss]}" stroke-width="2.5" '
            'stroke-linejoin="round" stroke-linecap="round"/>'
        )
    final = {loss: points[-1][1] for loss, points in series.items()}
    heights = _apart({loss: y(value) for loss, value in final.items()})
    for loss, height in heights.items():
        label = f"{runs.SUMMARY_LOSSES[loss]} {panel.template.format(final[loss])}"
        parts.append(
            f'<text x="{left + _PANEL_WIDTH + 8}" y="{height + 4:.1f}" fill="{COLORS[loss]}" '
            f'font-weight="600">{label}</text>'
        )
    return "\n".join(parts)


def _series(loss: str, metric: str) -> list[tuple[float, float]]:
    return [(record["epoch"], record[metric]) for record in runs.evaluations(f"cifar100-{loss}")]


def _apart(heights: dict[str, float]) -> dict[str, float]:
    """Move labels that would overlap apart, keeping their order."""
    order = sorted(heights, key=heights.__getitem__)
    placed = [heights[name] for name in order]
    for _ in range(100):
        for index in range(len(placed) - 1):
            overlap = _LABEL_DISTANCE - (placed[index + 1] - placed[index])
            if overlap > 0:
                placed[index] -= overlap / 2
                placed[index + 1] += overlap / 2
    return dict(zip(order, placed, strict=True))


def _line(
    x1: float, y1: float, x2: float, y2: float, *, opacity: float, dashes: str = "none"
) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{_GRID}" '
        f'stroke-opacity="{opacity}" stroke-dasharray="{dashes}"/>'
    )


def _text(x: float, y: float, text: str, *, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


if __name__ == "__main__":
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(draw())
