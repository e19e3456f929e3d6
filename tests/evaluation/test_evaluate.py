"""An assessment: accuracies, means and confusion counted by hand; the same numbers streamed; a view in space."""

import numpy as np
import pytest
import torch

from protosphere.classifiers import CosineClassifier, MeanClassifier, class_means
from protosphere.data.augmentation import Augmentation
from protosphere.data.datasets import synthetic
from protosphere.data.loaders import MemoryFeed
from protosphere.encoders import backbone
from protosphere.evaluation import assess, outputs
from protosphere.evaluation.probes import FeatureFeed
from protosphere.metrics import measure
from protosphere.training import Objective

CLASSES = 5


@pytest.fixture
def objective() -> Objective:
    torch.manual_seed(0)
    encoder = backbone("small")
    return Objective(
        encoder,
        CosineClassifier(encoder.num_features, CLASSES),
        lambda features, *_: features.sum(),
    )


@pytest.fixture
def feeds() -> tuple[MemoryFeed, MemoryFeed]:
    source = synthetic(CLASSES, samples=43, resolution=8)
    train, test = (
        MemoryFeed(part, Augmentation(8, "resized", flip=0.5))
        for part in (source.train, source.test)
    )
    return train, test


def test_outputs_are_those_of_the_clean_images_one_by_one(
    objective: Objective, feeds: tuple
) -> None:
    feed, _ = feeds
    objective.train()
    seen: list[float] = []
    found = outputs(objective, feed, batch=10, progress=seen.append)
    assert objective.training
    assert seen[-1] == 1
    assert len(seen) == 5
    assert seen == sorted(seen)
    objective.eval()
    for index in range(len(feed)):
        with torch.no_grad():
            image = feed.augmentation.clean()(feed.data.images[index : index + 1])
            features = objective.encoder(image)
        torch.testing.assert_close(found.features[index], features[0])
        assert found.decisions[index] == objective.head(features).argmax()
    assert torch.equal(found.labels, feed.data.labels)


def test_numbers_are_counted(objective: Objective, feeds: tuple) -> None:
    train, test = feeds
    seen: list[float] = []
    result = assess(objective, train, test, batch=7, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1)
    assert seen[len(seen) // 2 - 1] == pytest.approx(len(train) / (len(train) + len(test)))
    own, other = outputs(objective, train), outputs(objective, test)
    unit = [
        torch.nn.functional.normalize(part.features.double(), dim=1).numpy()
        for part in (own, other)
    ]
    labels, test_labels = own.labels.numpy(), other.labels.numpy()
    means = np.stack([unit[0][labels == index].mean(0) for index in range(CLASSES)])
    nearest = ((unit[1][:, None] - means) ** 2).sum(2).argmin(1)
    assert result.numbers["train_accuracy"] == pytest.approx(
        (own.decisions.numpy() == labels).mean()
    )
    assert result.numbers["test_accuracy"] == pytest.approx(
        (other.decisions.numpy() == test_labels).mean()
    )
    assert result.numbers["nearest_mean_accuracy"] == pytest.approx((nearest == test_labels).mean())
    expected = measure(own.features, own.labels, objective.head.prototypes)
    assert {name: result.numbers[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    confusion = np.zeros((CLASSES, CLASSES), int)
    for truth, decision in zip(test_labels, other.decisions.tolist(), strict=True):
        confusion[truth, decision] += 1
    geometry = result.geometry
    assert np.array_equal(geometry["confusion"].numpy(), confusion)
    assert geometry["class_accuracy"].numpy() == pytest.approx(
        confusion.diagonal() / confusion.sum(1)
    )
    assert geometry["class_means"].numpy() == pytest.approx(means, abs=1e-6)
    centered = means - means.mean(0)
    directions = centered / np.linalg.norm(centered, axis=1, keepdims=True)
    assert geometry["class_cosines"].numpy() == pytest.approx(directions @ directions.T, abs=1e-5)
    # Three orthonormal directions, the largest entry of each positive, give all that is drawn.
    axes = np.linalg.svd(centered, full_matrices=False)[2][:3]
    axes *= np.sign(axes[np.arange(3), np.abs(axes).argmax(1)])[:, None]
    prototypes = geometry["prototypes"].double().numpy()
    for drawn, points in (
        ("means_3d", centered),
        ("prototypes_3d", prototypes - prototypes.mean(0)),
        ("samples_3d", unit[1] - means.mean(0)),
    ):
        np.testing.assert_allclose(geometry[drawn].numpy(), points @ axes.T, atol=1e-4)


def test_streamed_numbers_are_the_same(objective: Objective, feeds: tuple) -> None:
    whole, streamed = assess(objective, *feeds), assess(objective, *feeds, metrics="cheap", batch=7)
    assert set(streamed.numbers) < set(whole.numbers)
    assert streamed.numbers == pytest.approx(
        {name: whole.numbers[name] for name in streamed.numbers}, rel=1e-5
    )
    for name, value in whole.geometry.items():
        torch.testing.assert_close(streamed.geometry[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("metrics", ["all", "cheap"])
def test_a_head_of_class_means_takes_them_first(
    objective: Objective, feeds: tuple, metrics: str
) -> None:
    head = MeanClassifier(objective.encoder.num_features, CLASSES)
    contrastive = Objective(objective.encoder, head, objective.loss)
    numbers = assess(contrastive, *feeds, metrics=metrics, batch=7).numbers
    own, other = (outputs(contrastive, feed) for feed in feeds)
    expected = class_means(own.features, own.labels, num_classes=CLASSES)
    torch.testing.assert_close(head.prototypes, expected.means.float(), rtol=0, atol=1e-6)
    assert numbers["test_accuracy"] == float(
        (head.predict(other.features) == other.labels).double().mean()
    )
    assert numbers["weight_class_alignment"] == pytest.approx(0, abs=1e-9)
    if metrics == "all":
        assert numbers["train_accuracy"] == float(
            (head.predict(own.features) == own.labels).double().mean()
        )
    else:
        assert "train_accuracy" not in numbers


def test_three_dimensions_keep_the_distances_of_few_means(
    objective: Objective, feeds: tuple
) -> None:
    """Four means and their center span three dimensions, so nothing is lost for four classes."""
    source = synthetic(4, samples=40, resolution=8)
    feed = MemoryFeed(source.train, Augmentation(8))
    head = CosineClassifier(objective.encoder.num_features, 4)
    geometry = assess(Objective(objective.encoder, head, objective.loss), feed, feed).geometry
    drawn, means = geometry["means_3d"], geometry["class_means"]
    torch.testing.assert_close(
        torch.cdist(drawn, drawn), torch.cdist(means, means), rtol=1e-3, atol=1e-5
    )
    assert geometry["samples_3d"].shape == (40, 3)
    assert torch.equal(geometry["sample_labels"].long(), source.train.labels)
    cosines = geometry["prototype_cosines"]
    torch.testing.assert_close(cosines.diagonal(), torch.ones(4))


def test_a_class_without_test_images_has_no_accuracy(objective: Objective, feeds: tuple) -> None:
    train, test = feeds
    part = test.data.chosen(torch.nonzero(test.data.labels != 2).flatten())
    accuracy = assess(objective, train, MemoryFeed(part, test.augmentation)).geometry[
        "class_accuracy"
    ]
    assert torch.isnan(accuracy).tolist() == [False, False, True, False, False]


def test_drawn_samples_are_spread_over_classes(objective: Objective) -> None:
    source = synthetic(CLASSES, samples=4000, resolution=8)
    data = source.test.chosen(source.test.labels.argsort(stable=True))
    feed = MemoryFeed(data, Augmentation(8))
    labels = assess(
        objective, MemoryFeed(source.train, Augmentation(8)), feed, metrics="cheap"
    ).geometry["sample_labels"]
    assert torch.bincount(labels.long()).tolist() == [400] * CLASSES


def test_the_nearest_mean_is_nearest_by_distance() -> None:
    """A class that spreads has a short mean: by the product a sample at 50° would be of the class at 0°."""
    angles = torch.deg2rad(torch.tensor([0.0, 0.0, 30.0, 150.0, 50.0]))
    features, labels = torch.stack([angles.cos(), angles.sin()], 1), torch.tensor([0, 0, 1, 1, 1])
    objective = Objective(
        torch.nn.Identity(), CosineClassifier(2, 2), lambda features, *_: features.sum()
    )
    train, test = FeatureFeed(features[:4], labels[:4]), FeatureFeed(features[4:], labels[4:])
    assert assess(objective, train, test).numbers["nearest_mean_accuracy"] == 1
