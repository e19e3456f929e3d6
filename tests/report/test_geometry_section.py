"""Figures of geometry: exact at a simplex, binned as a loop would, small with many classes."""

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from protosphere.report.class_geometry import (
    bin_matrix,
    leading_fractions,
    mean_spectrum,
    simplex_deviation,
    simplex_radius,
)
from protosphere.report.content import Choice, Note
from protosphere.report.run_shape import unique_labels
from protosphere.report.sections.geometry import create_section
from protosphere.report.sources import ReportData
from support.report_runs import blocks_of, create_run, decode, find_figure, geometry_arrays, simplex


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_bins_are_means_of_blocks_without_the_diagonal(size: int, max_side: int, seed: int) -> None:
    matrix = np.random.default_rng(seed).normal(size=(size, size))
    np.fill_diagonal(matrix, np.nan)
    binned = bin_matrix(matrix, max_side)
    edges = binned.edges.tolist()
    assert len(edges) - 1 <= max_side
    assert edges[0] == 0
    assert edges[-1] == size
    for i, (top, bottom) in enumerate(pairwise(edges)):
        for j, (left, right) in enumerate(pairwise(edges)):
            block = [
                matrix[row][column]
                for row in range(top, bottom)
                for column in range(left, right)
                if row != column
            ]
            expected = sum(block) / len(block) if block else np.nan
            np.testing.assert_allclose(binned.values[i, j], expected, atol=1e-12)


@pytest.mark.parametrize("num_classes", [2, 3, 10, 57])
def test_a_simplex_deviates_nowhere_and_has_a_flat_spectrum(num_classes: int) -> None:
    vertices = simplex(num_classes)
    deviation = simplex_deviation(vertices @ vertices.T)
    assert np.isnan(deviation.diagonal()).all()
    off_diagonal = deviation[~np.eye(num_classes, dtype=bool)]
    np.testing.assert_allclose(off_diagonal, 0, atol=1e-12)
    np.testing.assert_allclose(mean_spectrum(vertices), np.ones(num_classes - 1), atol=1e-9)
    fraction = min(3, num_classes - 1) / (num_classes - 1)
    assert leading_fractions(vertices).sum() == pytest.approx(fraction)
    axes = np.linalg.svd(vertices)[2][:3]
    norms = np.linalg.norm(vertices @ axes.T, axis=1)
    assert simplex_radius(num_classes) == pytest.approx(np.sqrt(np.mean(norms**2)))


def test_a_spectrum_is_relative_to_the_simplex_of_the_same_variance() -> None:
    means = np.diag([4.0, 2.0, 1.0, 0.0])
    centered = means - means.mean(0)
    values = np.linalg.svd(centered)[1][:3]
    expected = values / np.sqrt((centered**2).sum() / 3)
    np.testing.assert_allclose(mean_spectrum(means), expected)
    assert mean_spectrum(np.ones((4, 3))).tolist() == [0, 0, 0]


def test_heat_maps_of_a_simplex_are_zero_with_the_diagonal_left_out() -> None:
    section = create_section(ReportData((create_run(num_classes=10),)))
    for name in ("class-cosines-0", "prototype-cosines-0"):
        (trace,) = find_figure(section, name).data
        values = decode(trace["z"])
        assert values.shape == (10, 10)
        assert np.isnan(values.diagonal()).all()
        np.testing.assert_allclose(values[~np.eye(10, dtype=bool)], 0, atol=1e-6)
        assert trace["zmid"] == 0
        assert trace["zmin"] == -trace["zmax"]
        assert trace["x"] == [f"c{index}" for index in range(10)]


def test_heat_maps_of_all_runs_have_one_scale() -> None:
    spread = np.random.default_rng(0).normal(size=(10, 6))
    spread /= np.linalg.norm(spread, axis=1, keepdims=True)
    runs = (create_run("a"), create_run("b", arrays=geometry_arrays(spread)))
    section = create_section(ReportData(runs))
    scales = {find_figure(section, f"class-cosines-{i}").data[0]["zmax"] for i in range(2)}
    assert len(scales) == 1
    assert scales.pop() > 0.1
    assert section is not None
    menus = [block for block in section.blocks if isinstance(block, Choice)]
    assert [[name for name, _ in menu.options] for menu in menus] == [["a", "b"]] * 3


def test_the_most_and_the_least_collapsed_methods_are_side_by_side() -> None:
    noise = np.random.default_rng(0).normal(size=(10, 10))
    runs = []
    for name, size, loss in [("b", 0.2, "ntce"), ("d", 0.0, "nonl"), ("a", 1.0, "scl"),
                             ("ce", 0.7, "ce"), ("c", 0.1, "ntce")]:  # fmt: skip
        means = simplex(10) + size * noise[:, : simplex(10).shape[1]]
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        recipe = {"loss": {"name": loss}}
        runs.append(create_run(name, recipe=recipe, arrays=geometry_arrays(means)))
    figure = find_figure(create_section(ReportData(tuple(runs))), "cosines-beside")
    titles = [one["text"].split("</b>")[0][3:] for one in figure.layout["annotations"]]
    assert titles == ["a", "ce", "d"]
    assert {trace["coloraxis"] for trace in figure.data} == {"coloraxis"}
    assert np.nanmax(np.abs(decode(figure.data[2]["z"]))) < 1e-6
    # Two methods are both shown, in the same order; one has nothing beside it.
    two = find_figure(create_section(ReportData((runs[1], runs[0]))), "cosines-beside")
    assert [one["text"].split("</b>")[0][3:] for one in two.layout["annotations"]] == ["b", "d"]
    names = [block.name for block in blocks_of(create_section(ReportData((runs[0],))))]
    assert "cosines-beside" not in names


def test_boxes_are_quantiles_of_the_pairs() -> None:
    vectors = np.random.default_rng(1).normal(size=(7, 5))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    run = create_run(num_classes=7, arrays=geometry_arrays(vectors))
    figure = find_figure(create_section(ReportData((run,))), "cosine-distribution")
    cosines = [vectors[i] @ vectors[j] + 1 / 6 for i in range(7) for j in range(i)]
    prototypes = figure.data[1]
    assert prototypes["median"][0] == pytest.approx(np.median(cosines), abs=1e-4)
    assert prototypes["upperfence"][0] == pytest.approx(max(cosines), abs=1e-4)


def test_a_view_has_the_samples_and_prototypes_of_ten_classes_in_color() -> None:
    arrays = geometry_arrays(simplex(12), num_samples=36)
    figure = find_figure(
        create_section(ReportData((create_run(num_classes=12, arrays=arrays),))), "sphere-0"
    )
    named = [trace for trace in figure.data if trace.get("showlegend")]
    assert [trace["name"] for trace in named] == [f"c{index}" for index in range(10)]
    for index, trace in enumerate(named):
        points = np.array([trace["x"], trace["y"], trace["z"]]).T
        own = arrays["samples_3d"][arrays["sample_labels"] == index]
        np.testing.assert_allclose(points, own, atol=1e-3)
    first, second = figure.layout["updatemenus"][0]["buttons"]
    assert first["args"][0]["name"][:10] == [f"c{index}" for index in range(10)]
    assert second["args"][0]["name"][:2] == ["c10", "c11"]
    assert second["args"][0]["visible"] == [True] * 2 + [False] * 8 + [True] * 2
    everything = next(trace for trace in figure.data if "samples" in trace["name"])
    assert everything["text"] == [f"c{index % 12}" for index in range(36)]
    assert "27% of the between-class variance (27% at collapse)" in figure.meaning


@pytest.mark.parametrize(
    ("num_classes", "text"),
    [(2, "the direction in which class means differ, which has 100%"), (3, "the two directions")],
)
def test_fewer_than_three_directions(num_classes: int, text: str) -> None:
    run = create_run(num_classes=num_classes)
    figure = find_figure(create_section(ReportData((run,))), "sphere-0")
    assert text in figure.meaning
    spectrum = find_figure(create_section(ReportData((run,))), "spectrum")
    np.testing.assert_allclose(decode(spectrum.data[0]["y"]), np.ones(num_classes - 1), atol=1e-6)


def test_a_thousand_classes_stay_small() -> None:
    means = np.random.default_rng(0).normal(size=(1000, 32))
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    arrays = geometry_arrays(means, num_samples=2000)
    section = create_section(ReportData((create_run(num_classes=1000, arrays=arrays),)))
    heat_map = find_figure(section, "class-cosines-0")
    assert decode(heat_map.data[0]["z"]).shape == (200, 200)
    assert heat_map.data[0]["x"][:2] == ["0–4", "5–9"]
    sizes = {
        block.name: len(json.dumps([block.data, block.layout])) for block in blocks_of(section)
    }
    assert max(sizes.values()) < 400_000, sizes


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"class_means": np.zeros((9, 10), np.float32)},
        {"class_cosines": np.zeros((10, 9), np.float32)},
        {"prototype_cosines": np.zeros(10, np.float32)},
    ],
    ids=["missing", "another number of classes", "not square", "of one dimension"],
)
def test_arrays_that_are_missing_or_do_not_fit_are_reported(
    change: dict[str, NDArray[Any]],
) -> None:
    damaged = geometry_arrays(simplex(10)) | change if change else {}
    runs = (create_run("whole"), create_run("damaged", arrays=damaged))
    section = create_section(ReportData(runs))
    assert section is not None
    note = section.blocks[-1]
    assert isinstance(note, Note)
    assert note.kind == "missing"
    assert "damaged" in note.text
    assert "whole" not in note.text
    assert create_section(ReportData(runs[1:])) is None


def test_a_view_needs_labels_of_its_classes() -> None:
    arrays = geometry_arrays(simplex(4))
    arrays["sample_labels"] = arrays["sample_labels"] + 1
    section = create_section(ReportData((create_run(num_classes=4, arrays=arrays),)))
    assert not any(block.name.startswith("sphere") for block in blocks_of(section))


def test_hostile_and_equal_class_names() -> None:
    names = ("<script>", "same", "same", "same (2)", "")
    run = create_run("<script>", num_classes=5, class_names=names)
    section = create_section(ReportData((run,)))
    for block in blocks_of(section):
        assert "<script>" not in json.dumps([block.data, block.layout])
    labels = find_figure(section, "class-cosines-0").data[0]["x"]
    assert labels[0] == "&lt;script&gt;"
    assert len(set(labels)) == 5


@given(st.lists(st.sampled_from(["a", "a (1)", "a (2)", "", "b"]), max_size=8))
def test_labels_differ_from_each_other(names: list[str]) -> None:
    labels = unique_labels(names)
    assert len(set(labels)) == len(labels) == len(names)
