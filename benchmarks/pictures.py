"""Draw the pictures of docs/concepts.md, from mathematics and from the committed results.

The backgrounds are transparent and the colors read on light and dark pages.

    python benchmarks/pictures.py
"""

import io
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.figure import Figure

import runs
from protosphere.metrics.convergence import Never, collapse_thresholds, convergence_time

FOLDER = Path(__file__).parents[1] / "docs/images"
# Saturated mid-tones: a contrast of three or more against white and against near-black.
COLORS = {"ce": "#d9622b", "normface": "#9469e0", "ntce": "#1f9d6b", "nonl": "#3584e4"}
_TEXT = "#7a828e"
_STYLE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.color": _TEXT,
    "legend.frameon": False,
    # Texts stay texts, in the font of the reader.
    "svg.fonttype": "none",
    "svg.hashsalt": "protosphere",
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor"), _TEXT),
    **dict.fromkeys(("xtick.color", "ytick.color"), _TEXT),
}
# Of the committed runs: ResNet-18 on CIFAR-100.
_NUM_CLASSES, _DIM = 100, 512
_PANELS = {
    "train_accuracy": "Training accuracy",
    "weight_instance_alignment": "‖prototype − sample‖²",
    "weight_class_alignment": "‖prototype − class mean‖²",
    "weights_effective_rank": "Effective rank of prototypes",
    "intra_effective_rank": "Effective rank within classes",
    "inter_effective_rank": "Effective rank of class means",
}
_CASES = {
    "before training": _TEXT,
    "after cross-entropy": COLORS["ce"],
    "after NONL": COLORS["nonl"],
}


def draw_simplex() -> Figure:
    """Two, three and four points on the sphere that are as far apart as possible."""
    figure = Figure(figsize=(9, 3.4))
    flat = {2: _polygon(2), 3: _polygon(3)}
    for index, (num_points, points) in enumerate(flat.items()):
        axes = figure.add_subplot(1, 3, index + 1)
        circle = np.linspace(0, 2 * math.pi, 100)
        axes.plot(np.cos(circle), np.sin(circle), color=_TEXT, alpha=0.4, linewidth=1)
        for point, color in zip(points, COLORS.values(), strict=False):
            axes.annotate("", xy=point, xytext=(0, 0), arrowprops=_arrow(color))
        axes.set_aspect("equal")
        axes.set_xlim(-1.15, 1.15)
        axes.set_ylim(-1.15, 1.15)
        axes.axis("off")
        _set_title(axes, num_points)
    axes = figure.add_subplot(1, 3, 3, projection="3d", computed_zorder=False)
    _draw_tetrahedron(axes)
    _set_title(axes, 4)
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.01, top=0.86, wspace=0.02)
    return figure


def draw_collapse() -> Figure:
    """Metrics of four losses over training, as in Figure 2 of the paper."""
    figure = Figure(figsize=(9.4, 5.4), layout="constrained")
    thresholds = collapse_thresholds(_NUM_CLASSES, _DIM)
    for axes, (metric, title) in zip(figure.subplots(2, 3).flat, _PANELS.items(), strict=True):
        threshold = thresholds.get(metric)
        if threshold is not None:
            axes.axhline(threshold.value, color=_TEXT, linestyle="--", linewidth=1)
        for loss, name in runs.SUMMARY_LOSSES.items():
            records = runs.evaluations(f"cifar100-{loss}")
            series = [(record["epoch"], record[metric]) for record in records]
            axes.plot(*zip(*series, strict=True), color=COLORS[loss], linewidth=1.8, label=name)
            time = Never.NEVER if threshold is None else convergence_time(series, threshold)
            if not isinstance(time, Never):
                axes.plot(time, dict(series)[time], "o", color=COLORS[loss], fillstyle="none")
        axes.set_title(title)
        axes.set_xlabel("epoch")
        axes.set_ylim(bottom=0)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def draw_cosines() -> Figure:
    """Cosines between the class means of the digits, before and after training."""
    figure = Figure(figsize=(9.4, 3.3), layout="constrained")
    panels = figure.subplots(1, 3)
    for axes, (title, case) in zip(panels, _read_digits().items(), strict=True):
        image = axes.pcolormesh(np.array(case["cosines"]), cmap="RdBu_r", vmin=-1, vmax=1)
        axes.set_title(title)
        axes.set_aspect("equal")
        axes.grid(False)
        axes.invert_yaxis()
        axes.set_xticks(np.arange(10) + 0.5, range(10))
        axes.set_yticks(np.arange(10) + 0.5, range(10))
        axes.tick_params(length=0)
        axes.set_xlabel("digit")
    panels[0].set_ylabel("digit")
    bar = figure.colorbar(image, ax=panels, shrink=0.9)
    bar.set_ticks([-1, -1 / 9, 1], labels=["−1", "−1/9: simplex", "1"])
    bar.outline.set_visible(False)
    return figure


def draw_spectrum() -> Figure:
    """Singular values of the class means of the digits, before and after training."""
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    for title, case in _read_digits().items():
        values = np.array(case["singular_values"][:-1])
        axes.plot(range(1, 10), values / values[0], "o-", color=_CASES[title], label=title)
    axes.set_xlabel("singular value of the centered class means")
    axes.set_ylabel("fraction of the largest")
    axes.set_ylim(0, 1.05)
    axes.legend(loc="lower left")
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "simplex.svg": draw_simplex,
    "collapse-curves.svg": draw_collapse,
    "class-cosines.svg": draw_cosines,
    "spectrum.svg": draw_spectrum,
}


def draw(name: str) -> str:
    """Return a picture as SVG."""
    buffer = io.StringIO()
    with style.context(["default", _STYLE]):
        figure = PICTURES[name]()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _read_digits() -> dict[str, Any]:
    record: dict[str, Any] = json.loads((runs.RESULTS / "digits_geometry.json").read_text())
    cases: dict[str, Any] = record["cases"]
    return cases


def _polygon(num_points: int) -> list[tuple[float, float]]:
    angles = [math.pi / 2 + 2 * math.pi * index / num_points for index in range(num_points)]
    return [(math.cos(angle), math.sin(angle)) for angle in angles]


def _draw_tetrahedron(axes: Any) -> None:
    points = np.array([(1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1)]) / math.sqrt(3)
    circle = np.linspace(0, 2 * math.pi, 60)
    zero = np.zeros_like(circle)
    for plane in itertools.permutations((np.cos(circle), np.sin(circle), zero)):
        axes.plot(*plane, color=_TEXT, alpha=0.15, linewidth=0.8)
    for first, second in itertools.combinations(points, 2):
        axes.plot(*zip(first, second, strict=True), color=_TEXT, linestyle=":", linewidth=1)
    for point, color in zip(points, COLORS.values(), strict=True):
        axes.quiver(0, 0, 0, *point, color=color, linewidth=2.2, arrow_length_ratio=0.14)
    axes.set_box_aspect((1, 1, 1), zoom=1.45)
    axes.view_init(elev=18, azim=-68)
    axes.axis("off")


def _set_title(axes: Any, num_points: int) -> None:
    cosine = {2: "−1", 3: "−1/2", 4: "−1/3"}[num_points]
    degrees = math.degrees(math.acos(-1 / (num_points - 1)))
    axes.set_title(f"{num_points} classes: {round(degrees, 1):g}°, cosine {cosine}", loc="center")


def _arrow(color: str) -> dict[str, Any]:
    return {"arrowstyle": "-|>", "color": color, "linewidth": 2.2, "shrinkA": 0, "shrinkB": 0}


if __name__ == "__main__":
    for name in PICTURES:
        (FOLDER / name).write_text(draw(name), encoding="utf-8")
