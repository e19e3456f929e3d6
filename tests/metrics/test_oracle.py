"""Every metric against its definition: stored, streamed, from disk, in blocks, in both spaces."""

from pathlib import Path

import numpy as np
import pytest
import torch

from protosphere.geometry.class_statistics import Space
from protosphere.metrics import CATALOG, NeuralCollapse, measure, sample_source
from support import collapse_oracle
from support.clouds import CLOUDS, STREAMING, Cloud, cloud, defined

SPACES: list[Space] = ["sphere", "raw"]


def _expected(samples: Cloud, space: Space) -> dict[str, float]:
    bias = samples.bias if space == "raw" else None
    return collapse_oracle.metrics(
        samples.features, samples.labels, samples.prototypes, space=space, bias=bias
    )


def _streaming(values: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if name in STREAMING}


def _assert_equal(values: dict, expected: dict[str, float], *, tolerance: float = 1e-8) -> None:
    assert set(values) == set(expected)
    for name, value in expected.items():
        # The oracle itself is inexact for variances of nearly equal numbers and for 1 − cos.
        assert float(values[name]) == pytest.approx(value, rel=tolerance, abs=1e-13), name


def test_the_oracle_has_every_metric() -> None:
    samples = cloud(**CLOUDS["imbalanced"])
    assert set(_expected(samples, "sphere")) | set(_expected(samples, "raw")) == set(CATALOG)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", CLOUDS)
def test_measure_equals_the_definition(name: str, space: Space) -> None:
    samples = cloud(**CLOUDS[name])
    bias = samples.bias if space == "raw" else None
    values = measure(samples.features, samples.labels, samples.prototypes, space=space, bias=bias)
    _assert_equal(values, _expected(samples, space))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", CLOUDS)
def test_streaming_equals_the_definition(name: str, space: Space) -> None:
    samples = cloud(**CLOUDS[name])
    features, labels, prototypes, bias = map(torch.from_numpy, samples)
    head_bias = bias if space == "raw" else None
    metric = NeuralCollapse(
        features.shape[1], len(prototypes), prototypes, space=space, bias=head_bias
    )
    for batch in torch.arange(len(labels)).split(7):
        metric.update(features[batch], labels[batch])
    expected = _streaming(_expected(samples, space))
    _assert_equal(defined(metric.compute()), expected)


@pytest.mark.parametrize("budget", [1, 1000, 10**9])
@pytest.mark.parametrize(
    "name", ["imbalanced", "more dimensions than samples", "more classes than dimensions"]
)
def test_memory_mapped_features_within_a_budget(name: str, budget: int, tmp_path: Path) -> None:
    samples = cloud(**CLOUDS[name])
    np.save(tmp_path / "features.npy", samples.features)
    features = np.load(tmp_path / "features.npy", mmap_mode="r")
    values = measure(features, samples.labels, samples.prototypes, memory_budget=budget)
    _assert_equal(
        values, measure(samples.features, samples.labels, samples.prototypes), tolerance=1e-13
    )
    _assert_equal(values, _expected(samples, "sphere"))


@pytest.mark.parametrize("space", SPACES)
def test_classes_larger_than_a_block(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = cloud([90, 41, 13], 6)
    monkeypatch.setattr(sample_source, "_CPU_BLOCK_BYTES", 8 * 6 * 7)
    values = measure(samples.features, samples.labels, samples.prototypes, space=space)
    expected = collapse_oracle.metrics(
        samples.features, samples.labels, samples.prototypes, space=space
    )
    _assert_equal(values, expected)


def test_more_dimensions_than_one_scatter_tile() -> None:
    samples = cloud([20, 30, 25], 300)
    features, labels, prototypes, _ = map(torch.from_numpy, samples)
    metric = NeuralCollapse(300, 3, prototypes)
    for batch in torch.arange(len(labels)).split(11):
        metric.update(features[batch], labels[batch])
    expected = _streaming(_expected(samples, "sphere"))
    _assert_equal(defined(metric.compute()), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_every_floating_dtype(dtype: torch.dtype) -> None:
    samples = cloud([12, 12, 12], 9)
    features, labels, prototypes, _ = map(torch.from_numpy, samples)
    features = features.to(dtype)
    rounded = samples._replace(features=features.double().numpy())
    _assert_equal(measure(features, labels, prototypes), _expected(rounded, "sphere"))
    metric = NeuralCollapse(9, 3, prototypes)
    metric.update(features, labels)
    expected = _streaming(_expected(rounded, "sphere"))
    _assert_equal(defined(metric.compute()), expected)


def test_any_memory_layout_and_byte_order() -> None:
    samples = cloud([12, 12, 12], 9)
    strided = np.repeat(samples.features, 2, axis=1)[:, ::2]
    transposed = torch.from_numpy(samples.features.T.copy()).T
    expected = _expected(samples, "sphere")
    for features in (
        strided,
        np.asfortranarray(samples.features),
        transposed,
        samples.features.astype(">f4"),
    ):
        _assert_equal(
            measure(features, samples.labels.astype(">i8"), samples.prototypes.astype(">f4")),
            expected,
        )
