"""PrototypeClassifier with whitening: definition, changing classes, batches, modules, files."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.utils.estimator_checks import check_estimator

from protosphere.classifiers import (
    PrototypeClassifier,
    WhitenedClassMeans,
    class_means,
    class_scatter,
)
from protosphere.classifiers.onnx import export_onnx

NAMES = np.array(["ant", "bee", "cat", "dog"])
Rule = Literal["cosine", "nearest"]
Samples = tuple[np.ndarray, np.ndarray]
both_rules = pytest.mark.parametrize("rule", ["cosine", "nearest"])


@pytest.fixture
def samples() -> Samples:
    """Four classes that differ least in the coordinate in which samples vary most."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 4, 240)
    noise = generator.normal(size=(240, 6)) * np.array([6, 1, 1, 1, 1, 1])
    features = generator.normal(size=(4, 6))[labels] * 2 + noise + 3
    return features.astype(np.float32), NAMES[labels]


def shrunk(**options: Any) -> PrototypeClassifier:
    return PrototypeClassifier(whitening="shrunk", **options)


@pytest.mark.bad_input
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@both_rules
def test_scikit_learns_estimator_checks(rule: Rule) -> None:
    # At a lower temperature probabilities of squared distances are rounded to zero, whose logarithm
    # the checks compare with the finite one of predict_log_proba.
    check_estimator(shrunk(rule=rule, temperature=0.1 if rule == "cosine" else 10))


@both_rules
@pytest.mark.parametrize("shrinkage", [0.3, "auto"])
def test_scores_are_those_of_the_torch_classifier(
    samples: Samples, rule: Rule, shrinkage: Any
) -> None:
    features, names = samples
    classifier = shrunk(rule=rule, shrinkage=shrinkage).fit(features, names)
    labels = torch.from_numpy(np.searchsorted(NAMES, names))
    scatter = class_scatter(torch.from_numpy(features), labels, num_classes=4)
    expected = WhitenedClassMeans.from_scatter(scatter, shrinkage=shrinkage)
    scores = expected.scores(torch.from_numpy(features), rule=rule)
    np.testing.assert_allclose(classifier.scores(features), scores, rtol=1e-4, atol=1e-5)
    assert classifier.shrinkage_ == expected.whitening.shrinkage
    assert (classifier.predict(features) == NAMES[scores.argmax(1)]).all()
    from_scatter = PrototypeClassifier.from_means(scatter, NAMES, rule=rule, shrinkage=shrinkage)
    np.testing.assert_allclose(from_scatter.scores(features), classifier.scores(features))


@both_rules
def test_partial_fit_on_batches_equals_fit(samples: Samples, rule: Rule) -> None:
    features, names = samples
    weights = np.random.default_rng(2).uniform(0.5, 2, len(names))
    whole, batched = shrunk(rule=rule).fit(features, names, weights), shrunk(rule=rule)
    order = np.argsort(names == "bee", kind="stable")  # The class "bee" is new in a later batch.
    for batch in np.array_split(order, 7):
        batched.partial_fit(features[batch], names[batch], sample_weight=weights[batch])
        batched.predict(features)  # What is computed for predictions must not outlive the batch.
    assert batched.shrinkage_ == pytest.approx(whole.shrinkage_, rel=1e-12)
    np.testing.assert_allclose(
        batched.scores(features), whole.scores(features), rtol=1e-4, atol=1e-5
    )


@both_rules
def test_an_added_class_counts_as_in_fit(samples: Samples, rule: Rule) -> None:
    features, names = samples
    cats = names == "cat"
    classifier = shrunk(rule=rule).fit(features[~cats], names[~cats])
    classifier.add_class("cat", features[cats])
    expected = shrunk(rule=rule).fit(features, names).scores(features)
    np.testing.assert_allclose(classifier.scores(features), expected, rtol=1e-4, atol=1e-5)


def test_a_removed_class_leaves_its_scatter(samples: Samples) -> None:
    features, names = samples
    classifier = shrunk(shrinkage=0.2).fit(features, names)
    labels = torch.from_numpy(np.searchsorted(NAMES, names))
    scatter = class_scatter(torch.from_numpy(features), labels, num_classes=4)
    expected = WhitenedClassMeans.from_scatter(
        scatter.select(torch.tensor([0, 1, 3])), shrinkage=0.2
    )
    classifier.remove_class("cat")
    scores = expected.scores(torch.from_numpy(features))
    np.testing.assert_allclose(classifier.scores(features), scores, rtol=1e-4, atol=1e-5)
    auto = shrunk().fit(features, names)
    before = auto.shrinkage_
    assert auto.remove_class("cat").shrinkage_ == before
    assert "cat" not in auto.predict(features)


def test_classes_without_samples_change_no_score(samples: Samples) -> None:
    features, names = samples
    classifier = shrunk().partial_fit(features, names, classes=["elk"])
    scores = classifier.scores(features)
    assert (scores[:, 4] == -np.inf).all()
    expected = shrunk().fit(features, names).scores(features)
    np.testing.assert_allclose(scores[:, :4], expected, rtol=1e-5, atol=1e-6)


@both_rules
def test_torch_modules_give_the_scores_and_the_predictions(samples: Samples, rule: Rule) -> None:
    features, names = samples
    classifier = shrunk(rule=rule, temperature=0.2).fit(features, names)
    tensor = torch.from_numpy(features)
    logits = classifier.to_module()(tensor).detach()
    np.testing.assert_allclose(logits, classifier.scores(features) / 0.2, rtol=1e-3, atol=1e-4)
    linear = classifier.to_linear()
    assert type(linear) is torch.nn.Linear
    outputs = linear(torch.nn.functional.normalize(tensor, dim=1)).detach()
    assert (NAMES[outputs.argmax(1)] == classifier.predict(features)).all()
    if rule == "nearest":
        probabilities = outputs.softmax(1)
        np.testing.assert_allclose(probabilities, classifier.predict_proba(features), atol=1e-3)


@both_rules
def test_onnxruntime_gives_the_scores(samples: Samples, rule: Rule, tmp_path: Path) -> None:
    features, names = samples
    classifier = shrunk(rule=rule, temperature=2.0).fit(features, names)
    export_onnx(classifier, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    scores, probabilities = session.run(["scores", "probabilities"], {"features": features})
    expected = classifier.scores(features) / 2
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(probabilities, classifier.predict_proba(features), atol=1e-4)


@both_rules
@pytest.mark.parametrize("shrinkage", [0.25, "auto"])
def test_a_saved_classifier_is_loaded(
    samples: Samples, rule: Rule, shrinkage: Any, tmp_path: Path
) -> None:
    features, names = samples
    classifier = shrunk(rule=rule, shrinkage=shrinkage).fit(features, names)
    classifier.remove_class("dog").save(tmp_path / "prototypes.safetensors")
    loaded = PrototypeClassifier.load(tmp_path / "prototypes.safetensors")
    assert loaded.get_params() == classifier.get_params()
    assert loaded.shrinkage_ == classifier.shrinkage_
    assert np.array_equal(loaded.scores(features), classifier.scores(features))
    loaded.partial_fit(features, names)
    expected = classifier.partial_fit(features, names).scores(features)
    assert np.array_equal(loaded.scores(features), expected)


def test_files_without_whitening_are_as_before(samples: Samples, tmp_path: Path) -> None:
    """The first format is what earlier versions wrote and can read."""
    features, names = samples
    path = tmp_path / "prototypes.safetensors"
    classifier = PrototypeClassifier().fit(features, names)
    classifier.save(path)
    assert b'"format":"protosphere prototypes 1"' in path.read_bytes()
    loaded = PrototypeClassifier.load(path)
    assert loaded.whitening == "none"
    assert np.array_equal(loaded.scores(features), classifier.scores(features))
    shrunk().fit(features, names).save(path)
    assert b'"format":"protosphere prototypes 2"' in path.read_bytes()


def test_a_pickle_and_a_clone(samples: Samples) -> None:
    features, names = samples
    classifier = shrunk(shrinkage=0.4).fit(features, names)
    expected = classifier.scores(features)
    assert np.array_equal(pickle.loads(pickle.dumps(classifier)).scores(features), expected)
    assert clone(classifier).get_params() == classifier.get_params()
    assert not hasattr(clone(classifier), "classes_")


@pytest.mark.parametrize(
    "changed",
    [
        {"rule": "nearest"},
        {"temperature": 3.0},
        {"shrinkage": 1.0},
        {"shrinkage": "cv"},
        {"whitening": "none"},
    ],
    ids=str,
)
def test_a_changed_option_takes_effect_at_the_next_fit(
    samples: Samples, changed: dict[str, Any], tmp_path: Path
) -> None:
    features, names = samples
    classifier, unchanged = shrunk().fit(features, names), shrunk().fit(features, names)
    classifier.set_params(**changed)

    def equal(one: PrototypeClassifier, other: PrototypeClassifier) -> bool:
        return np.array_equal(one.predict_proba(features), other.predict_proba(features))

    assert equal(classifier, unchanged)
    classifier.save(tmp_path / "prototypes.safetensors")
    assert equal(PrototypeClassifier.load(tmp_path / "prototypes.safetensors"), unchanged)
    for one in (classifier, unchanged):
        one.partial_fit(features[:9], names[:9]).add_class("eel", features[:9])
    assert equal(classifier, unchanged)
    fresh = shrunk().set_params(**changed).fit(features, names)
    assert equal(classifier.fit(features, names), fresh)
    assert not equal(fresh, shrunk().fit(features, names)) or changed == {"shrinkage": "cv"}


def test_whitening_that_is_set_after_fitting_waits_for_the_next_fit(samples: Samples) -> None:
    features, names = samples
    classifier = PrototypeClassifier().fit(features, names).set_params(whitening="shrunk")
    assert classifier.partial_fit(features, names).shrinkage_ is None
    assert classifier.fit(features, names).shrinkage_ is not None


@pytest.mark.parametrize("per_class", [1, 2, 5])
def test_few_samples_per_class_in_many_dimensions(per_class: int) -> None:
    generator = np.random.default_rng(0)
    centers = generator.normal(size=(10, 100))
    labels = np.repeat(np.arange(10), per_class)
    train = centers[labels] + 0.5 * generator.normal(size=(10 * per_class, 100))
    test = np.repeat(centers, 5, 0) + 0.5 * generator.normal(size=(50, 100))
    classifier = shrunk().fit(train, labels)
    assert classifier.score(test, np.repeat(np.arange(10), 5)) > 0.9
    if per_class == 1:
        assert classifier.shrinkage_ == 1


def test_accuracy_on_digits() -> None:
    """Whitened class means gain over class means, for many and for few samples."""
    data, target = load_digits(return_X_y=True)
    for num_train in (100, 1000):
        train, test = slice(num_train), slice(1000, None)
        plain = PrototypeClassifier().fit(data[train], target[train])
        whitened = shrunk().fit(data[train], target[train])
        gain = whitened.score(data[test], target[test]) - plain.score(data[test], target[test])
        assert gain > 0.01


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x, y: shrunk().set_params(whitening="full").fit(x, y),
            "whitening must be 'none' or 'shrunk', got 'full'",
        ),
        (
            lambda x, y: shrunk(shrinkage=2).fit(x, y),
            "shrinkage must be 'auto', 'cv' or a number between 0 and 1, got 2",
        ),
        (
            lambda x, y: shrunk().fit(x, y).set_params(shrinkage="lw").fit(x, y),
            "shrinkage must be 'auto', 'cv' or a number between 0 and 1, got 'lw'",
        ),
        (
            lambda x, y: shrunk(shrinkage=0.0).fit(x[:6], y[:6]).predict(x),
            r"shrinkage must be larger for a singular within-class covariance",
        ),
    ],
)
def test_invalid_arguments_are_refused(
    samples: Samples, call: Callable[..., Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call(*samples)


def test_plain_class_means_have_no_scatter(samples: Samples) -> None:
    features, names = samples
    labels = torch.from_numpy(np.searchsorted(NAMES, names))
    means = class_means(torch.from_numpy(features), labels, num_classes=4)
    assert PrototypeClassifier.from_means(means, NAMES).whitening == "none"
