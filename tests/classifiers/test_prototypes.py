"""The prototype classifier: scikit-learn's own checks, an oracle for both rules, classes that come and go, files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from protosphere.classifiers import PrototypeClassifier, class_means

NAMES = np.array(["ant", "bee", "cat"])


@pytest.fixture
def samples() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 200)
    centers = generator.normal(size=(3, 6)) * 2
    return (centers[labels] + generator.normal(size=(200, 6))).astype(np.float32), NAMES[labels]


@pytest.mark.bad_input
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize("rule", ["cosine", "nearest"])
def test_scikit_learns_own_checks(rule: str) -> None:
    check_estimator(PrototypeClassifier(rule=rule))


@pytest.mark.parametrize("rule", ["cosine", "nearest"])
def test_scores_are_those_of_the_definition(samples: tuple, rule: str) -> None:
    features, names = samples
    classifier = PrototypeClassifier(rule=rule, temperature=0.3).fit(features, names)
    unit = features.astype(float) / np.linalg.norm(features.astype(float), axis=1, keepdims=True)
    means = np.stack([unit[names == name].mean(0) for name in NAMES])
    for row, own in zip(classifier.scores(features), unit, strict=True):
        for score, mean in zip(row, means, strict=True):
            expected = (
                own @ mean / np.linalg.norm(mean)
                if rule == "cosine"
                else -((own - mean) ** 2).sum()
            )
            assert score == pytest.approx(expected, abs=1e-5)
    scores = classifier.scores(features)
    assert (classifier.predict(features) == NAMES[scores.argmax(1)]).all()
    exponentials = np.exp(scores.astype(float) / 0.3)
    shares = exponentials / exponentials.sum(1, keepdims=True)
    np.testing.assert_allclose(classifier.predict_proba(features), shares, rtol=1e-4)
    np.testing.assert_allclose(classifier.rejection_score(features), -scores.max(1))
    assert classifier.score(features, names) > 0.8


def test_parts_are_the_whole(samples: tuple) -> None:
    features, names = samples
    whole, parts = PrototypeClassifier().fit(features, names), PrototypeClassifier()
    order = np.argsort(names == "bee", kind="stable")  # The bees come last: they are new then.
    for part in np.array_split(order, 7):
        parts.partial_fit(features[part], names[part])
    assert parts.classes_.tolist() == whole.classes_.tolist()
    np.testing.assert_allclose(parts.prototypes_, whole.prototypes_, atol=1e-7)
    assert (parts.weights_ == whole.weights_).all()
    assert parts.fit(features[:9], names[:9]).weights_.sum() == 9, "fit forgets"


def test_a_class_that_was_announced_and_never_came(samples: tuple) -> None:
    features, names = samples
    classifier = PrototypeClassifier().partial_fit(features, names, classes=[*NAMES, "dog"])
    assert classifier.classes_.tolist() == [*NAMES, "dog"]
    assert (classifier.predict_proba(features)[:, 3] == 0).all()
    assert "dog" not in classifier.predict(-features)


@pytest.mark.parametrize("rule", ["cosine", "nearest"])
def test_a_class_comes_and_goes(samples: tuple, rule: str) -> None:
    features, names = samples
    classifier = PrototypeClassifier(rule=rule).fit(features, names)
    before = classifier.scores(features), classifier.predict(features)
    classifier.add_class("aardvark with a long name", -features[names == "cat"])
    assert classifier.classes_[0] == "aardvark with a long name"
    assert (
        classifier.predict(-features[names == "cat"]) == "aardvark with a long name"
    ).mean() > 0.8
    classifier.remove_class("aardvark with a long name")
    assert np.array_equal(classifier.scores(features), before[0])
    assert np.array_equal(classifier.predict(features), before[1])


def test_weights_are_repetitions(samples: tuple) -> None:
    features, names = samples
    weights = np.random.default_rng(1).integers(0, 4, len(names))
    weighted = PrototypeClassifier().fit(features, names, sample_weight=weights)
    repeated = PrototypeClassifier().fit(np.repeat(features, weights, 0), np.repeat(names, weights))
    np.testing.assert_allclose(weighted.prototypes_, repeated.prototypes_, atol=1e-7)


def test_calibration_finds_the_likeliest_temperature(samples: tuple) -> None:
    features, names = samples
    classifier = PrototypeClassifier().fit(features[::2], names[::2])

    def surprise(temperature: float) -> float:
        classifier.temperature_ = temperature
        shares = classifier.predict_proba(features[1::2])
        return -np.log(shares[np.arange(len(shares)), np.searchsorted(NAMES, names[1::2])]).mean()

    found = classifier.calibrate(features[1::2], names[1::2]).temperature_
    assert found != classifier.temperature
    assert classifier.partial_fit(features[:9], names[:9]).temperature_ == found, (
        "more samples are no reason"
    )
    assert classifier.fit(features[::2], names[::2]).temperature_ == classifier.temperature
    assert surprise(found) < min(surprise(found * 0.95), surprise(found * 1.05))
    assert classifier.get_params()["temperature"] == 0.1, "what was asked for is not what was found"
    assert clone(classifier).temperature == 0.1


@pytest.mark.parametrize("rule", ["cosine", "nearest"])
def test_the_torch_side(samples: tuple, rule: str) -> None:
    features, names = samples
    classifier = PrototypeClassifier(rule=rule, temperature=0.2).fit(features, names)
    expected = classifier.scores(features) / 0.2
    tensor = torch.from_numpy(features)
    np.testing.assert_allclose(
        classifier.to_module()(tensor).detach(), expected, rtol=1e-4, atol=1e-4
    )
    linear = classifier.to_linear()
    assert type(linear) is torch.nn.Linear
    unit = torch.nn.functional.normalize(tensor, dim=1)
    np.testing.assert_allclose(linear(unit).detach(), expected, rtol=1e-4, atol=1e-4)
    if rule == "cosine":
        assert (NAMES[linear(tensor).argmax(1)] == classifier.predict(features)).all()
    labels = torch.from_numpy(np.searchsorted(NAMES, names))
    streamed = PrototypeClassifier.from_means(
        class_means(tensor, labels, num_classes=3), NAMES, rule=rule
    )
    np.testing.assert_allclose(streamed.prototypes_, classifier.prototypes_, atol=1e-7)
    backwards = PrototypeClassifier.from_means(
        class_means(tensor, 2 - labels, num_classes=3), NAMES[::-1], rule=rule
    )
    assert (backwards.predict(features) == classifier.predict(features)).all()
    assert backwards.classes_.tolist() == sorted(NAMES)


@pytest.mark.parametrize(
    "classes", [NAMES, np.array([3, 5, 9]), np.array(["x", "yy", "ü"], dtype=object)], ids=str
)
def test_saved_is_loaded(samples: tuple, classes: np.ndarray, tmp_path: Path) -> None:
    features, names = samples
    targets = classes[np.searchsorted(NAMES, names)]
    classifier = (
        PrototypeClassifier(rule="nearest").fit(features, targets).calibrate(features, targets)
    )
    classifier.save(tmp_path / "prototypes.safetensors")
    loaded = PrototypeClassifier.load(tmp_path / "prototypes.safetensors")
    assert np.array_equal(loaded.scores(features), classifier.scores(features))
    assert np.array_equal(loaded.predict_proba(features), classifier.predict_proba(features))
    assert loaded.predict(features).tolist() == classifier.predict(features).tolist()
    assert loaded.partial_fit(features, targets).weights_.sum() == 400


def test_arrays_that_are_turned_round(samples: tuple) -> None:
    features, names = samples
    plain = PrototypeClassifier().fit(features, names)
    turned = PrototypeClassifier().fit(
        features[::-1], names[::-1], sample_weight=np.ones(200)[::-1]
    )
    np.testing.assert_allclose(turned.prototypes_, plain.prototypes_, atol=1e-7)
    sides = PrototypeClassifier().fit(features[:, ::-1], names)
    np.testing.assert_allclose(sides.prototypes_, plain.prototypes_[:, ::-1], atol=1e-7)


def test_in_a_pipeline() -> None:
    digits = load_digits()
    pipeline = make_pipeline(StandardScaler(), PrototypeClassifier()).fit(
        digits.data[:1000], digits.target[:1000]
    )
    assert pipeline.score(digits.data[1000:], digits.target[1000:]) > 0.8


@pytest.mark.bad_input
def test_what_makes_no_sense(samples: tuple, tmp_path: Path) -> None:
    features, names = samples
    classifier = PrototypeClassifier().fit(features, names)
    with pytest.raises(
        ValueError, match="a class that is added must be new; there is a class 'bee' already"
    ):
        classifier.add_class("bee", features)
    with pytest.raises(
        ValueError, match="a class must be named as the others are, such as 'ant'; got 7"
    ):
        classifier.add_class(7, features)
    with pytest.raises(
        ValueError, match="a class must be named as the others are, such as 'ant'; got 7"
    ):
        classifier.partial_fit(features, np.full(200, 7))
    announced = PrototypeClassifier().partial_fit(features, names, classes=["dog"])
    with pytest.raises(ValueError, match="must be of classes that have samples; dog has none"):
        announced.calibrate(features, np.full(200, "dog"))
    with pytest.raises(
        ValueError, match="a class that is removed must be there; there is no 'dog'"
    ):
        classifier.remove_class("dog")
    with pytest.raises(
        ValueError, match="X has 5 features, but PrototypeClassifier is expecting 6 features"
    ):
        classifier.predict(features[:, :5])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        classifier.calibrate(features, names[:90])
    with pytest.raises(ValueError, match="should be a 1d array"):
        classifier.calibrate(features, np.stack([names, names], 1))
    with pytest.raises(
        ValueError, match="a class must be named as the others are, such as 'ant'; got 1"
    ):
        PrototypeClassifier().partial_fit(features, np.sort(names), classes=[1, 2])
    with pytest.raises(ValueError, match="classes must all be different; some are not"):
        PrototypeClassifier.from_means(
            class_means(torch.eye(3), torch.arange(3), num_classes=3), ["a", "a", "b"]
        )
    with pytest.raises(ValueError, match="rule must be 'cosine' or 'nearest'; got 'other'"):
        clone(classifier).fit(features, names).set_params(rule="other").predict(features)
    with pytest.raises(
        ValueError, match="labels to calibrate with must be classes of the classifier"
    ):
        classifier.calibrate(features, np.full(200, "dog"))
    with pytest.raises(ValueError, match="a classifier must keep a class; this is its last"):
        classifier.remove_class("ant").remove_class("bee").remove_class("cat")
    with pytest.raises(ValueError, match="rule must be 'cosine' or 'nearest'; got 'dot'"):
        PrototypeClassifier(rule="dot").fit(features, names)
    with pytest.raises(ValueError, match="temperature must be positive; got 0"):
        PrototypeClassifier(temperature=0).fit(features, names)
    with pytest.raises(ValueError, match="must contain at least one non-zero number"):
        PrototypeClassifier().fit(features, names, sample_weight=np.zeros(200))
    for content in (b"", b"nonsense", b"\x08" + bytes(200)):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(
            ValueError, match="must be a saved PrototypeClassifier; it is damaged or none"
        ):
            PrototypeClassifier.load(tmp_path / "file")
    with pytest.raises(ValueError, match="must be a file; there is none"):
        PrototypeClassifier.load(tmp_path / "nowhere")
