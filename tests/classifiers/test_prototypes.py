"""PrototypeClassifier: scikit-learn's checks, an oracle for both rules, changing classes, files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from protosphere.classifiers import PrototypeClassifier, class_means, rejection_score

NAMES = np.array(["ant", "bee", "cat"])
Rule = Literal["cosine", "nearest"]
Samples = tuple[np.ndarray, np.ndarray]
both_rules = pytest.mark.parametrize("rule", ["cosine", "nearest"])


@pytest.fixture
def samples() -> Samples:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 200)
    centers = generator.normal(size=(3, 6)) * 2
    return (centers[labels] + generator.normal(size=(200, 6))).astype(np.float32), NAMES[labels]


@pytest.mark.bad_input
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@both_rules
def test_scikit_learns_estimator_checks(rule: Rule) -> None:
    check_estimator(PrototypeClassifier(rule=rule))


@both_rules
def test_scores_match_their_definition(samples: Samples, rule: Rule) -> None:
    features, names = samples
    classifier = PrototypeClassifier(rule=rule).fit(features, names)
    unit = features.astype(float) / np.linalg.norm(features.astype(float), axis=1, keepdims=True)
    means = np.stack([unit[names == name].mean(0) for name in NAMES])

    def score(row: np.ndarray, mean: np.ndarray) -> float:
        if rule == "cosine":
            return float(row @ mean / np.linalg.norm(mean))
        return -float(((row - mean) ** 2).sum())

    expected = [[score(row, mean) for mean in means] for row in unit]
    np.testing.assert_allclose(classifier.scores(features), expected, rtol=0, atol=1e-5)


@both_rules
def test_predictions_follow_from_the_scores(samples: Samples, rule: Rule) -> None:
    features, names = samples
    classifier = PrototypeClassifier(rule=rule, temperature=0.3).fit(features, names)
    scores = classifier.scores(features)
    assert (classifier.predict(features) == NAMES[scores.argmax(1)]).all()
    exponentials = np.exp(scores.astype(float) / 0.3)
    probabilities = exponentials / exponentials.sum(1, keepdims=True)
    np.testing.assert_allclose(classifier.predict_proba(features), probabilities, rtol=1e-4)
    np.testing.assert_allclose(classifier.rejection_score(features), -scores.max(1))
    assert classifier.score(features, names) > 0.8


def test_rejection_scores_are_those_of_the_function(samples: Samples) -> None:
    features, names = samples
    classifier = PrototypeClassifier().partial_fit(features, names, classes=["dog"])
    prototypes = torch.from_numpy(classifier.prototypes_[classifier.weights_ > 0])
    expected = rejection_score(torch.from_numpy(features), prototypes.float())
    np.testing.assert_allclose(classifier.rejection_score(features), expected, atol=1e-6)


def test_partial_fit_on_batches_equals_fit(samples: Samples) -> None:
    features, names = samples
    whole, batched = PrototypeClassifier().fit(features, names), PrototypeClassifier()
    order = np.argsort(names == "bee", kind="stable")  # The class "bee" is new in a later batch.
    for batch in np.array_split(order, 7):
        batched.partial_fit(features[batch], names[batch])
    assert batched.classes_.tolist() == whole.classes_.tolist()
    np.testing.assert_allclose(batched.prototypes_, whole.prototypes_, atol=1e-7)
    assert (batched.weights_ == whole.weights_).all()
    assert batched.fit(features[:9], names[:9]).weights_.sum() == 9, "fit starts from nothing"


def test_a_class_without_samples_is_never_predicted(samples: Samples) -> None:
    features, names = samples
    classifier = PrototypeClassifier().partial_fit(features, names, classes=[*NAMES, "dog"])
    assert classifier.classes_.tolist() == [*NAMES, "dog"]
    assert (classifier.predict_proba(features)[:, 3] == 0).all()
    assert "dog" not in classifier.predict(-features)


@both_rules
def test_adding_and_removing_a_class_restores_the_classifier(samples: Samples, rule: Rule) -> None:
    features, names = samples
    classifier = PrototypeClassifier(rule=rule).fit(features, names)
    scores, predictions = classifier.scores(features), classifier.predict(features)
    name = "aardvark with a long name"
    opposite_of_cats = -features[names == "cat"]
    classifier.add_class(name, opposite_of_cats)
    assert classifier.classes_[0] == name
    assert (classifier.predict(opposite_of_cats) == name).mean() > 0.8
    classifier.remove_class(name)
    assert np.array_equal(classifier.scores(features), scores)
    assert np.array_equal(classifier.predict(features), predictions)


def test_sample_weights_equal_repetitions(samples: Samples) -> None:
    features, names = samples
    weights = np.random.default_rng(1).integers(0, 4, len(names))
    weighted = PrototypeClassifier().fit(features, names, sample_weight=weights)
    repeated = PrototypeClassifier().fit(np.repeat(features, weights, 0), np.repeat(names, weights))
    np.testing.assert_allclose(weighted.prototypes_, repeated.prototypes_, atol=1e-7)


def test_calibration_minimizes_the_negative_log_likelihood(samples: Samples) -> None:
    features, names = samples
    classifier = PrototypeClassifier().fit(features[::2], names[::2])
    held_out, labels = features[1::2], np.searchsorted(NAMES, names[1::2])
    best = classifier.calibrate(held_out, names[1::2]).temperature_
    assert best != classifier.temperature

    def negative_log_likelihood(temperature: float) -> float:
        classifier.temperature_ = temperature
        probabilities = classifier.predict_proba(held_out)
        return float(-np.log(probabilities[np.arange(len(labels)), labels]).mean())

    others = [negative_log_likelihood(best * factor) for factor in (0.95, 1.05)]
    assert negative_log_likelihood(best) < min(others)


def test_calibration_is_kept_by_partial_fit_and_discarded_by_fit(samples: Samples) -> None:
    features, names = samples
    classifier = PrototypeClassifier().fit(features, names)
    calibrated = classifier.calibrate(features, names).temperature_
    assert classifier.partial_fit(features[:9], names[:9]).temperature_ == calibrated
    assert classifier.get_params()["temperature"] == clone(classifier).temperature == 0.1
    assert classifier.fit(features, names).temperature_ == 0.1


@both_rules
def test_torch_modules_give_the_scores_over_the_temperature(samples: Samples, rule: Rule) -> None:
    features, names = samples
    classifier = PrototypeClassifier(rule=rule, temperature=0.2).fit(features, names)
    expected = classifier.scores(features) / 0.2
    tensor = torch.from_numpy(features)
    logits = classifier.to_module()(tensor).detach()
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    linear = classifier.to_linear()
    assert type(linear) is torch.nn.Linear
    unit = torch.nn.functional.normalize(tensor, dim=1)
    np.testing.assert_allclose(linear(unit).detach(), expected, rtol=1e-4, atol=1e-4)
    if rule == "cosine":
        assert (NAMES[linear(tensor).argmax(1)] == classifier.predict(features)).all()


@both_rules
def test_a_classifier_from_class_means_equals_fit(samples: Samples, rule: Rule) -> None:
    features, names = samples
    classifier = PrototypeClassifier(rule=rule).fit(features, names)
    tensor, labels = torch.from_numpy(features), torch.from_numpy(np.searchsorted(NAMES, names))
    means = class_means(tensor, labels, num_classes=3)
    from_means = PrototypeClassifier.from_means(means, NAMES, rule=rule)
    np.testing.assert_allclose(from_means.prototypes_, classifier.prototypes_, atol=1e-7)
    means = class_means(tensor, 2 - labels, num_classes=3)
    reversed_order = PrototypeClassifier.from_means(means, NAMES[::-1], rule=rule)
    assert (reversed_order.predict(features) == classifier.predict(features)).all()
    assert reversed_order.classes_.tolist() == sorted(NAMES)


@pytest.mark.parametrize(
    "classes", [NAMES, np.array([3, 5, 9]), np.array(["x", "yy", "ü"], dtype=object)], ids=str
)
def test_a_saved_classifier_is_loaded(
    samples: Samples, classes: np.ndarray, tmp_path: Path
) -> None:
    features, names = samples
    targets = classes[np.searchsorted(NAMES, names)]
    classifier = PrototypeClassifier(rule="nearest").fit(features, targets)
    classifier.calibrate(features, targets).save(tmp_path / "prototypes.safetensors")
    loaded = PrototypeClassifier.load(tmp_path / "prototypes.safetensors")
    assert np.array_equal(loaded.scores(features), classifier.scores(features))
    assert np.array_equal(loaded.predict_proba(features), classifier.predict_proba(features))
    assert loaded.predict(features).tolist() == classifier.predict(features).tolist()
    assert loaded.partial_fit(features, targets).weights_.sum() == 400


def test_arrays_with_negative_strides(samples: Samples) -> None:
    features, names = samples
    expected = PrototypeClassifier().fit(features, names).prototypes_
    weights = np.ones(200)[::-1]
    rows = PrototypeClassifier().fit(features[::-1], names[::-1], sample_weight=weights)
    np.testing.assert_allclose(rows.prototypes_, expected, atol=1e-7)
    columns = PrototypeClassifier().fit(features[:, ::-1], names)
    np.testing.assert_allclose(columns.prototypes_, expected[:, ::-1], atol=1e-7)


def test_one_sample_per_class_is_fitted_without_a_warning() -> None:
    """scikit-learn takes many classes for a regression and warns; here they are common."""
    classifier = PrototypeClassifier().fit(np.eye(30), np.arange(30))
    assert classifier.score(np.eye(30), np.arange(30)) == 1


def test_in_a_pipeline() -> None:
    digits = load_digits()
    pipeline = make_pipeline(StandardScaler(), PrototypeClassifier()).fit(
        digits.data[:1000], digits.target[:1000]
    )
    assert pipeline.score(digits.data[1000:], digits.target[1000:]) > 0.8


def mixed(names: np.ndarray) -> np.ndarray:
    result = names.astype(object)
    result[0] = 7
    return result


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, y: fit(x, y[:90]), "y must have one label per sample, 200; got 90"),
        (
            lambda x, y: fit(x, np.stack([y, y], 1)),
            r"y must be one-dimensional, one label per sample; got shape \(200, 2\)",
        ),
        (lambda x, y: fit(x, np.linspace(0, 1, 200)), "names or whole numbers, got continuous"),
        (lambda x, y: fit(x, y.astype("S")), r"y must hold class names or whole numbers, got \|S3"),
        (lambda x, y: fit(x, mixed(y)), "y must hold only strings or only whole numbers, got int"),
        (lambda x, y: fit(x / 0 * 0, y), "features must be finite, .* row 0 is not"),
        (lambda x, y: fit(x, y, sample_weight=np.zeros(200)), "at least one non-zero number"),
        (lambda x, y: fit(x, y, rule="dot"), "rule must be 'cosine' or 'nearest', got 'dot'"),
        (lambda x, y: fit(x, y, temperature=0), "temperature must be a positive number, got 0"),
        (lambda x, y: fit(x, y).add_class("bee", x), "there is already a class 'bee'"),
        (lambda x, y: fit(x, y).add_class(7, x), "all strings or all numbers, got 7 beside 'ant'"),
        (
            lambda x, y: fit(x, y).partial_fit(x, np.full(200, 7)),
            "all strings or all numbers, got 7 beside 'ant'",
        ),
        (
            lambda x, y: PrototypeClassifier().partial_fit(x, np.sort(y), classes=[1, 2]),
            "all strings or all numbers, got 1 beside 'ant'",
        ),
        (lambda x, y: fit(x, y).remove_class("dog"), "there is no class 'dog' to remove"),
        (
            lambda x, y: fit(x, np.full(200, "ant")).remove_class("ant"),
            "a classifier needs at least one class, and 'ant' is its last",
        ),
        (
            lambda x, y: fit(x, y).predict(x[:, :5]),
            "X has 5 features, but PrototypeClassifier is expecting 6 features",
        ),
        (lambda x, y: fit(x, y).predict(x * np.inf), "features must be finite, .* row 0 is not"),
        (
            lambda x, y: fit(x, y).set_params(rule="other").fit(x, y),
            "rule must be 'cosine' or 'nearest', got 'other'",
        ),
        (lambda x, y: from_identity(["a", "b", "c"], rule="other"), "rule must be 'cosine' or"),
        (lambda x, y: from_identity([0, 1, np.nan]), "Input classes contains NaN"),
        (lambda x, y: from_identity([0, 1, 1.5]), "classes must hold .* got continuous values"),
        (
            lambda x, y: PrototypeClassifier().partial_fit(x, np.arange(200), classes=[0.5]),
            "classes must hold class names or whole numbers, got continuous values",
        ),
        (
            lambda x, y: fit(x, np.arange(200).astype(object)).add_class("ant", x),
            "all strings or all numbers, got 'ant' beside 0",
        ),
        (
            lambda x, y: fit(x, y).calibrate(x, y[:90]),
            "y must have one label per sample, 200; got 90",
        ),
        (
            lambda x, y: fit(x, y).calibrate(x, np.stack([y, y], 1)),
            r"y must be one-dimensional, one label per sample; got shape \(200, 2\)",
        ),
        (
            lambda x, y: fit(x, y).calibrate(x, np.full(200, "dog")),
            "labels must be classes of the classifier, got dog",
        ),
        (
            lambda x, y: fit(x, y).calibrate(x, np.full(200, 7)),
            "all strings or all numbers, got 7 beside 'ant'",
        ),
        (
            lambda x, y: (
                PrototypeClassifier()
                .partial_fit(x, y, classes=["dog"])
                .calibrate(x, np.full(200, "dog"))
            ),
            "labels must be of classes with samples, but dog has none",
        ),
        (lambda x, y: from_identity(["a", "a", "b"]), "classes must be unique, got a twice"),
        (
            lambda x, y: from_identity(["a", "b"]),
            r"classes must have one name per mean, shape \(3,\); got \(2,\)",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_invalid_arguments_are_refused(
    samples: Samples, call: Callable[..., Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call(*samples)


def fit(
    features: np.ndarray, names: np.ndarray, sample_weight: Any = None, **options: Any
) -> PrototypeClassifier:
    return PrototypeClassifier(**options).fit(features, names, sample_weight)


def from_identity(names: list[Any], **options: Any) -> PrototypeClassifier:
    means = class_means(torch.eye(3), torch.arange(3), num_classes=3)
    return PrototypeClassifier.from_means(means, names, **options)


@pytest.mark.parametrize("whitening", ["none", "shrunk"])
def test_a_file_with_a_flipped_bit_is_refused(
    samples: Samples, whitening: Any, tmp_path: Path
) -> None:
    classifier = fit(*samples, whitening=whitening)
    content = classifier.to_bytes()
    refused = 0
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        (tmp_path / "file").write_bytes(flipped)
        try:
            loaded = PrototypeClassifier.load(tmp_path / "file")
        except ValueError as error:
            refused += "file is damaged or not a saved PrototypeClassifier" in str(error)
        else:  # The key of the checksum, or JSON that means the same.
            assert loaded.scores(samples[0]).tobytes() == classifier.scores(samples[0]).tobytes()
            assert loaded.classes_.tolist() == classifier.classes_.tolist()
    assert refused > len(content) - 20


def test_a_file_without_a_checksum_is_read(samples: Samples, tmp_path: Path) -> None:
    classifier = fit(*samples)
    metadata = {
        "format": "protosphere prototypes 1",
        "rule": "nearest",
        "temperature": "0.25",
        "classes": json.dumps(NAMES.tolist()),
        "dtype": NAMES.dtype.str,
    }
    arrays = {"sums": classifier.sums_, "weights": classifier.weights_}
    save_file(arrays, tmp_path / "file", metadata=metadata)
    loaded = PrototypeClassifier.load(tmp_path / "file")
    assert (loaded.rule, loaded.temperature_) == ("nearest", 0.25)
    np.testing.assert_array_equal(loaded.prototypes_, classifier.prototypes_)


@pytest.mark.bad_input
@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x08" + bytes(200)])
def test_a_damaged_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match="file is damaged or not a saved PrototypeClassifier"):
        PrototypeClassifier.load(tmp_path / "file")


@pytest.mark.bad_input
def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere does not exist"):
        PrototypeClassifier.load(tmp_path / "nowhere")
