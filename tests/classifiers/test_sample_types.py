"""Class means and scatter of NumPy arrays, and of any samples with another default device."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from protosphere.classifiers import (
    PrototypeClassifier,
    class_means,
    class_scatter,
    cross_validated_shrinkage,
    empty_means,
    empty_scatter,
    whitened_class_means,
)

GENERATOR = np.random.default_rng(0)
LABELS = GENERATOR.integers(0, 3, 60)
FEATURES = GENERATOR.normal(size=(60, 5)) + 3 * np.eye(3, 5)[LABELS]
WEIGHTS = GENERATOR.uniform(0.5, 2, 60)
FUNCTIONS = [
    lambda *samples, **options: class_means(*samples, **options).means,
    lambda *samples, **options: class_scatter(*samples, **options).within,
    lambda *samples, **options: whitened_class_means(*samples, **options).prototypes,
    lambda *samples, **options: torch.tensor(
        0.5 if (value := cross_validated_shrinkage(*samples, **options)) == "auto" else value
    ),
]
every_function = pytest.mark.parametrize(
    "function", FUNCTIONS, ids=["means", "scatter", "whitened", "shrinkage"]
)


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.setflags(write=False)
    return array


@every_function
@pytest.mark.parametrize(
    ("features", "labels", "weights"),
    [
        (FEATURES, LABELS, None),
        (FEATURES, LABELS, WEIGHTS),
        (FEATURES[::-1][::-1], LABELS[::-1][::-1], WEIGHTS[::-1][::-1]),
        (FEATURES.astype(">f8"), LABELS.astype(">i4"), WEIGHTS.astype(">f8")),
        (FEATURES.astype(np.longdouble), LABELS.astype(np.uint16), WEIGHTS.astype(np.longdouble)),
        (read_only(FEATURES), read_only(LABELS), read_only(WEIGHTS)),
        (np.asfortranarray(FEATURES), LABELS.astype(np.uint64), torch.from_numpy(WEIGHTS)),
    ],
    ids=["plain", "weights", "strides", "byte order", "long double", "read-only", "mixed"],
)
def test_numpy_arrays_give_the_results_of_tensors(
    function: Any, features: Any, labels: Any, weights: Any
) -> None:
    tensors = torch.from_numpy(FEATURES), torch.from_numpy(LABELS)
    of_tensors = None if weights is None else torch.from_numpy(WEIGHTS)
    expected = function(*tensors, num_classes=3, weights=of_tensors)
    found = function(features, labels, num_classes=3, weights=weights)
    torch.testing.assert_close(found, expected)


def test_batches_may_be_numpy_arrays() -> None:
    means = empty_means(3, 5).add(FEATURES, LABELS, WEIGHTS)
    scatter = empty_scatter(3, 5).add(FEATURES, LABELS, WEIGHTS)
    expected = class_scatter(FEATURES, LABELS, num_classes=3, weights=WEIGHTS)
    torch.testing.assert_close(means.sums, expected.means.sums)
    torch.testing.assert_close(scatter.within, expected.within)


@pytest.mark.bad_input
@every_function
def test_other_types_are_refused(function: Any) -> None:
    compute = partial(function, num_classes=3)
    with pytest.raises(TypeError, match="features must be a tensor or a NumPy array, got list"):
        compute(FEATURES.tolist(), LABELS)
    with pytest.raises(TypeError, match="labels must be a tensor or a NumPy array, got list"):
        compute(FEATURES, LABELS.tolist())
    with pytest.raises(TypeError, match="weights must be a tensor or a NumPy array, got list"):
        compute(FEATURES, LABELS, weights=WEIGHTS.tolist())
    with pytest.raises(ValueError, match="labels must be integer class indices, got <U1"):
        compute(FEATURES, LABELS.astype("<U1"))
    with pytest.raises(ValueError, match="weights must hold real numbers, got <U1"):
        compute(FEATURES, LABELS, weights=LABELS.astype("<U1"))


@pytest.fixture
def another_default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("another_default_device")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shrinkage", [None, "auto", "cv"])
def test_numpy_data_are_fitted_with_another_default_device(
    dtype: Any, shrinkage: Any, tmp_path: Any
) -> None:
    options = {} if shrinkage is None else {"whitening": "shrunk", "shrinkage": shrinkage}
    features = FEATURES.astype(dtype)
    classifier = PrototypeClassifier(**options).fit(features, LABELS)
    assert classifier.score(features, LABELS) > 0.8
    expected = classifier.scores(features) / 0.1
    inputs = torch.from_numpy(features).float()
    logits = classifier.to_module()(inputs).detach()
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-3, atol=1e-4)
    assert classifier.to_linear().weight.device.type == "cpu"
    classifier.save(tmp_path / "file")
    loaded = PrototypeClassifier.load(tmp_path / "file")
    assert np.array_equal(loaded.predict(features), classifier.predict(features))
    classifier.add_class(3, -features).remove_class(3).calibrate(features, LABELS)
    assert classifier.score(features, LABELS) > 0.8
