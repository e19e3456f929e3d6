"""Evaluation: accuracies, means and confusion counted in NumPy; streamed metrics; 3-D points."""

from typing import Literal

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from protosphere.classifiers import CosineClassifier, MeanClassifier, class_means
from protosphere.data.augmentation import Augmentation, AugmentationPolicy
from protosphere.data.datasets import load_synthetic
from protosphere.data.loaders import FeatureLoader, MemoryLoader
from protosphere.data.splits import ImageSet, Split
from protosphere.encoders import Encoder, create_backbone
from protosphere.evaluation import collect_outputs, evaluate, fit_head
from protosphere.evaluation.calibration import (
    adaptive_calibration_error,
    expected_calibration_error,
)
from protosphere.metrics import measure, measure_detailed
from protosphere.metrics.verdicts import verdicts
from protosphere.training import Objective

NUM_CLASSES = 5
Loaders = tuple[MemoryLoader, MemoryLoader]


def create_objective(num_classes: int = NUM_CLASSES) -> Objective:
    encoder = Encoder(create_backbone("small", in_channels=3))
    head = CosineClassifier(encoder.out_dim, num_classes)
    return Objective(encoder, head, lambda features, *_: features.sum())


def create_loader(split: Split) -> MemoryLoader:
    assert isinstance(split, ImageSet)
    policy = AugmentationPolicy(size=8)
    return MemoryLoader(split, Augmentation(policy, *split.channel_statistics()))


@pytest.fixture
def objective() -> Objective:
    return create_objective()


@pytest.fixture
def contrastive(objective: Objective) -> Objective:
    head = MeanClassifier(objective.encoder.out_dim, NUM_CLASSES)  # type: ignore[arg-type]
    return Objective(objective.encoder, head, objective.loss)


@pytest.fixture
def loaders() -> Loaders:
    dataset = load_synthetic(num_classes=NUM_CLASSES, num_samples=43, image_size=8)
    return create_loader(dataset.train), create_loader(dataset.test)


def test_progress_covers_both_splits(objective: Objective, loaders: Loaders) -> None:
    train, test = loaders
    test.split = test.split.subset(torch.arange(20))
    fractions: list[float] = []
    evaluate(objective, train, test, batch_size=7, progress=fractions.append)
    assert fractions == sorted(fractions)
    assert fractions[6] == pytest.approx(43 / 63)
    assert fractions[-1] == pytest.approx(1)


def test_accuracies_and_metrics_match_a_count(objective: Objective, loaders: Loaders) -> None:
    metrics = evaluate(objective, *loaders, batch_size=7).metrics
    train, test = (collect_outputs(objective, loader) for loader in loaders)
    unit = normalize(train.features.double(), dim=1).numpy()
    labels = train.labels.numpy()
    means = np.stack([unit[labels == index].mean(0) for index in range(NUM_CLASSES)])
    test_unit = normalize(test.features.double(), dim=1).numpy()
    nearest = ((test_unit[:, None] - means) ** 2).sum(2).argmin(1)
    logits = objective.head(test.features).detach()
    confidences, correct = logits.softmax(1).amax(1), test.predictions == test.labels
    by_class = [correct[test.labels == index].double().mean() for index in range(NUM_CLASSES)]
    expected = {
        "accuracy": correct.double().mean().item(),
        "balanced_accuracy": sum(by_class).item() / NUM_CLASSES,
        "loss": cross_entropy(logits.double(), test.labels).item(),
        "ece": expected_calibration_error(confidences, correct),
        "adaptive_ece": adaptive_calibration_error(confidences, correct),
        "nearest_mean_accuracy": (nearest == test.labels.numpy()).mean(),
        "train_accuracy": (train.predictions == train.labels).double().mean().item(),
        **measure(train.features, train.labels, objective.head.prototypes),
    }
    assert metrics == pytest.approx(expected, rel=1e-5)
    assert list(metrics) == list(expected)


def test_arrays_match_their_definitions(objective: Objective, loaders: Loaders) -> None:
    arrays = evaluate(objective, *loaders).arrays
    train, test = (collect_outputs(objective, loader) for loader in loaders)
    unit, test_unit = (
        normalize(outputs.features.double(), dim=1).numpy() for outputs in (train, test)
    )
    labels = train.labels.numpy()
    means = np.stack([unit[labels == index].mean(0) for index in range(NUM_CLASSES)])
    prototypes = normalize(objective.head.prototypes.detach().double(), dim=1).numpy()
    confusion = np.zeros((NUM_CLASSES, NUM_CLASSES), int)
    for label, prediction in zip(test.labels.tolist(), test.predictions.tolist(), strict=True):
        confusion[label, prediction] += 1
    confidences = objective.head(test.features).softmax(1).amax(1).detach()
    centered = means - means.mean(0)
    directions = centered / np.linalg.norm(centered, axis=1, keepdims=True)
    axes = np.linalg.svd(centered, full_matrices=False)[2][:3]
    axes *= np.sign(axes[np.arange(3), np.abs(axes).argmax(1)])[:, None]
    expected = {
        "class_means": means,
        "prototypes": prototypes,
        "class_cosines": directions @ directions.T,
        "prototype_cosines": prototypes @ prototypes.T,
        "class_accuracy": confusion.diagonal() / confusion.sum(1),
        "class_confidence": np.stack(
            [confidences[test.labels == index].mean() for index in range(NUM_CLASSES)]
        ),
        "means_3d": centered @ axes.T,
        "prototypes_3d": (prototypes - prototypes.mean(0)) @ axes.T,
        "samples_3d": (test_unit - means.mean(0)) @ axes.T,
        "confusion": confusion,
        "sample_labels": test.labels.numpy(),
    }
    assert arrays.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(arrays[name], value, atol=1e-4, err_msg=name)
        assert arrays[name].dtype == (np.int32 if value.dtype.kind == "i" else np.float32)
        assert arrays[name].flags.c_contiguous


def test_balanced_accuracy_weights_classes_equally() -> None:
    """Three of four samples of class 0 and none of class 1 are classified correctly."""
    features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    head = CosineClassifier(2, 2)
    with torch.no_grad():
        head.prototypes.copy_(torch.eye(2))
    objective = Objective(torch.nn.Identity(), head, lambda *_: features.sum())
    loader = FeatureLoader(features, torch.tensor([0, 0, 0, 0, 1]))
    metrics = evaluate(objective, loader, loader).metrics
    assert metrics["accuracy"] == pytest.approx(3 / 5)
    assert metrics["balanced_accuracy"] == pytest.approx(3 / 8)


def test_verdicts_are_those_of_the_training_features(
    objective: Objective, loaders: Loaders
) -> None:
    train = collect_outputs(objective, loaders[0])
    prototypes = objective.head.prototypes
    measured = measure_detailed(train.features, train.labels, prototypes)
    expected = verdicts(
        measured.values,
        measured.absent,
        *prototypes.shape,
        sign=measured.sign,
        num_samples=len(train.labels),
    )
    found = evaluate(objective, *loaders, batch_size=43).verdicts
    assert [one.answer for one in found] == [one.answer for one in expected]
    assert [one.condition for one in found] == ["NC1", "NC2", "NC3", "NC4"]
    assert found[1].attainable == expected[1].attainable
    cheap = evaluate(objective, *loaders, metrics="cheap").verdicts
    assert [one.answer for one in cheap[:3]] == [one.answer for one in expected[:3]]
    assert (cheap[3].answer, cheap[3].value) == ("not measured", None)
    assert cheap[3].explanation == "not among the cheap metrics"


def test_metrics_that_cannot_be_computed_are_absent(objective: Objective) -> None:
    """One sample of each class has no variance; neither form of the metrics reports NaN."""
    split = load_synthetic(num_classes=NUM_CLASSES, num_samples=NUM_CLASSES, image_size=8).train
    loader = create_loader(split.subset(split.labels.argsort(stable=True)))
    assert sorted(loader.split.labels.tolist()) == list(range(NUM_CLASSES))
    for metrics in ("all", "cheap"):
        values = evaluate(objective, loader, loader, metrics=metrics).metrics
        assert "instance_alignment" not in values
        assert not any(np.isnan(value) for value in values.values())


def test_streamed_metrics_equal_those_in_memory(objective: Objective, loaders: Loaders) -> None:
    whole = evaluate(objective, *loaders)
    streamed = evaluate(objective, *loaders, metrics="cheap", batch_size=7)
    assert set(streamed.metrics) < set(whole.metrics)
    assert "train_accuracy" in streamed.metrics
    expected = {name: whole.metrics[name] for name in streamed.metrics}
    assert streamed.metrics == pytest.approx(expected, rel=1e-5)
    for name, value in whole.arrays.items():
        np.testing.assert_allclose(streamed.arrays[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("metrics", ["all", "cheap"])
def test_a_fitted_head_is_fitted_before_it_is_evaluated(
    contrastive: Objective, loaders: Loaders, metrics: Literal["all", "cheap"]
) -> None:
    values = evaluate(contrastive, *loaders, metrics=metrics, batch_size=7).metrics
    train, test = (collect_outputs(contrastive, loader) for loader in loaders)
    means = class_means(train.features, train.labels, num_classes=NUM_CLASSES).means
    prototypes = contrastive.head.prototypes
    torch.testing.assert_close(prototypes, means.float(), rtol=0, atol=1e-6)
    assert values["accuracy"] == float((test.predictions == test.labels).double().mean())
    logits = contrastive.head(test.features)
    assert values["loss"] == pytest.approx(float(cross_entropy(logits, test.labels)), rel=1e-5)
    assert values["ece"] > 0
    assert values["weight_class_alignment"] == pytest.approx(0, abs=1e-9)


def test_training_accuracy_of_a_fitted_head(contrastive: Objective, loaders: Loaders) -> None:
    """Batch by batch, predictions precede the class means, and the accuracy is absent."""
    values = evaluate(contrastive, *loaders, metrics="all").metrics
    outputs = collect_outputs(contrastive, loaders[0])
    expected = float((outputs.predictions == outputs.labels).double().mean())
    assert values["train_accuracy"] == expected
    assert "train_accuracy" not in evaluate(contrastive, *loaders, metrics="cheap").metrics


def test_fit_head_sets_the_class_means(contrastive: Objective, loaders: Loaders) -> None:
    fractions: list[float] = []
    fit_head(contrastive, loaders[0], batch_size=10, progress=fractions.append)
    outputs = collect_outputs(contrastive, loaders[0])
    means = class_means(outputs.features, outputs.labels, num_classes=NUM_CLASSES).means
    torch.testing.assert_close(contrastive.head.prototypes, means.float(), rtol=0, atol=1e-6)
    assert fractions[-1] == 1


@pytest.mark.bad_input
def test_a_trained_head_cannot_be_fitted(objective: Objective, loaders: Loaders) -> None:
    with pytest.raises(TypeError, match="such as MeanClassifier; got CosineClassifier"):
        fit_head(objective, loaders[0])


def test_three_dimensions_keep_the_distances_of_four_class_means() -> None:
    """Four means minus their center span three dimensions, so the projection is exact."""
    split = load_synthetic(num_classes=4, num_samples=40, image_size=8).train
    arrays = evaluate(create_objective(4), create_loader(split), create_loader(split)).arrays
    points, means = (torch.from_numpy(arrays[name]) for name in ("means_3d", "class_means"))
    distances = torch.cdist(means, means)
    torch.testing.assert_close(torch.cdist(points, points), distances, rtol=1e-3, atol=1e-5)
    assert arrays["samples_3d"].shape == (40, 3)
    assert np.array_equal(arrays["sample_labels"], split.labels.numpy())


def test_a_class_without_evaluation_images_has_no_accuracy(
    objective: Objective, loaders: Loaders
) -> None:
    train, test = loaders
    others = test.split.subset(torch.nonzero(test.split.labels != 2).flatten())
    metrics, arrays, _ = evaluate(objective, train, create_loader(others))
    for name in ("class_accuracy", "class_confidence"):
        assert np.isnan(arrays[name]).tolist() == [False, False, True, False, False]
    mean = arrays["class_accuracy"][[0, 1, 3, 4]].mean()
    assert metrics["balanced_accuracy"] == pytest.approx(mean)


def test_plotted_samples_are_balanced_over_classes(objective: Objective) -> None:
    dataset = load_synthetic(num_classes=NUM_CLASSES, num_samples=4000, image_size=8)
    by_class = dataset.test.subset(dataset.test.labels.argsort(stable=True))
    arrays = evaluate(
        objective, create_loader(dataset.train), create_loader(by_class), metrics="cheap"
    ).arrays
    assert np.bincount(arrays["sample_labels"]).tolist() == [400] * NUM_CLASSES


def test_the_nearest_mean_is_nearest_by_distance() -> None:
    """A class with large variance has a short mean: by inner product, 50° would belong to 0°."""
    angles = torch.deg2rad(torch.tensor([0.0, 0.0, 30.0, 150.0, 50.0]))
    features, labels = torch.stack([angles.cos(), angles.sin()], 1), torch.tensor([0, 0, 1, 1, 1])
    objective = Objective(torch.nn.Identity(), CosineClassifier(2, 2), lambda *_: features.sum())
    train, test = FeatureLoader(features[:4], labels[:4]), FeatureLoader(features[4:], labels[4:])
    assert evaluate(objective, train, test).metrics["nearest_mean_accuracy"] == 1
