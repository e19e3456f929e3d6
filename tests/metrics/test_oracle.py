"""Every metric against its definition: stored, streamed, from disk, in blocks, on the sphere and raw."""

from pathlib import Path

import numpy as np
import pytest
import torch

from protosphere.metrics import DEFINITIONS, NeuralCollapse, measure, visits
from support import collapse_oracle
from support.clouds import CLOUDS, Cloud, cloud

SPACES = ["sphere", "raw"]


def _expected(samples: Cloud, space: str) -> dict[str, float]:
    bias = samples.bias if space == "raw" else None
    return collapse_oracle.metrics(
        samples.features, samples.labels, samples.prototypes, space=space, bias=bias
    )


def _agree(found: dict, expected: dict[str, float], *, tolerance: float = 1e-8) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        # A variance of nearly equal numbers and 1 − cos of nearly equal vectors lose digits in the oracle itself.
        assert float(found[name]) == pytest.approx(value, rel=tolerance, abs=1e-13), name


def test_the_oracle_knows_every_metric() -> None:
    samples = cloud(**CLOUDS["uneven"])
    assert set(_expected(samples, "sphere")) | set(_expected(samples, "raw")) == set(DEFINITIONS)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", CLOUDS)
def test_measure(name: str, space: str) -> None:
    samples = cloud(**CLOUDS[name])
    bias = samples.bias if space == "raw" else None
    found = measure(samples.features, samples.labels, samples.prototypes, space=space, bias=bias)
    _agree(found, _expected(samples, space))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", CLOUDS)
def test_streaming(name: str, space: str) -> None:
    samples = cloud(**CLOUDS[name])
    features, labels, prototypes, bias = map(torch.from_numpy, samples)
    head_bias = bias if space == "raw" else None
    metric = NeuralCollapse(
        features.shape[1], len(prototypes), prototypes, space=space, bias=head_bias
    )
    for batch in torch.arange(len(labels)).split(7):
        metric.update(features[batch], labels[batch])
    expected = _expected(samples, space)
    del expected["nc4_agreement"]
    _agree(metric.compute(), expected)


@pytest.mark.parametrize("budget", [1, 1000, 10**9])
@pytest.mark.parametrize(
    "name", ["uneven", "more dimensions than samples", "more classes than dimensions"]
)
def test_from_disk_class_group_by_class_group(name: str, budget: int, tmp_path: Path) -> None:
    samples = cloud(**CLOUDS[name])
    np.save(tmp_path / "features.npy", samples.features)
    features = np.load(tmp_path / "features.npy", mmap_mode="r")
    found = measure(features, samples.labels, samples.prototypes, memory_budget=budget)
    _agree(found, measure(samples.features, samples.labels, samples.prototypes), tolerance=1e-13)
    _agree(found, _expected(samples, "sphere"))


@pytest.mark.parametrize("space", SPACES)
def test_classes_larger_than_a_block(space: str, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = cloud([90, 41, 13], 6)
    monkeypatch.setattr(visits, "_BLOCK", 8 * 6 * 7)
    found = measure(samples.features, samples.labels, samples.prototypes, space=space)
    expected = collapse_oracle.metrics(
        samples.features, samples.labels, samples.prototypes, space=space
    )
    _agree(found, expected)


def test_panels_of_more_dimensions_than_one_holds() -> None:
    samples = cloud([20, 30, 25], 300)
    features, labels, prototypes, _ = map(torch.from_numpy, samples)
    metric = NeuralCollapse(300, 3, prototypes)
    for batch in torch.arange(len(labels)).split(11):
        metric.update(features[batch], labels[batch])
    expected = _expected(samples, "sphere")
    del expected["nc4_agreement"]
    _agree(metric.compute(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_tensors_of_every_precision(dtype: torch.dtype) -> None:
    samples = cloud([12, 12, 12], 9)
    features, labels, prototypes, _ = map(torch.from_numpy, samples)
    features = features.to(dtype)
    rounded = samples._replace(features=features.double().numpy())
    _agree(measure(features, labels, prototypes), _expected(rounded, "sphere"))
    metric = NeuralCollapse(9, 3, prototypes)
    metric.update(features, labels)
    expected = _expected(rounded, "sphere")
    del expected["nc4_agreement"]
    _agree(metric.compute(), expected)


def test_rows_in_other_layouts_and_byte_orders() -> None:
    samples = cloud([12, 12, 12], 9)
    wide = np.repeat(samples.features, 2, axis=1)[:, ::2]
    upside = torch.from_numpy(samples.features.T.copy()).T
    expected = _expected(samples, "sphere")
    for features in (
        wide,
        np.asfortranarray(samples.features),
        upside,
        samples.features.astype(">f4"),
    ):
        _agree(
            measure(features, samples.labels.astype(">i8"), samples.prototypes.astype(">f4")),
            expected,
        )
