"""Cross-validated shrinkage: against loops, in estimators and files, with wrong labels."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
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
    features: Tensor, labels: Tensor, *, num_classes: int, weights: Tensor, rule: Rule
) -> float | str:
    """Fit one classifier per fold and value, as the definition says."""
    folds = stratified_folds(labels)
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
    return SHRINKAGES[best] if gains[best] > 2 * variances[best] ** 0.5 else "auto"


@pytest.mark.parametrize("rule", ["cosine", "nearest"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_choice_is_that_of_loops(rule: Rule, weighted: bool) -> None:
    choices = set()
    for seed in range(12):
        features, labels = noisy_samples(num_samples=250, fraction=seed % 4 / 5, seed=seed)
        features = features.double()
        generator = torch.Generator().manual_seed(seed)
        weights = 8 * torch.rand(len(labels), generator=generator) ** 7
        if not weighted:
            weights = torch.ones(len(labels))
        expected = choose_by_loops(features, labels, num_classes=7, weights=weights, rule=rule)
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
        assert sizes.sum() == count  # Every sample is left out once.
        assert sizes.max() - sizes.min() <= 1
    folds = stratified_folds(labels, max_held_out=max_held_out, seed=seed)
    num_held_out = min(len(labels), NUM_FOLDS * max_held_out)
    assert int((folds >= 0).sum()) == num_held_out
    assert int(folds[folds >= 0].bincount().max()) <= max_held_out
    for label, count in enumerate(counts):
        left_out = int((folds[labels == label] >= 0).sum())
        assert abs(left_out - count * num_held_out / len(labels)) < 1 + 1e-9


def test_folds_do_not_depend_on_what_classes_are_called() -> None:
    labels = torch.arange(60) % 3
    assert stratified_folds(labels).equal(stratified_folds(labels + 5))
    assert not stratified_folds(labels).equal(stratified_folds(labels, seed=1))


def test_fewer_held_out_samples_choose_a_similar_value(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = noisy_samples(num_samples=2000)
    full = cross_validated_shrinkage(features, labels, num_classes=6)
    monkeypatch.setattr(shrinkage, "MAX_HELD_OUT", 100)
    limited = cross_validated_shrinkage(features, labels, num_classes=6)
    assert isinstance(full, float)
    assert isinstance(limited, float)
    assert abs(full - limited) <= 0.2


@pytest.mark.parametrize(
    "counts",
    [[1, 1, 1], [2, 1], [3], [1, 40, 2]],
    ids=["singletons", "pair", "one-class", "uneven"],
)
def test_few_samples_have_a_choice(counts: list[int]) -> None:
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    features = torch.randn(len(labels), 50, generator=torch.Generator().manual_seed(1))
    assert cross_validated_shrinkage(features, labels, num_classes=len(counts)) == "auto"
    classifier = PrototypeClassifier(whitening="shrunk", shrinkage="cv")
    classifier.fit(features.numpy(), labels.numpy())
    expected = PrototypeClassifier(whitening="shrunk").fit(features.numpy(), labels.numpy())
    assert classifier.shrinkage_ == expected.shrinkage_


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


def test_without_whitening_nothing_is_chosen(tmp_path: Path) -> None:
    features, labels = (array.numpy() for array in noisy_samples())
    classifier = PrototypeClassifier(shrinkage="cv").partial_fit(features, labels)
    assert classifier.shrinkage_ is None
    classifier.save(tmp_path / "saved.safetensors")
    assert PrototypeClassifier.load(tmp_path / "saved.safetensors").shrinkage_ is None


@pytest.mark.bad_input
def test_cross_validation_needs_all_samples() -> None:
    features, labels = (array.numpy() for array in noisy_samples())
    classifier = PrototypeClassifier(whitening="shrunk", shrinkage="cv")
    with pytest.raises(ValueError, match="needs all samples at once: call fit first"):
        classifier.partial_fit(features, labels)
    fitted = PrototypeClassifier(whitening="shrunk").fit(features, labels)
    with pytest.raises(ValueError, match="'cv' must be set before fit"):
        fitted.set_params(shrinkage="cv").predict(features)
    with pytest.raises(ValueError, match="must be 'auto', 'cv' or a number between 0 and 1"):
        PrototypeClassifier(shrinkage="best").fit(features, labels)  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_chooses_as_the_cpu_does() -> None:
    features, labels = noisy_samples(seed=3)
    expected = cross_validated_shrinkage(features.double(), labels, num_classes=6)
    found = cross_validated_shrinkage(features.double().cuda(), labels.cuda(), num_classes=6)
    assert found == expected
