"""Cross-validated shrinkage: against loops, in estimators and files, with wrong labels."""

from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.utils.estimator_checks import check_estimator
from torch import Tensor

from protosphere.classifiers import (
    PrototypeClassifier,
    WhitenedClassMeans,
    class_scatter,
    cross_validated_shrinkage,
    shrinkage,
)
from protosphere.classifiers.shrinkage import NUM_FOLDS, SHRINKAGES, stratified_folds
from protosphere.data.label_noise import noisy_labels

Rule = Literal["cosine", "nearest"]


def noisy_samples(
    *, num_samples: int = 400, dim: int = 60, fraction: float = 0.6, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Six classes, whose samples vary most in the last directions, with wrong labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 6, (num_samples,), generator=generator)
    noise = torch.randn(num_samples, dim, generator=generator) * torch.linspace(0.5, 4, dim)
    features = 1.5 * torch.randn(6, dim, generator=generator)[labels] + noise + 1
    if fraction:
        labels = noisy_labels(labels, num_classes=6, name="symmetric", fraction=fraction, seed=seed)
    return features, labels


def choose_by_loops(
    features: Tensor,
    labels: Tensor,
    *,
    num_classes: int,
    weights: Tensor,
    rule: Rule,
    max_held_out: int = shrinkage.MAX_HELD_OUT,
) -> float | str:
    """Fit one classifier per fold and value, as the definition says."""
    folds = stratified_folds(labels, max_held_out=max_held_out)
    gains, variances = np.zeros(len(SHRINKAGES)), np.zeros(len(SHRINKAGES))
    for fold in range(NUM_FOLDS):
        train, held_out = (folds != fold).nonzero()[:, 0], (folds == fold).nonzero()[:, 0]
        scatter = class_scatter(
            features[train], labels[train], num_classes=num_classes, weights=weights[train]
        )
        values: list[Any] = ["auto", *SHRINKAGES]
        correct = [
            WhitenedClassMeans.from_scatter(scatter, shrinkage=value)
            .predict(features[held_out], rule=rule)
            .eq(labels[held_out])
            .tolist()
            for value in values
        ]
        for i, of_value in enumerate(correct[1:]):
            for sample, now, before in zip(held_out.tolist(), of_value, correct[0], strict=True):
                difference = float(weights[sample]) * (int(now) - int(before))
                gains[i] += difference
                variances[i] += difference**2
    best = max(range(len(SHRINKAGES)), key=lambda i: (gains[i], SHRINKAGES[i]))
    return SHRINKAGES[best] if gains[best] > variances[best] ** 0.5 else "auto"


@pytest.mark.parametrize("rule", ["cosine", "nearest"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("limit", ["none", "samples", "scores"])
def test_the_choice_is_that_of_loops(
    rule: Rule, weighted: bool, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = set()
    monkeypatch.setattr(shrinkage, "_CHUNK_ROWS", 60)
    if limit == "samples":
        monkeypatch.setattr(shrinkage, "MAX_HELD_OUT", 35)
    elif limit == "scores":
        monkeypatch.setattr(shrinkage, "_MAX_SCORES", 35 * 7 + 3)
    for seed in range(12):
        features, labels = noisy_samples(num_samples=250, fraction=seed % 4 / 5, seed=seed)
        features = features.double()
        generator = torch.Generator().manual_seed(seed)
        weights = 8 * torch.rand(len(labels), generator=generator) ** 7
        if not weighted:
            weights = torch.ones(len(labels))
        expected = choose_by_loops(
            features,
            labels,
            num_classes=7,
            weights=weights,
            rule=rule,
            max_held_out=shrinkage.MAX_HELD_OUT if limit == "none" else 35,
        )
        given_weights = weights if weighted else None
        found = cross_validated_shrinkage(
            features, labels, num_classes=7, weights=given_weights, rule=rule
        )
        assert found == expected
        choices.add(found)
    assert len(choices) >= 2
    assert "auto" in choices


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    max_held_out=st.integers(1, 20),
    seed=st.integers(0, 5),
)
def test_folds_are_disjoint_and_stratified(counts: list[int], max_held_out: int, seed: int) -> None:
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    everything = stratified_folds(labels, seed=seed)
    for label, count in enumerate(counts):
        sizes = everything[labels == label].bincount(minlength=NUM_FOLDS)
        assert sizes.sum() == count  # Every sample is held out once.
        assert sizes.max() - sizes.min() <= 1
    folds = stratified_folds(labels, max_held_out=max_held_out, seed=seed)
    num_held_out = min(len(labels), NUM_FOLDS * max_held_out)
    assert int((folds >= 0).sum()) == num_held_out
    assert int(folds[folds >= 0].bincount().max()) <= max_held_out
    for label, count in enumerate(counts):
        held_out = int((folds[labels == label] >= 0).sum())
        assert abs(held_out - count * num_held_out / len(labels)) < 1 + 1e-9


def test_folds_do_not_depend_on_what_classes_are_called() -> None:
    labels = torch.arange(60) % 3
    assert stratified_folds(labels).equal(stratified_folds(labels + 5))
    assert not stratified_folds(labels).equal(stratified_folds(labels, seed=1))


def test_samples_of_weight_zero_change_nothing() -> None:
    for seed in range(4):
        features, labels = noisy_samples(seed=seed)
        weights = torch.ones(len(labels))
        weights[::3] = 0
        kept = weights > 0
        found = cross_validated_shrinkage(features, labels, num_classes=6, weights=weights)
        assert found == cross_validated_shrinkage(features[kept], labels[kept], num_classes=6)


def test_indices_of_classes_may_be_bytes() -> None:
    features, labels = noisy_samples()
    expected = cross_validated_shrinkage(features, labels, num_classes=6)
    assert cross_validated_shrinkage(features, labels.byte(), num_classes=6) == expected != "auto"


@pytest.mark.parametrize("rule", ["cosine", "nearest"])
def test_the_estimator_chooses_for_its_rule_and_weights(rule: Rule) -> None:
    choices = set()
    for seed in range(6):
        features, labels = noisy_samples(num_samples=250, fraction=0.4, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        weights = 8 * torch.rand(len(labels), generator=generator).double() ** 7
        choose = partial(cross_validated_shrinkage, features, labels, num_classes=6)
        expected = [
            choose(weights=weights, rule=rule),
            choose(rule=rule),
            choose(weights=weights),
        ]
        choices.add(tuple(expected))
        classifier = PrototypeClassifier(whitening="shrunk", shrinkage="cv", rule=rule)
        classifier.fit(features.numpy(), labels.numpy(), sample_weight=weights.numpy())
        fixed = PrototypeClassifier(whitening="shrunk", shrinkage=expected[0], rule=rule)
        fixed.fit(features.numpy(), labels.numpy(), sample_weight=weights.numpy())
        assert classifier.shrinkage_ == fixed.shrinkage_
    # Weights count, and so does a rule that is not the default.
    assert any(with_weights != without for with_weights, without, _ in choices)
    assert rule == "cosine" or any(of_rule != of_cosine for of_rule, _, of_cosine in choices)


@pytest.mark.parametrize(
    "counts",
    [[1, 1, 1], [2, 1], [3], [1, 40, 2]],
    ids=["singletons", "pair", "one-class", "uneven"],
)
def test_few_samples_have_a_choice(counts: list[int]) -> None:
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    features = torch.randn(len(labels), 50, generator=torch.Generator().manual_seed(1))
    chosen = cross_validated_shrinkage(features, labels, num_classes=len(counts))
    weights = torch.ones(len(labels))
    assert chosen == choose_by_loops(
        features, labels, num_classes=len(counts), weights=weights, rule="cosine"
    )
    assert (chosen == "auto") == (len(labels) < 10)
    classifier = PrototypeClassifier(whitening="shrunk", shrinkage="cv")
    classifier.fit(features.numpy(), labels.numpy())
    expected = PrototypeClassifier(whitening="shrunk", shrinkage=chosen)
    assert classifier.shrinkage_ == expected.fit(features.numpy(), labels.numpy()).shrinkage_


def test_equal_samples_have_a_choice() -> None:
    labels = torch.arange(20) % 2
    features = torch.tensor([[1.0, 0, 0], [0, 1, 0]])[labels]
    assert cross_validated_shrinkage(features, labels, num_classes=2) == "auto"


def test_wrong_labels_of_digits() -> None:
    images, digits = load_digits(return_X_y=True)
    train, test, labels, expected = train_test_split(
        images.astype(np.float32), digits, test_size=1 / 3, random_state=0, stratify=digits
    )
    wrong = noisy_labels(torch.tensor(labels), num_classes=10, name="symmetric", fraction=0.6)
    auto = PrototypeClassifier(whitening="shrunk").fit(train, wrong.numpy())
    chosen = PrototypeClassifier(whitening="shrunk", shrinkage="cv").fit(train, wrong.numpy())
    assert chosen.shrinkage_ is not None
    assert chosen.shrinkage_ > 0.3
    assert chosen.score(test, expected) > auto.score(test, expected) + 0.03
    # With right labels the automatic value stays.
    clean = PrototypeClassifier(whitening="shrunk", shrinkage="cv").fit(train, labels)
    assert clean.shrinkage_ == PrototypeClassifier(whitening="shrunk").fit(train, labels).shrinkage_


def test_a_chosen_shrinkage_stays(tmp_path: Path) -> None:
    features, labels = (array.numpy() for array in noisy_samples(seed=3))
    classifier = PrototypeClassifier(whitening="shrunk", shrinkage="cv").fit(features, labels)
    chosen = classifier.shrinkage_
    assert chosen in SHRINKAGES
    classifier.save(tmp_path / "saved.safetensors")
    loaded = PrototypeClassifier.load(tmp_path / "saved.safetensors")
    assert loaded.shrinkage_ == chosen
    np.testing.assert_array_equal(loaded.scores(features), classifier.scores(features))
    classifier.partial_fit(features[:20], labels[:20]).add_class(9, features[:5])
    assert classifier.remove_class(0).shrinkage_ == chosen
    # Fitted again, it chooses again.
    features, labels = (array.numpy() for array in noisy_samples(fraction=0))
    assert classifier.fit(features, labels).shrinkage_ != chosen


@pytest.mark.bad_input
@pytest.mark.parametrize("value", ["cv", 0.4])
def test_a_shrinkage_without_whitening_is_refused(value: Any) -> None:
    features, labels = (array.numpy() for array in noisy_samples())
    classifier = PrototypeClassifier(shrinkage=value)
    for method in (classifier.fit, classifier.partial_fit):
        with pytest.raises(ValueError, match=f"shrinkage={value!r} needs whitening='shrunk'"):
            method(features, labels)


@pytest.mark.bad_input
def test_cross_validation_needs_all_samples() -> None:
    features, labels = (array.numpy() for array in noisy_samples())
    classifier = PrototypeClassifier(whitening="shrunk", shrinkage="cv")
    assert not hasattr(classifier, "partial_fit")
    with pytest.raises(AttributeError, match="has no attribute 'partial_fit'") as error:
        classifier.partial_fit(features, labels)
    assert "needs all samples at once: call fit first" in str(error.value.__cause__)
    assert hasattr(classifier.fit(features, labels), "partial_fit")
    light = PrototypeClassifier(whitening="shrunk", shrinkage="cv")
    light.fit(features, labels, sample_weight=np.full(len(labels), 1 / len(labels)))
    with pytest.raises(ValueError, match="weights must count as samples, with a sum above 1"):
        light.predict(features)
    with pytest.raises(ValueError, match="must be 'auto', 'cv' or a number between 0 and 1"):
        PrototypeClassifier(shrinkage="best").fit(features, labels)  # type: ignore[arg-type]


@pytest.mark.bad_input
def test_bad_arguments_are_refused() -> None:
    features, labels = noisy_samples(num_samples=20)
    weights = torch.ones(20)
    choose = partial(cross_validated_shrinkage, num_classes=6)
    with pytest.raises(ValueError, match="rule must be 'cosine' or 'nearest', got 'euclid'"):
        choose(features, labels, rule="euclid")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="labels"):
        choose(features, labels[:-1])
    with pytest.raises(ValueError, match="labels"):
        choose(features, labels[:, None])
    with pytest.raises(ValueError, match="weights must hold one value per sample"):
        choose(features, labels, weights=weights[:-1])
    features[13, 2] = torch.nan
    with pytest.raises(ValueError, match="row 13 is not"):
        choose(features, labels)


@pytest.mark.bad_input
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learns_estimator_checks() -> None:
    # This check takes a method that a fitted estimator has for one that its clone has.
    reason = "partial_fit exists only after fit, which chooses the shrinkage"
    check_estimator(
        PrototypeClassifier(whitening="shrunk", shrinkage="cv"),
        expected_failed_checks={"check_n_features_in_after_fitting": reason},
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_chooses_as_the_cpu_does() -> None:
    features, labels = noisy_samples(seed=3)
    expected = cross_validated_shrinkage(features.double(), labels, num_classes=6)
    found = cross_validated_shrinkage(features.double().cuda(), labels.cuda(), num_classes=6)
    assert found == expected
