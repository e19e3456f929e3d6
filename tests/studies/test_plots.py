"""Figures show the numbers that they are given, whatever names, classes and runs there are."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protosphere.evaluation.evaluate import Evaluation
from protosphere.evaluation.geometry_arrays import Points, arrays_with_points
from protosphere.geometry import simplex_etf
from protosphere.metrics import measure, measure_detailed
from protosphere.metrics.verdicts import graded_distances, verdicts
from protosphere.runs.comparison import (
    ComparedMethod,
    ComparedMetric,
    ComparedRun,
    MetricDifference,
)
from protosphere.studies.calibration import ReliabilityRow
from protosphere.studies.convergence import ConvergenceRow, CurveRow
from protosphere.studies.corruption_summary import reference_of, summarize_corruptions
from protosphere.studies.corruptions import CorruptionRow
from protosphere.studies.label_noise import LabelNoiseRow
from protosphere.studies.long_tail import LongTailRow
from protosphere.studies.ood import OodRow
from protosphere.studies.reproduce import TargetPlan, plan_target, run_target
from protosphere.studies.reproduce_readings import RunReader
from protosphere.studies.transfer import TransferRow
from support.report_studies import create_comparison
from support.short_runs import logged_run

pytest.importorskip("matplotlib")

from protosphere.studies.plots.collapse import centered_cosines, draw_cosine_map
from protosphere.studies.plots.comparison import plot_comparison
from protosphere.studies.plots.convergence import plot_convergence
from protosphere.studies.plots.corruptions import CorruptedRun, plot_corruptions
from protosphere.studies.plots.evaluation import plot_evaluation
from protosphere.studies.plots.figures import create_figure, write_figure
from protosphere.studies.plots.label_noise import plot_label_noise
from protosphere.studies.plots.long_tail import plot_long_tail
from protosphere.studies.plots.looks import label
from protosphere.studies.plots.measurement import plot_measurement
from protosphere.studies.plots.ood import plot_ood
from protosphere.studies.plots.reliability import plot_reliability
from protosphere.studies.plots.reproduce import plot_reproduction
from protosphere.studies.plots.transfer import plot_transfer

HOSTILE = "<script>$\\frac{a$ & --> \x1b[31m\n\ud800 猫 " + 40 * "long "


def _panels(figure: Any) -> dict[str, Any]:
    return {axes.get_title(loc="left"): axes for axes in figure.axes}


def _heights(axes: Any) -> list[float]:
    return [round(bar.get_height(), 6) for bar in axes.patches]


def _line(axes: Any, name: str) -> list[float]:
    lines = [line for line in axes.lines if line.get_label() == name]
    return [float(value) for value in lines[0].get_ydata()]


def _texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_yticklabels()]


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    """Thirty classes, of which the last ones are hard."""
    generator = torch.Generator().manual_seed(0)
    num_classes, dim = 30, 16
    means = torch.randn(num_classes, dim, generator=generator)
    labels = torch.arange(40 * num_classes) % num_classes
    noise = torch.randn(len(labels), dim, generator=generator)
    features = means[labels] + noise * torch.linspace(0.1, 2.0, num_classes)[labels, None]
    confidences, predictions = (features @ means.T).softmax(1).max(1)
    metrics = measure(features, labels, means)
    metrics["accuracy"] = float((predictions == labels).double().mean())
    points = Points(torch.arange(2), features[:2])
    arrays = arrays_with_points(means, means, labels, predictions, confidences, points)
    return Evaluation(metrics, arrays)


def test_names_are_short_plain_text() -> None:
    assert label("a" * 50, 11) == "aaaaa…aaaaa"
    assert label(HOSTILE).isprintable()
    assert label("US$ and $x$") == "US\\$ and \\$x\\$"


@pytest.mark.long
def test_an_svg_is_the_same_twice_whatever_the_settings_of_matplotlib(tmp_path: Path) -> None:
    import matplotlib

    rows = {HOSTILE: [_ood("cosine", 0.9)], "ce": [_ood("cosine", 0.8)]}
    write_figure(tmp_path / "first.svg", plot_ood(rows))
    with matplotlib.rc_context({"text.usetex": True, "font.size": 40}):
        write_figure(tmp_path / "second.svg", plot_ood(rows))
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()


@pytest.mark.long
def test_names_of_classes_are_no_markup(tmp_path: Path, evaluation: Evaluation) -> None:
    names = [f"{HOSTILE}{index}" for index in range(30)]
    write_figure(tmp_path / "figure.svg", plot_evaluation(evaluation, names, title=HOSTILE))
    content = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(content).tag.endswith("svg")
    assert "script" in content
    assert "<script" not in content


@pytest.mark.parametrize("suffix", ["png", "pdf"])
def test_pictures_in_other_formats(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"figure.{suffix}"
    write_figure(path, plot_ood({"ce": [_ood("cosine", 0.9)]}))
    assert path.read_bytes().startswith({"png": b"\x89PNG", "pdf": b"%PDF"}[suffix])


def test_an_evaluation_has_the_weakest_classes_and_where_their_images_go(
    evaluation: Evaluation,
) -> None:
    # Equal names of classes do not confuse their rows.
    names = ["same" if index < 15 else f"class {index}" for index in range(30)]
    panels = _panels(plot_evaluation(evaluation, names))
    accuracies = evaluation.arrays["class_accuracy"]
    order = np.argsort(accuracies, kind="stable")
    weakest = panels["The 20 weakest of 30 classes"]
    widths = [bar.get_width() for bar in weakest.patches]
    np.testing.assert_allclose(widths, 100 * accuracies[order[:20]], rtol=1e-5)
    assert _texts(weakest) == [names[index] for index in order[:20]]
    confusion = panels["Confusion of the weakest classes"]
    shown = np.asarray(confusion.images[0].get_array())
    assert shown.shape == (10, 12)
    np.testing.assert_allclose(np.diag(shown), 100 * accuracies[order[:10]], rtol=1e-5)
    counts = evaluation.arrays["confusion"][np.ix_(order[:10], order[:10])]
    np.testing.assert_allclose(shown[:, :10], 100 * counts / 40, rtol=1e-5)
    assert _texts(confusion) == [names[index] for index in order[:10]]
    points = panels["Confidence and accuracy, a point per class"].collections[0].get_offsets()
    np.testing.assert_allclose(np.asarray(points)[:, 1], 100 * accuracies, rtol=1e-5)
    assert sum(_heights(panels["Accuracies of all classes"])) == 30


def test_a_collapsed_measurement() -> None:
    num_classes = 5
    prototypes = simplex_etf(num_classes, 8)
    labels = torch.arange(20) % num_classes
    result = measure_detailed(prototypes[labels], labels, prototypes)
    figure = plot_measurement(result, prototypes=prototypes.numpy(), title="features.npz")
    panels = _panels(figure)
    for name in ("class means", "prototypes"):
        spectrum = _line(panels["Spectrum of class means and prototypes"], name)
        np.testing.assert_allclose(spectrum, np.ones(num_classes - 1), atol=1e-6)
    cosines = np.ma.filled(panels["Cosines between class means"].images[0].get_array(), np.nan)
    off_diagonal = cosines[~np.eye(num_classes, dtype=bool)]
    np.testing.assert_allclose(off_diagonal, -0.25, atol=1e-6)
    assert np.isnan(np.diag(cosines)).all()
    conditions = panels["The conditions of neural collapse"]
    assert [text.split(":")[0] for text in _texts(conditions)] == [
        "NC1", "NC2", "NC2", "NC2", "NC3", "NC4",
    ]  # fmt: skip
    # All are at the edge that stands for 0.
    assert {line.get_marker() for line in conditions.lines} == {"<"}


def test_a_measurement_of_a_thousand_classes_and_of_one_metric() -> None:
    features = torch.randn(1000, 4, generator=torch.Generator().manual_seed(0))
    result = measure_detailed(features, torch.arange(1000), metrics="nc2_coherence")
    figure = plot_measurement(result)
    panels = _panels(figure)
    image = panels["Cosines between class means"].images[0]
    assert image.get_array().shape == (200, 200)
    assert image.get_extent() == [-0.5, 999.5, 999.5, -0.5]
    assert _texts(panels["Metrics"]) == ["nc2_coherence"]
    (reason,) = panels["The conditions of neural collapse"].texts
    assert reason.get_text() == "no metric of the conditions was measured"


def test_a_map_of_more_classes_than_are_compared_has_the_indices_of_all() -> None:
    figure, (axes,) = create_figure(1)
    # Every second of the 41 vertices.
    cosines = centered_cosines(simplex_etf(41, 41).double().numpy())[::2, ::2]
    draw_cosine_map(figure, axes, cosines, [str(index) for index in range(41)])
    (image,) = axes.images
    assert image.get_extent() == [-0.5, 40.5, 40.5, -0.5]
    middle = sum(image.get_clim()) / 2
    np.testing.assert_allclose(middle, -1 / 40, atol=1e-9)


@given(
    st.fixed_dictionaries(
        {
            "nc1_ratio": st.floats(0, 1),
            "nc2_simplex": st.floats(0, 0.5),
            "inter_effective_rank": st.floats(1, 9),
            "nc2_norms": st.floats(0, 0.5),
            "nc3_cosine": st.floats(0, 1),
            "nc4_agreement": st.floats(0.8, 1),
        }
    )
)
def test_the_worst_distance_of_a_condition_is_its_verdict(values: dict[str, float]) -> None:
    answers = ("yes", "nearly", "partly", "no")
    worst: dict[str, int] = {}
    for row in graded_distances(values, 10, 64):
        # Values at a limit, up to rounding, may be graded either way.
        if any(abs(row.distance - limit) < 1e-9 for limit in row.limits):
            return
        grade = sum(row.distance > limit for limit in row.limits)
        worst[row.condition] = max(grade, worst.get(row.condition, 0))
    expected = {one.condition: one.answer for one in verdicts(values, {}, 10, 64)}
    assert {condition: answers[grade] for condition, grade in worst.items()} == expected


def _long_tail_rows(shift: float) -> Iterator[LongTailRow]:
    for place, classifier in enumerate(("head", "class_means", "calibrated_class_means")):
        for index, group in enumerate(("all", "many", "few")):
            accuracy = shift + 0.1 * place + 0.01 * index
            yield LongTailRow(classifier, group, None, 2, 110, 20, accuracy)
        for size, accuracy in ((10, 0.2), (100, 0.6)):
            yield LongTailRow(classifier, "class", f"of {size}", 1, size, 10, shift + accuracy)


def test_long_tails_of_one_run_and_of_several() -> None:
    rows = {"ce": list(_long_tail_rows(0.0)), "nonl": list(_long_tail_rows(0.5))}
    panels = _panels(plot_long_tail(rows, paper={"nonl": 44.0}))
    assert list(panels) == ["head", "class means", "By class size, head"]
    assert _heights(panels["head"]) == [0, 1, 2, 50, 51, 52]
    assert _heights(panels["class means"]) == [10, 11, 12, 60, 61, 62]
    assert _line(panels["head"], "the paper, head") == [44.0]
    assert _line(panels["By class size, head"], "nonl") == pytest.approx([70, 110])
    one = _panels(plot_long_tail({"ce": rows["ce"]}))
    assert list(one) == ["ce", "By class size"]
    assert _heights(one["ce"]) == [0, 1, 2, 10, 11, 12]


def test_errors_by_corruption_and_severity() -> None:
    rows = [CorruptionRow("clean", 0, 0.1, 0.15, 10)]
    rows += [
        CorruptionRow(name, severity, base + severity / 10, 0.5, 10)
        for name, base in (("fog", 0.1), ("snow", 0.2), ("spatter", 0.5))
        for severity in (1, 2)
    ]
    summary = summarize_corruptions(rows, reference_of("ce", rows))
    panels = list(_panels(plot_corruptions({"ce": CorruptedRun(summary, tuple(rows))})).values())
    assert _line(panels[0], "ce") == pytest.approx([25, 35, 65])
    names = [text.get_text() for text in panels[0].get_xticklabels()]
    assert names == ["fog", "snow", "spatter (extra)"]
    # Extra corruptions do not count in the mean.
    assert _line(panels[1], "ce") == pytest.approx([10, 25, 35])
    assert list(panels[1].lines[1].get_ydata()) == pytest.approx([15, 50, 50])


def test_transfer_has_a_panel_per_classifier_and_few_shot_curves() -> None:
    row = TransferRow("pets", "logistic", "mean_per_class", 0.5, 0.4, 0.5, 1.0, None, 9, 9, 3)
    few = [
        replace(row, target="dtd", metric="top1", classifier="class_means", shots=shots, std=0.1,
                value=shots / 20)
        for shots in (1, 5)
    ]  # fmt: skip
    rows = {
        "ce": [row, replace(row, target="dtd", metric="top1", value=0.3), *few],
        "nonl": [replace(row, value=0.7)],
    }
    panels = _panels(plot_transfer(rows, paper={"nonl": {"pets": 80.0}}))
    assert list(panels) == ["logistic regression", "Few-shot: dtd"]
    bars = panels["logistic regression"]
    assert _heights(bars) == [50, 30, 70]
    assert [text.get_text() for text in bars.get_xticklabels()] == ["pets\n(mean per class)", "dtd"]
    assert _line(bars, "the paper") == [80.0]
    curve = panels["Few-shot: dtd"].lines[0]
    assert list(curve.get_xdata()) == [1, 5]
    assert list(curve.get_ydata()) == pytest.approx([5, 25])
    (bars_of_draws,) = panels["Few-shot: dtd"].collections
    ends = [segment[:, 1].tolist() for segment in bars_of_draws.get_segments()]
    assert ends == [pytest.approx([-5, 15]), pytest.approx([15, 35])]


def test_a_circle_is_on_the_moving_average_where_it_reaches_collapse() -> None:
    metric = "weights_effective_rank"
    points = [CurveRow(metric, epoch, 9.9, 2.0 * epoch) for epoch in (1.0, 2.0, 4.0)]
    rows = [ConvergenceRow(metric, 9.9, 4.0, "at least", 50.0, baseline_final=3.0)]
    (axes,) = plot_convergence({"nonl": points}, {"nonl": rows}).axes
    assert _line(axes, "95% of collapse") == [4, 4]
    assert _line(axes, "last value of the baseline") == [3, 3]
    assert _line(axes, "nonl") == [2, 4, 8]
    (circle,) = [line for line in axes.lines if line.get_marker() == "o"]
    assert np.asarray(circle.get_xydata()).tolist() == [[50, 4]]


def test_figure_2_has_the_columns_that_were_chosen(tmp_path: Path) -> None:
    def plan(*columns: str) -> TargetPlan:
        return plan_target("figure2", out=tmp_path, rows=["ce", "nonl"], columns=columns)

    metrics = {
        "train_accuracy": [(500, 0.5), (1000, 0.9)],
        "intra_effective_rank": [(500, 9.0), (1000, 8.0)],
        "weights_effective_rank": [(500, 5.0), (1000, 7.0)],
    }
    for run in plan().runs.values():
        logged_run(run.folder, metrics)
        (run.folder / "recipe.yaml").write_text(run.recipe.to_yaml())

    def draw(*columns: str) -> Any:
        chosen = plan(*columns)
        reader = RunReader(chosen.runs)
        return plot_reproduction(run_target(chosen, train=lambda *_: False), reader)

    figure = draw("train_accuracy", "weights_effective_rank")
    panels = _panels(figure)
    assert list(panels) == ["weights effective rank", "train accuracy"]
    assert _line(panels["weights effective rank"], "ce") == pytest.approx([5, 7])
    assert "Circle" in figure.get_suptitle()
    axes = panels["train accuracy"]
    assert axes.get_ylabel() == "accuracy in %"
    assert _line(axes, "nonl") == pytest.approx([50, 90])
    # A line of the average and one of the values for each run, and no threshold.
    assert len(axes.lines) == 4
    (axes,) = draw("train_accuracy").axes
    assert axes.figure.get_suptitle() == ""
    assert len(_panels(draw())) == 6


def test_a_reliability_diagram_has_its_bins_before_and_after() -> None:
    rows = [
        ReliabilityRow("head", "before", 0.5, 1.0, 10, 0.9, 0.6),
        ReliabilityRow("head", "before", 0.0, 0.5, 0, None, None),
        ReliabilityRow("head", "after", 0.5, 1.0, 10, 0.7, 0.65),
    ]
    (axes,) = plot_reliability({"ce": rows}).axes
    assert _line(axes, "before temperature scaling") == pytest.approx([60])
    assert _line(axes, "after temperature scaling") == pytest.approx([65])


def test_differences_to_a_baseline_have_their_intervals_and_seeds() -> None:
    metric = ComparedMetric("accuracy", "higher")
    values = {("ce", 0): 0.5, ("ce", 1): 0.6, ("nonl", 0): 0.6, ("nonl", 1): 0.9}
    runs = tuple(
        ComparedRun(method, seed, "x", 1, 1, {"accuracy": value})
        for (method, seed), value in values.items()
    )
    row = MetricDifference("nonl", "accuracy", (0, 1), 0.2, 0.1, 0.05, 0.35, 0.01, 0.01, "better")
    methods = tuple(ComparedMethod(name, {}) for name in ("ce", "nonl"))
    comparison = create_comparison(
        baseline="ce", seeds=(0, 1), metrics=(metric,), methods=methods, runs=runs,
        differences=(row,),
    )  # fmt: skip
    (axes,) = plot_comparison(comparison, ["accuracy"]).axes
    assert axes.get_title(loc="left") == f"accuracy, {comparison.split} images"
    seeds, interval, mean, _ = (np.asarray(line.get_xdata()).tolist() for line in axes.lines)
    assert seeds == pytest.approx([10, 30])
    assert interval == pytest.approx([5, 35])
    assert mean == pytest.approx([20])


def _noise(fraction: float, accuracy: float) -> list[LabelNoiseRow]:
    return [
        LabelNoiseRow(name, "symmetric", fraction, 4, 10, accuracy, 0.9, 0.7, 0.6, 0.3)
        for name in ("head", "class_means")
    ]


def test_wrongly_labeled_images_add_up_to_all() -> None:
    rows = {"a": _noise(0.2, 0.8), "b": _noise(0.4, 0.6)}
    panels = _panels(plot_label_noise(rows, methods={"a": "ce", "b": "ce"}))
    wrong = panels["Training images with a wrong label"]
    assert [round(bar.get_width(), 6) for bar in wrong.patches] == [60, 10, 30] * 2
    assert _texts(wrong) == ["a\n20% symmetric", "b\n40% symmetric"]
    assert _heights(panels["Accuracy by classifier"]) == [80, 80, 60, 60]
    curve = panels["Accuracy over the fraction of wrong labels"]
    assert _line(curve, "ce, symmetric") == [80, 60]
    assert len(_panels(plot_label_noise({"a": rows["a"]}, methods={"a": "ce"}))) == 3


def _ood(score: Any, auroc: float | None, fingerprint: str = "x") -> OodRow:
    fpr95 = None if auroc is None else 1 - auroc
    return OodRow("svhn", fingerprint, score, auroc, fpr95, auroc, 10, 10, 0)


def test_scores_of_unknown_images_without_a_value_are_left_out() -> None:
    rows: dict[str, Sequence[OodRow]] = {
        "ce": [_ood("cosine", 0.9), _ood("knn", None), _ood("cosine", 0.6, "y")],
        "nonl": [_ood("cosine", 0.8), _ood("knn", 0.7)],
    }
    figure = plot_ood(rows)
    # Two sources of one name have panels of their own.
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["svhn: AUROC", "svhn: FPR95"] * 2
    area, error, other = figure.axes[:3]
    assert _line(area, "ce") == pytest.approx([90])
    assert _line(area, "nonl") == pytest.approx([80, 70])
    assert _line(error, "nonl") == pytest.approx([20, 30])
    assert _line(other, "ce") == pytest.approx([60])


def test_twenty_runs_are_told_apart_whatever_their_names() -> None:
    long = 60 * "long "
    figure = plot_ood({f"{long}{index}{long}": [_ood("cosine", 0.9)] for index in range(20)})
    (legend,) = figure.legends
    assert len({text.get_text() for text in legend.get_texts()}) == 21
    drawn = {(line.get_color(), line.get_marker()) for line in figure.axes[0].lines[:-1]}
    assert len(drawn) == 20
