"""PrototypeClassifier as scikit-learn's users expect it: columns, attributes, probabilities."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from sklearn.exceptions import NotFittedError
from sklearn.utils import validation

from protosphere.classifiers import PrototypeClassifier, score_forms

NAMES = ["x", "y", "z"]
GENERATOR = np.random.default_rng(0)
LABELS = GENERATOR.integers(0, 4, 80)
FEATURES = (GENERATOR.normal(size=(80, 3)) + GENERATOR.normal(size=(4, 3))[LABELS]).astype("f4")


class Table(np.ndarray):
    """Stands for a DataFrame: an array with names of columns, which ``np.asarray`` drops."""

    columns: list[str]


def table(features: np.ndarray, columns: list[str]) -> Table:
    result = features.view(Table)
    result.columns = columns
    return result


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let scikit-learn find the names of the columns."""

    def names(features: Any) -> np.ndarray | None:
        return np.array(features.columns, object) if isinstance(features, Table) else None

    monkeypatch.setattr(validation, "_get_feature_names", names)


@pytest.mark.usefixtures("tables")
def test_the_columns_of_a_new_class_are_checked() -> None:
    classifier = PrototypeClassifier().fit(table(FEATURES, NAMES), LABELS)
    for method in (classifier.add_class, lambda name, x: classifier.partial_fit(x, [name] * 80)):
        with pytest.raises(ValueError, match="must be in the same order as they were in fit"):
            method(9, table(FEATURES[:, ::-1].copy(), NAMES[::-1]))
    classifier.add_class(9, table(FEATURES, NAMES))
    assert classifier.weights_[-1] == 80


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("whitening", ["none", "shrunk"])
def test_the_names_of_the_columns_are_saved(whitening: Any, tmp_path: Path) -> None:
    features = table(FEATURES, NAMES)
    classifier = PrototypeClassifier(whitening=whitening).fit(features, LABELS)
    classifier.save(tmp_path / "file")
    loaded = PrototypeClassifier.load(tmp_path / "file")
    assert loaded.feature_names_in_.tolist() == NAMES
    assert loaded.feature_names_in_.dtype == object
    assert np.array_equal(loaded.predict(features), classifier.predict(features))
    with pytest.raises(ValueError, match="must be in the same order as they were in fit"):
        loaded.predict(table(FEATURES, NAMES[::-1]))
    with safe_open(str(tmp_path / "file"), framework="np") as file:
        assert json.loads(file.metadata()["feature_names"]) == NAMES
    PrototypeClassifier(whitening=whitening).fit(FEATURES, LABELS).save(tmp_path / "file")
    assert not hasattr(PrototypeClassifier.load(tmp_path / "file"), "feature_names_in_")
    with safe_open(str(tmp_path / "file"), framework="np") as file:
        assert "feature_names" not in file.metadata()


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["classes_", "weights_", "sums_", "prototypes_", "shrinkage_"])
def test_an_attribute_is_absent_before_fitting(name: str) -> None:
    classifier = PrototypeClassifier()
    assert not hasattr(classifier, name)
    with pytest.raises(AttributeError, match=f"PrototypeClassifier has no {name} before it is fit"):
        getattr(classifier, name)
    with pytest.raises(NotFittedError):
        classifier.predict(FEATURES)


@pytest.mark.parametrize("rule", ["cosine", "nearest"])
@pytest.mark.parametrize("temperature", [0.1, 1e-4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_probabilities_are_logarithms_of_the_probabilities(
    rule: Any, temperature: float, dtype: Any
) -> None:
    features = FEATURES.astype(dtype)
    classifier = PrototypeClassifier(rule=rule, temperature=temperature)
    classifier.partial_fit(features, LABELS, classes=range(5))
    found = classifier.predict_log_proba(features)
    assert found.dtype == dtype
    logits = torch.from_numpy(classifier.scores(features)).double() / temperature
    np.testing.assert_allclose(found, logits.log_softmax(1), rtol=1e-4, atol=1e-5)
    assert np.isfinite(found[:, :4]).all()
    assert (found[:, 4] == -np.inf).all()
    probabilities = classifier.predict_proba(features)
    positive = probabilities > np.finfo(dtype).tiny
    np.testing.assert_allclose(
        found[positive], np.log(probabilities[positive]), rtol=1e-4, atol=1e-5
    )
    assert (temperature == 0.1) == bool((probabilities[:, :4] > 0).all())


@pytest.mark.parametrize("rule", ["cosine", "nearest"])
@pytest.mark.parametrize("whitening", ["none", "shrunk"])
def test_predictions_in_chunks_are_those_of_the_scores(
    rule: Any, whitening: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_forms, "_MIN_CHUNK_ROWS", 4)
    monkeypatch.setattr(score_forms, "_CHUNK_SCORES", 7 * 4)
    classifier = PrototypeClassifier(rule=rule, whitening=whitening).fit(FEATURES, LABELS)
    scores = classifier.scores(FEATURES)
    assert np.array_equal(classifier.predict(FEATURES), classifier.classes_[scores.argmax(1)])
    assert np.array_equal(classifier.rejection_score(FEATURES), -scores.max(1))
    assert len(classifier.predict(FEATURES[:1])) == 1
    row = np.where(np.arange(80)[:, None] == 75, np.nan, FEATURES)
    with pytest.raises(ValueError, match="row 75 is not"):
        classifier.predict(row)


def test_predictions_need_little_memory() -> None:
    features = np.random.default_rng(1).normal(size=(200_000, 4)).astype("f4")
    classifier = PrototypeClassifier().fit(features[:1000], np.arange(1000))
    tracemalloc.start()
    classifier.predict(features)
    classifier.rejection_score(features)
    classifier.score(features, np.zeros(200_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(features) * 1000 * 4 / 4


@pytest.mark.bad_input
@pytest.mark.parametrize("value", [np.float32(0.1), np.float64(0.5), np.int64(1)], ids=repr)
def test_numbers_of_numpy_are_saved(value: Any, tmp_path: Path) -> None:
    classifier = PrototypeClassifier(whitening="shrunk", shrinkage=value, temperature=value)
    labels = np.array([np.int64(label) for label in LABELS], object)
    classifier.fit(FEATURES, labels).save(tmp_path / "file")
    loaded = PrototypeClassifier.load(tmp_path / "file")
    assert (loaded.shrinkage_, loaded.temperature_) == (float(value), float(value))
    assert loaded.classes_.tolist() == [0, 1, 2, 3]
    assert np.array_equal(loaded.predict_proba(FEATURES), classifier.predict_proba(FEATURES))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("whitening", ["none", "shrunk"])
def test_modules_are_float32_under_any_default_dtype(dtype: torch.dtype, whitening: Any) -> None:
    classifier = PrototypeClassifier(whitening=whitening).fit(FEATURES, LABELS)
    inputs = torch.from_numpy(FEATURES)
    expected = classifier.to_module()(inputs), classifier.to_linear()(inputs)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        found = classifier.to_module()(inputs), classifier.to_linear()(inputs)
    finally:
        torch.set_default_dtype(default)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, other)
