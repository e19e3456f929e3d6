"""Where metrics are hardest: tiny variances, collapsed, lone and missing classes, offsets, and what has no value."""

import numpy as np
import pytest
import torch

from protosphere.geometry import simplex_etf
from protosphere.metrics import NeuralCollapse, measure_detailed, measure
from support.clouds import cloud


def _streamed(
    features: torch.Tensor, labels: torch.Tensor, num_classes: int, batch: int, **options
) -> dict[str, float]:
    metric = NeuralCollapse(features.shape[1], num_classes, **options)
    for part in torch.arange(len(labels)).split(batch):
        metric.update(features[part], labels[part])
    return {name: float(value) for name, value in metric.compute().items()}


def test_a_variance_of_1e_8_survives_float32() -> None:
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
def test_collapsed_classes_have_rank_zero_however_they_are_batched(
    dtype: torch.dtype, space: str
) -> None:
    points = torch.randn(3, 7, dtype=torch.float64).add(20).to(dtype)
    labels = torch.arange(3).repeat_interleave(333)
    features = points[labels]
    features[labels == 2] += torch.randn(333, 7).to(dtype)
    expected = measure(features[labels == 2].repeat(2, 1), torch.arange(666) // 333, space=space)
    for found in (
        measure(features, labels, space=space),
        _streamed(features, labels, 3, 50, space=space),
    ):
        assert found["intra_effective_rank"] == pytest.approx(
            expected["intra_effective_rank"] / 3, rel=1e-6
        )


def test_rounding_of_float32_is_no_spread() -> None:
    """A direction scaled by many lengths and rounded has come from one point on the sphere."""
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


def test_a_large_common_offset_costs_no_digits() -> None:
    samples = cloud([40, 40, 40], 8, dtype=np.float64, spread=0.1)
    moved = np.round(samples.features * 2**20) / 2**20  # So that the offset is added exactly.
    here = measure(moved, samples.labels, space="raw")
    for found in (
        measure(moved + 2.0**20, samples.labels, space="raw"),
        _streamed(
            torch.from_numpy(moved + 2.0**20), torch.from_numpy(samples.labels), 3, 13, space="raw"
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
            assert found[name] == pytest.approx(here[name], rel=1e-7), name


def test_a_class_of_one_sample() -> None:
    samples = cloud([1, 6, 6], 5)
    found = measure_detailed(samples.features, samples.labels, samples.prototypes)
    assert (
        found.absent["intra_effective_rank"]
        == "a covariance needs two samples of a class; class 0 has fewer"
    )
    assert (
        found.absent["cdnv"] == "variance within a class needs two samples of it; class 0 has one"
    )
    assert {"nc1_ratio", "instance_alignment", "nc2_simplex", "nc4_agreement"} <= set(found.values)


def test_classes_of_one_sample_each() -> None:
    found = measure_detailed(torch.eye(4), torch.arange(4), torch.eye(4))
    assert {"nc1_ratio", "nc1_trace", "cdnv", "instance_alignment", "intra_effective_rank"} <= set(
        found.absent
    )
    assert found.values["nc2_simplex"] == pytest.approx(0, abs=1e-12)


@pytest.mark.bad_input
def test_a_class_without_samples_is_named_or_left_out() -> None:
    samples = cloud([5, 5, 5, 5, 5], 6)
    kept = samples.labels != 2
    features, labels = samples.features[kept], samples.labels[kept]
    with pytest.raises(
        ValueError,
        match=r"every class must have a sample, or classes='present' .* class 2 has none",
    ):
        measure(features, labels, samples.prototypes)
    others = [0, 1, 3, 4]
    found = measure_detailed(features, labels, samples.prototypes, classes="present")
    assert found.classes == others
    renamed = np.array([0, 1, -1, 2, 3])[labels]
    expected = measure(features, renamed, samples.prototypes[others])
    assert found.values == expected
    tensors = (
        torch.from_numpy(features),
        torch.from_numpy(labels),
        torch.from_numpy(samples.prototypes),
    )
    streamed = _streamed(*tensors[:2], 5, 4, prototypes=tensors[2], classes="present")
    assert set(streamed) == set(expected) - {"nc4_agreement"}
    for name, value in streamed.items():
        assert value == pytest.approx(expected[name], rel=1e-9, abs=1e-12)


def test_the_streaming_metric_leaves_out_what_needs_a_class_that_has_not_come() -> None:
    metric = NeuralCollapse(5, 3, torch.randn(3, 5))
    metric.update(torch.randn(8, 5), torch.arange(8) % 2)
    assert set(metric.compute()) == {
        "instance_alignment",
        "weights_effective_rank",
        "weight_instance_alignment",
        *(f"nc2_{name}_weights" for name in ("norms", "angles", "simplex", "gram")),
    }
    assert metric.absent["nc2_simplex"] == "every class must have a sample; class 2 has none"
    metric.update(torch.randn(8, 5), torch.full((8,), 2))
    assert "nc2_simplex" in metric.compute()
    assert "nc2_simplex" not in metric.absent


def test_means_that_coincide_have_no_angles() -> None:
    features = torch.tensor([[1.0, 1.0], [1.0, -1.0]]).repeat(6, 1)
    found = measure_detailed(features, torch.arange(12) // 4, torch.eye(3, 2))
    assert found.values["inter_effective_rank"] == 0
    assert {
        "nc1_ratio",
        "nc1_trace",
        "cdnv",
        "nc2_norms",
        "nc2_simplex",
        "nc3_cosine",
        "mir",
        "gnc2_mean",
    } <= set(found.absent)
    assert found.absent["nc1_ratio"] == "class means must differ; they coincide"


def test_two_of_several_means_coincide() -> None:
    points = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    noise = torch.randn(40, 3) * 0.01
    labels = torch.arange(160) // 40
    found = measure_detailed(points[labels] + noise.repeat(4, 1), labels, space="raw")
    assert found.absent["cdnv"] == "class means must differ; two of them coincide"
    assert (
        found.absent["gnc2_mean"]
        == "centered class means must have different directions; two of them agree"
    )
    assert found.values["nc1_ratio"] > 0


def test_a_zero_feature_and_a_zero_prototype_do_no_harm() -> None:
    samples = cloud([6, 6, 6], 5)
    samples.features[0], samples.prototypes[1] = 0, 0
    found = measure_detailed(samples.features, samples.labels, samples.prototypes)
    assert all(np.isfinite(value) for value in found.values.values())
    assert found.absent["nc3_cosine"] == "prototypes must have a direction; that of class 1 is zero"


def test_the_published_form_without_a_sample_mean() -> None:
    frame = simplex_etf(4, 6)
    found = measure_detailed(frame.repeat(3, 1), torch.arange(12) % 4, frame)
    assert "direction of the sample mean, which is zero" in found.absent["hdr_published"]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": np.ones(6)}, r"features must be a matrix .* got \(6,\)"),
        ({"features": np.ones((6, 3), dtype=int)}, "features must be a matrix"),
        ({"features": np.ones((0, 3)), "labels": np.ones(0, dtype=int)}, "with samples"),
        (
            {"labels": np.arange(5)},
            r"labels must hold one class index per sample, shape \(6,\); got \(5,\)",
        ),
        ({"labels": np.ones(6)}, "labels must hold one class index per sample"),
        ({"labels": np.array([0, 1, 2, 0, 1, 7])}, r"labels must lie in 0..2 for 3 classes; got 7"),
        (
            {"labels": np.array([0, 1, 2, 0, 1, -1])},
            r"labels must lie in 0..2 for 3 classes; got -1",
        ),
        (
            {"prototypes": np.ones((3, 4))},
            r"prototypes must be a matrix \(classes, 3\); got \(3, 4\)",
        ),
        ({"prototypes": np.full((3, 3), np.nan)}, "prototypes must be finite"),
        (
            {"prototypes": np.ones((3, 3), dtype=int)},
            "prototypes must be floating numbers; got int64",
        ),
        (
            {"prototypes": np.ones((3, 3), dtype=complex)},
            "prototypes must be floating numbers; got complex128",
        ),
        (
            {"labels": np.array([0, 1, 2, 0, 1, 10**12]), "prototypes": None},
            r"classes 3, 4, 5, 6, 7 and \d+ more have none",
        ),
        (
            {"labels": np.array([0, 1, 2, 0, 1, 2**64 - 1], dtype=np.uint64), "prototypes": None},
            "must lie below",
        ),
        (
            {"features": torch.ones(6, 3).to(torch.float8_e5m2)},
            r"features must be a matrix .*float8",
        ),
        (
            {"labels": torch.ones(6, dtype=torch.bfloat16)},
            "labels must hold one class index per sample",
        ),
        (
            {"features": 1e80 * np.eye(3).repeat(2, 0), "space": "raw"},
            "features must have lengths between 1e-70 and 1e70",
        ),
        (
            {"features": 1e-80 * np.eye(3).repeat(2, 0), "space": "raw"},
            "so rescale them; got 1.0e-80",
        ),
        (
            {"features": 1e170 * np.eye(3).repeat(2, 0)},
            "features must have lengths that can be calculated",
        ),
        ({"bias": np.ones(3)}, "a bias must come with space='raw'"),
        ({"bias": np.ones(4), "space": "raw"}, "bias must hold one number per class"),
        ({"space": "cube"}, "space must be 'sphere' or 'raw'; got 'cube'"),
        ({"classes": "some"}, "classes must be 'all' or 'present'; got 'some'"),
        ({"metrics": ["nc5"]}, "metrics must be 'all', 'cheap', groups .* got 'nc5'"),
        (
            {"labels": np.zeros(6, dtype=int), "prototypes": None},
            "two classes or more; got samples of 1",
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
def test_features_that_are_not_finite_are_named(bad: float) -> None:
    samples = cloud([20, 20, 20], 5)
    samples.features[17, 3] = bad
    with pytest.raises(
        ValueError, match="features must be finite; sample 17 holds NaN or infinity"
    ):
        measure(samples.features, samples.labels)
    metric = NeuralCollapse(5, 3)
    metric.update(torch.from_numpy(samples.features), torch.from_numpy(samples.labels))
    with pytest.raises(
        ValueError, match=f"those of class {samples.labels[17]} hold NaN, infinity or too long ones"
    ):
        metric.compute()


def test_progress_ends_at_one() -> None:
    samples = cloud([20, 20, 20], 5)
    seen: list[float] = []
    measure(samples.features, samples.labels, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1


def test_labels_far_apart_cost_nothing() -> None:
    labels = np.array([7, 10**12, 2**40]).repeat(5)
    found = measure_detailed(np.eye(3).repeat(5, 0), labels, classes="present")
    assert found.classes == [7, 10**12, 2**40]
    assert found.values["inter_effective_rank"] == pytest.approx(2)


@pytest.mark.parametrize("scale", [1e-60, 1e-30, 1e30, 1e60])
@pytest.mark.parametrize("space", ["sphere", "raw"])
def test_any_sensible_scale(scale: float, space: str) -> None:
    samples = cloud([9, 9, 9, 9], 6, dtype=np.float64)
    prototypes = samples.prototypes.astype(float)
    here = measure(samples.features, samples.labels, prototypes, space=space)
    there = measure(scale * samples.features, samples.labels, scale * prototypes, space=space)
    for name, value in here.items():
        if space == "sphere" or "alignment" not in name:
            assert there[name] == pytest.approx(value, rel=1e-9), name


def test_rounding_of_half_precision_is_no_direction_of_the_means() -> None:
    """Ten classes in a plane of 64 dimensions: the rounding of float16 fills the others."""
    labels = torch.arange(1000) // 100
    plane = torch.randn(10, 2)[labels] + 1e-3 * torch.randn(1000, 2)
    features = plane @ torch.randn(2, 64)
    expected = measure(features.double(), labels, space="raw")["nc1_trace"]
    assert measure(features.half(), labels, space="raw")["nc1_trace"] < 10 * expected
    assert _streamed(features.half(), labels, 10, 99, space="raw")["nc1_trace"] < 10 * expected


def test_the_rank_of_means_that_differ_by_rounding_is_zero() -> None:
    base = torch.ones(3, 50) + torch.tensor([[0.0], [1.0], [2.0]]) * torch.finfo(torch.float32).eps
    labels = torch.arange(12) % 3
    found = measure_detailed(base[labels], labels, base, space="raw")
    assert found.values["inter_effective_rank"] == 0
    assert found.values["weights_effective_rank"] == 0


def test_coarse_features_far_from_the_origin_keep_their_values() -> None:
    """Means that stand 1 % of their length apart, in bfloat16."""
    means = 20 + torch.randn(4, 64)
    labels = torch.arange(400) % 4
    features = (means[labels] + torch.randn(400, 64)).bfloat16()
    found = measure_detailed(features, labels)
    assert found.values["nc1_ratio"] == pytest.approx(
        measure(features.double(), labels)["nc1_ratio"], rel=1e-9
    )
    assert "nc2_simplex" in found.values


@pytest.mark.parametrize("seed", range(8))
def test_the_same_class_twice_in_another_order_has_no_distance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    own, other = rng.standard_normal((2, 500, 6))
    features = np.concatenate([own, own[rng.permutation(500)], other])
    found = measure_detailed(features, np.arange(1500) // 500)
    assert {"gnc2_mean", "gnc2_variance", "cdnv"} <= set(found.absent)


def test_an_error_leaves_the_threads_of_the_linear_algebra_alone() -> None:
    from threadpoolctl import threadpool_info

    before = [library["num_threads"] for library in threadpool_info()]
    features = np.random.default_rng(0).standard_normal((40, 5))
    features[3] = np.nan
    with pytest.raises(ValueError, match="sample 3 holds") as held:
        measure(features, np.arange(40) % 4)
    assert held.value is not None
    assert [library["num_threads"] for library in threadpool_info()] == before


def test_a_bias_without_prototypes() -> None:
    samples = cloud([6, 6, 6], 5)
    found = measure(samples.features, samples.labels, bias=samples.bias, space="raw")
    assert found["bias_spread"] == pytest.approx(samples.bias.astype(float).std())
    assert "bias_offset" not in found


@pytest.mark.parametrize("place", [0, 5, 11])
def test_one_negative_entry_is_seen_wherever_it_is(place: int) -> None:
    """It decides what is attainable: features that are nowhere negative cannot reach the simplex."""
    features, labels = torch.rand(12, 4) + 0.1, torch.arange(12) // 4
    assert measure_detailed(features, labels).sign == "non-negative"
    features[place, 2] = -0.1
    assert measure_detailed(features, labels).sign == "any"
