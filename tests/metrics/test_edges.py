"""Edge cases: tiny variances, collapsed, single-sample and missing classes, offsets, bad input."""

from typing import Any

import numpy as np
import pytest
import torch

from protosphere.geometry import simplex_etf
from protosphere.geometry.class_statistics import Space
from protosphere.metrics import NeuralCollapse, measure, measure_detailed
from support.clouds import cloud, defined


def _streamed(
    features: torch.Tensor, labels: torch.Tensor, num_classes: int, batch_size: int, **options: Any
) -> dict[str, float]:
    metric = NeuralCollapse(features.shape[1], num_classes, **options)
    for batch in torch.arange(len(labels)).split(batch_size):
        metric.update(features[batch], labels[batch])
    return defined(metric.compute())


def test_a_variance_of_1e_8_is_accurate_from_float32() -> None:
    """tr Σ_W = 1e-8 on the sphere, from float32 features of length one."""
    classes, dim = 10, 64
    frame = simplex_etf(classes, dim).double()
    labels = torch.arange(2000) % classes
    noise = torch.randn(2000, dim, dtype=torch.float64) * (1e-4 / dim**0.5)
    features = (frame[labels] + noise).float()
    exact = torch.nn.functional.normalize(features.double())
    means = torch.stack([exact[labels == c].mean(0) for c in range(classes)])
    within = (exact - means[labels]).square().sum(1).mean().item()
    assert 0.9e-8 < within < 1.1e-8
    ratio = within / (means - means.mean(0)).square().sum(1).mean().item()
    assert measure(features, labels)["nc1_ratio"] == pytest.approx(ratio, rel=1e-9)
    assert _streamed(features, labels, classes, 64)["nc1_ratio"] == pytest.approx(ratio, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("space", ["sphere", "raw"])
def test_collapsed_classes_have_rank_zero_for_any_batches(dtype: torch.dtype, space: Space) -> None:
    points = torch.randn(3, 7, dtype=torch.float64).add(20).to(dtype)
    labels = torch.arange(3).repeat_interleave(333)
    features = points[labels]
    features[labels == 2] += torch.randn(333, 7).to(dtype)
    expected = measure(features[labels == 2].repeat(2, 1), torch.arange(666) // 333, space=space)
    for result in (
        measure(features, labels, space=space),
        _streamed(features, labels, 3, 50, space=space),
    ):
        assert result["intra_effective_rank"] == pytest.approx(
            expected["intra_effective_rank"] / 3, rel=1e-6
        )


def test_float32_rounding_is_not_variance() -> None:
    """Multiples of one vector, rounded to float32, are one point on the sphere."""
    direction = torch.randn(2, 50, dtype=torch.float64)
    labels = torch.arange(400) % 2
    features = (direction[labels] * torch.rand(400, 1, dtype=torch.float64).add(0.1)).float()
    assert measure(features, labels)["intra_effective_rank"] == 0
    assert (
        measure(features.double() * (1 + 1e-4 * torch.randn(400, 50)), labels)[
            "intra_effective_rank"
        ]
        > 10
    )


def test_a_large_common_offset_does_not_lose_precision() -> None:
    samples = cloud([40, 40, 40], 8, dtype=np.float64, noise=0.1)
    features = np.round(samples.features * 2**20) / 2**20  # So that adding the offset is exact.
    expected = measure(features, samples.labels, space="raw")
    for result in (
        measure(features + 2.0**20, samples.labels, space="raw"),
        _streamed(
            torch.from_numpy(features + 2.0**20),
            torch.from_numpy(samples.labels),
            3,
            13,
            space="raw",
        ),
    ):
        for name in (
            "nc1_ratio",
            "nc1_trace",
            "cdnv",
            "nc2_simplex",
            "intra_effective_rank",
            "inter_effective_rank",
        ):
            assert result[name] == pytest.approx(expected[name], rel=1e-7), name


def test_a_class_of_one_sample() -> None:
    samples = cloud([1, 6, 6], 5)
    result = measure_detailed(samples.features, samples.labels, samples.prototypes)
    assert (
        result.absent["intra_effective_rank"]
        == "every class needs at least two samples; class 0 has fewer"
    )
    assert result.absent["cdnv"] == "every class needs at least two samples; class 0 has fewer"
    assert {"nc1_ratio", "instance_alignment", "nc2_simplex", "nc4_agreement"} <= set(result.values)


def test_classes_of_one_sample_each() -> None:
    result = measure_detailed(torch.eye(4), torch.arange(4), torch.eye(4))
    assert {"nc1_ratio", "nc1_trace", "cdnv", "instance_alignment", "intra_effective_rank"} <= set(
        result.absent
    )
    assert result.values["nc2_simplex"] == pytest.approx(0, abs=1e-12)


@pytest.mark.bad_input
def test_a_class_without_samples_is_named_or_omitted() -> None:
    samples = cloud([5, 5, 5, 5, 5], 6)
    kept = samples.labels != 2
    features, labels = samples.features[kept], samples.labels[kept]
    with pytest.raises(
        ValueError,
        match=r"every class needs a sample unless classes='present'; class 2 has none",
    ):
        measure(features, labels, samples.prototypes)
    remaining = [0, 1, 3, 4]
    result = measure_detailed(features, labels, samples.prototypes, classes="present")
    assert result.classes == remaining
    compact = np.array([0, 1, -1, 2, 3])[labels]
    expected = measure(features, compact, samples.prototypes[remaining])
    assert result.values == expected
    tensors = (
        torch.from_numpy(features),
        torch.from_numpy(labels),
        torch.from_numpy(samples.prototypes),
    )
    streamed = _streamed(*tensors[:2], 5, 4, prototypes=tensors[2], classes="present")
    assert set(streamed) == set(expected) - {"nc4_agreement"}
    for name, value in streamed.items():
        assert value == pytest.approx(expected[name], rel=1e-9, abs=1e-12)


def test_streamed_metrics_that_need_a_missing_class_are_nan() -> None:
    metric = NeuralCollapse(5, 3, torch.randn(3, 5))
    metric.update(torch.randn(8, 5), torch.arange(8) % 2)
    assert tuple(metric.compute()) == metric.names
    assert set(defined(metric.compute())) == {
        "instance_alignment",
        "weights_effective_rank",
        "weight_instance_alignment",
        *(f"nc2_{name}_weights" for name in ("norms", "angles", "simplex", "gram")),
    }
    assert metric.absent["nc2_simplex"] == "every class needs a sample; class 2 has none"
    metric.update(torch.randn(8, 5), torch.full((8,), 2))
    assert "nc2_simplex" in defined(metric.compute())
    assert tuple(metric.compute()) == metric.names
    assert "nc2_simplex" not in metric.absent


def test_metrics_of_coinciding_means_are_absent() -> None:
    features = torch.tensor([[1.0, 1.0], [1.0, -1.0]]).repeat(6, 1)
    result = measure_detailed(features, torch.arange(12) // 4, torch.eye(3, 2))
    assert result.values["inter_effective_rank"] == 0
    assert {
        "nc1_ratio",
        "nc1_trace",
        "cdnv",
        "nc2_norms",
        "nc2_simplex",
        "nc3_cosine",
        "mir",
        "gnc2_mean",
    } <= set(result.absent)
    assert result.absent["nc1_ratio"] == "all class means coincide"


def test_two_of_several_means_coincide() -> None:
    points = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    noise = torch.randn(40, 3) * 0.01
    labels = torch.arange(160) // 40
    result = measure_detailed(points[labels] + noise.repeat(4, 1), labels, space="raw")
    assert result.absent["cdnv"] == "two class means coincide"
    assert result.absent["gnc2_mean"] == "two centered class means have the same direction"
    assert result.values["nc1_ratio"] > 0


def test_zero_features_and_prototypes() -> None:
    samples = cloud([6, 6, 6], 5)
    samples.features[0], samples.prototypes[1] = 0, 0
    result = measure_detailed(samples.features, samples.labels, samples.prototypes)
    assert all(np.isfinite(value) for value in result.values.values())
    assert result.absent["nc3_cosine"] == "prototypes must be nonzero; class 1 is zero"


def test_published_form_without_a_sample_mean() -> None:
    frame = simplex_etf(4, 6)
    result = measure_detailed(frame.repeat(3, 1), torch.arange(12) % 4, frame)
    assert "direction of the sample mean, which is zero" in result.absent["hdr_published"]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": np.ones(6)}, r"features must have shape \(samples, dim\), got \(6,\)"),
        ({"features": np.ones((6, 3), dtype=int)}, "features must be float16, .* got int64"),
        ({"features": np.ones((0, 3)), "labels": np.ones(0, dtype=int)}, "at least one sample"),
        (
            {"labels": np.arange(5)},
            r"labels must hold one class index per sample, shape \(6,\), got \(5,\)",
        ),
        ({"labels": np.ones(6)}, "labels must be integer class indices, got float64"),
        (
            {"labels": np.array([0, 1, 2, 0, 1, 7])},
            "labels must be between 0 and 2 for 3 classes, got 7",
        ),
        (
            {"labels": np.array([0, 1, 2, 0, 1, -1])},
            "labels must be between 0 and 2 for 3 classes, got -1",
        ),
        (
            {"prototypes": np.ones((3, 4))},
            r"prototypes must have shape \(classes, 3\), got \(3, 4\)",
        ),
        ({"prototypes": np.full((3, 3), np.nan)}, "prototypes must be finite"),
        (
            {"prototypes": np.ones((3, 3), dtype=int)},
            "prototypes must be floating-point numbers, got int64",
        ),
        (
            {"prototypes": np.ones((3, 3), dtype=complex)},
            "prototypes must be floating-point numbers, got complex128",
        ),
        (
            {"labels": np.array([0, 1, 2, 0, 1, 10**12]), "prototypes": None},
            r"classes 3, 4, 5, 6, 7 and \d+ more have none",
        ),
        (
            {"labels": np.array([0, 1, 2, 0, 1, 2**64 - 1], dtype=np.uint64), "prototypes": None},
            "labels must be less than 2",
        ),
        (
            {"features": torch.ones(6, 3).to(torch.float8_e5m2)},
            "features must be float16, .*float8",
        ),
        (
            {"labels": torch.ones(6, dtype=torch.bfloat16)},
            "labels must be integer class indices, got torch.bfloat16",
        ),
        (
            {"features": 1e80 * np.eye(3).repeat(2, 0), "space": "raw"},
            "features must have norms between 1e-70 and 1e70",
        ),
        (
            {"features": 1e-80 * np.eye(3).repeat(2, 0), "space": "raw"},
            "got 1.0e-80; rescale them",
        ),
        (
            {"features": 1e170 * np.eye(3).repeat(2, 0)},
            "features must have finite norms",
        ),
        ({"bias": np.ones(3)}, "bias requires space='raw'"),
        ({"bias": np.ones(4), "space": "raw"}, "bias must hold one number per class"),
        ({"space": "cube"}, "space must be 'sphere' or 'raw', got 'cube'"),
        ({"classes": "some"}, "classes must be 'all' or 'present', got 'some'"),
        ({"metrics": ["nc5"]}, "metrics must be 'all', 'cheap', groups .* got 'nc5'"),
        ({"metrics": ["nc4_agrement"]}, "did you mean 'nc4_agreement'"),
        ({"metrics": []}, "metrics must name at least one metric, got an empty list"),
        ({"num_classes": True}, "num_classes must be an integer of at least 2, got True"),
        ({"num_classes": -3}, "num_classes must be an integer of at least 2, got -3"),
        ({"num_classes": 0}, "num_classes must be an integer of at least 2, got 0"),
        ({"num_classes": 5}, "num_classes must match the head, which has 3 classes, got 5"),
        ({"labels": [0.0, 0, 1, 1, 2, 2]}, "labels must be integer class indices, got float64"),
        ({"labels": ["a"] * 6}, "labels must be integer class indices"),
        ({"labels": [[0], [1, 2]]}, "labels must be an array or equal-length sequences"),
        ({"labels": 3}, r"labels must hold one class index per sample, shape \(6,\), got \(\)"),
        ({"features": [[1.0], [1.0, 2.0]]}, "features must be an array or equal-length sequences"),
        ({"features": None}, "features must be float16, .* got object"),
        (
            {"labels": np.zeros(6, dtype=int), "prototypes": None},
            "at least two classes, got 1",
        ),
    ],
)
def test_bad_input(change: dict, message: str) -> None:
    given = {
        "features": np.eye(3).repeat(2, 0),
        "labels": np.arange(6) // 2,
        "prototypes": np.eye(3),
    } | change
    with pytest.raises(ValueError, match=message):
        measure(given.pop("features"), given.pop("labels"), given.pop("prototypes"), **given)


@pytest.mark.bad_input
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_samples_that_are_not_finite_are_named(bad: float) -> None:
    samples = cloud([20, 20, 20], 5)
    samples.features[17, 3] = bad
    with pytest.raises(
        ValueError, match="features must be finite, got NaN or infinity in sample 17"
    ):
        measure(samples.features, samples.labels)
    metric = NeuralCollapse(5, 3)
    metric.update(torch.from_numpy(samples.features), torch.from_numpy(samples.labels))
    with pytest.raises(
        ValueError, match=f"features must be finite .* class {samples.labels[17]} has others"
    ):
        metric.compute()


def test_lists_are_accepted() -> None:
    samples = cloud([5, 5, 5], 4, dtype=np.float64)
    expected = measure(samples.features, samples.labels, samples.prototypes)
    lists = (samples.features.tolist(), samples.labels.tolist(), samples.prototypes.tolist())
    assert measure(*lists) == pytest.approx(expected)
    assert measure(samples.features, lists[1], samples.prototypes) == expected
    assert measure(torch.from_numpy(samples.features), lists[1], samples.prototypes) == expected


def test_progress_ends_at_one() -> None:
    samples = cloud([20, 20, 20], 5)
    fractions: list[float] = []
    measure(samples.features, samples.labels, progress=fractions.append)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1


def test_large_labels_need_no_memory() -> None:
    labels = np.array([7, 10**12, 2**40]).repeat(5)
    result = measure_detailed(np.eye(3).repeat(5, 0), labels, classes="present")
    assert result.classes == [7, 10**12, 2**40]
    assert result.values["inter_effective_rank"] == pytest.approx(2)


@pytest.mark.parametrize("scale", [1e-60, 1e-30, 1e30, 1e60])
@pytest.mark.parametrize("space", ["sphere", "raw"])
def test_values_do_not_depend_on_the_scale(scale: float, space: Space) -> None:
    samples = cloud([9, 9, 9, 9], 6, dtype=np.float64)
    prototypes = samples.prototypes.astype(float)
    expected = measure(samples.features, samples.labels, prototypes, space=space)
    scaled = measure(scale * samples.features, samples.labels, scale * prototypes, space=space)
    for name, value in expected.items():
        if space == "sphere" or "alignment" not in name:
            assert scaled[name] == pytest.approx(value, rel=1e-9), name


def test_half_precision_rounding_is_not_a_direction_of_the_means() -> None:
    """Ten classes in a plane of a 64-dimensional space, plus float16 rounding in the rest."""
    labels = torch.arange(1000) // 100
    plane = torch.randn(10, 2)[labels] + 1e-3 * torch.randn(1000, 2)
    features = plane @ torch.randn(2, 64)
    expected = measure(features.double(), labels, space="raw")["nc1_trace"]
    assert measure(features.half(), labels, space="raw")["nc1_trace"] < 10 * expected
    assert _streamed(features.half(), labels, 10, 99, space="raw")["nc1_trace"] < 10 * expected


def test_the_rank_of_means_that_differ_by_rounding_is_zero() -> None:
    base = torch.ones(3, 50) + torch.tensor([[0.0], [1.0], [2.0]]) * torch.finfo(torch.float32).eps
    labels = torch.arange(12) % 3
    result = measure_detailed(base[labels], labels, base, space="raw")
    assert result.values["inter_effective_rank"] == 0
    assert result.values["weights_effective_rank"] == 0


def test_bfloat16_features_far_from_the_origin() -> None:
    """Class means whose distances are 1% of their norms."""
    means = 20 + torch.randn(4, 64)
    labels = torch.arange(400) % 4
    features = (means[labels] + torch.randn(400, 64)).bfloat16()
    result = measure_detailed(features, labels)
    assert result.values["nc1_ratio"] == pytest.approx(
        measure(features.double(), labels)["nc1_ratio"], rel=1e-9
    )
    assert "nc2_simplex" in result.values


@pytest.mark.parametrize("seed", range(8))
def test_two_classes_with_permuted_samples_coincide(seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples, other = rng.standard_normal((2, 500, 6))
    features = np.concatenate([samples, samples[rng.permutation(500)], other])
    result = measure_detailed(features, np.arange(1500) // 500)
    assert {"gnc2_mean", "gnc2_variance", "cdnv"} <= set(result.absent)


def test_an_error_restores_the_number_of_blas_threads() -> None:
    from threadpoolctl import threadpool_info

    before = [library["num_threads"] for library in threadpool_info()]
    features = np.random.default_rng(0).standard_normal((40, 5))
    features[3] = np.nan
    with pytest.raises(ValueError, match="in sample 3") as held:
        measure(features, np.arange(40) % 4)
    assert held.value is not None
    assert [library["num_threads"] for library in threadpool_info()] == before


def test_bias_without_prototypes() -> None:
    samples = cloud([6, 6, 6], 5)
    result = measure(samples.features, samples.labels, bias=samples.bias, space="raw")
    assert result["bias_spread"] == pytest.approx(samples.bias.astype(float).std())
    assert "bias_offset" not in result


@pytest.mark.parametrize("index", [0, 5, 11])
def test_a_single_negative_entry_is_noticed(index: int) -> None:
    """The sign decides what is attainable: non-negative features cannot form a simplex."""
    features, labels = torch.rand(12, 4) + 0.1, torch.arange(12) // 4
    assert measure_detailed(features, labels).sign == "non-negative"
    features[index, 2] = -0.1
    assert measure_detailed(features, labels).sign == "any"
