"""Loaders in memory: order, views, evaluation, and the seeds behind them."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from protosphere.data.augmentation import Augmentation, AugmentationPolicy
from protosphere.data.datasets import ImageSet, load_synthetic
from protosphere.data.loaders import (
    FeatureLoader,
    Loader,
    MemoryLoader,
    derive_seed,
    epoch_order,
    index_batches,
    num_batches,
)
from protosphere.data.sampling import sample_seed


def image_split() -> ImageSet:
    split = load_synthetic(num_classes=3, num_samples=11, image_size=8).train
    assert isinstance(split, ImageSet)
    return split


def memory_loader(policy: AugmentationPolicy) -> MemoryLoader:
    split = image_split()
    return MemoryLoader(split, Augmentation(policy, *split.channel_statistics()))


@pytest.fixture(params=["images", "features"])
def loader(request: pytest.FixtureRequest) -> Loader:
    if request.param == "images":
        return memory_loader(AugmentationPolicy(8))
    return FeatureLoader(torch.randn(11, 5), torch.arange(11) % 3)


def test_every_epoch_has_an_order_of_its_own(loader: Loader) -> None:
    epochs = [
        torch.cat([index for (index,) in loader.batches(2, seed=0, epoch=epoch)]).tolist()
        for epoch in range(6)
    ]
    assert all(len(set(order)) == 10 for order in epochs)
    assert len({tuple(order) for order in epochs}) == 6
    assert set().union(*epochs) == set(range(11)), "the sample left out is not always the same"
    other_seed = torch.cat([index for (index,) in loader.batches(2, seed=1, epoch=0)])
    assert other_seed.tolist() not in epochs


def test_a_resumed_epoch_continues_with_the_same_batches(loader: Loader) -> None:
    batches = list(loader.batches(3, seed=4, epoch=2))
    resumed = list(loader.batches(3, seed=4, epoch=2, first=1))
    assert len(batches) == 3
    for (index,), (same,) in zip(batches[1:], resumed, strict=True):
        assert torch.equal(index, same)


def test_evaluation_has_all_samples_in_order(loader: Loader) -> None:
    batches = list(loader.evaluation_batches(4))
    assert [len(labels) for _, labels in batches] == [4, 4, 3]
    labels = torch.cat([labels for _, labels in batches])
    assert labels.tolist() == [index % 3 for index in range(11)]
    again = list(loader.evaluation_batches(11))
    torch.testing.assert_close(torch.cat([inputs for inputs, _ in batches]), again[0][0])


def test_loaders_satisfy_the_protocol(loader: Loader) -> None:
    assert isinstance(loader, Loader)
    assert (len(loader), loader.device) == (11, torch.device("cpu"))


def test_memory_batches_are_augmented_views_of_the_samples() -> None:
    loader = memory_loader(AugmentationPolicy(8, num_views=2))
    (index,) = next(loader.batches(4, seed=0, epoch=0))
    torch.manual_seed(3)
    images, labels = loader.prepare(index)
    torch.manual_seed(3)
    expected = loader.augmentation(loader.split.images[torch.cat([index, index])])
    assert torch.equal(images, expected)
    assert not torch.equal(images[:4], images[4:])
    assert torch.equal(labels, loader.split.labels[index].repeat(2))


def test_memory_evaluation_is_not_augmented() -> None:
    loader = memory_loader(AugmentationPolicy(8, hflip=1.0, num_views=2))
    images, _ = next(loader.evaluation_batches(11))
    mean, std = (
        torch.tensor(values)[:, None, None] for values in loader.split.channel_statistics()
    )
    expected = (loader.split.images / 255 - mean) / std
    torch.testing.assert_close(images, expected)
    assert images.mean().abs() < 1e-5
    assert float(images.std()) == pytest.approx(1, abs=1e-3)


def test_feature_batches_are_rows_of_the_features() -> None:
    features, labels = torch.randn(11, 5), torch.arange(11)
    loader = FeatureLoader(features, labels)
    (index,) = next(loader.batches(4, seed=0, epoch=0))
    rows, own_labels = loader.prepare(index)
    assert torch.equal(rows, features[index])
    assert torch.equal(own_labels, index)
    assert torch.equal(next(loader.evaluation_batches(3))[0], features[:3])


def test_features_may_be_arrays() -> None:
    features, labels = np.random.default_rng(0).normal(size=(11, 5)), np.arange(11, dtype=np.uint16)
    loader = FeatureLoader(features[:, ::-1], labels)
    (index,) = next(loader.batches(4, seed=0, epoch=0))
    rows, own_labels = loader.prepare(index)
    assert rows.dtype == torch.float32, "as the weights of an encoder"
    assert torch.equal(rows, torch.from_numpy(features[index, ::-1].astype(np.float32)))
    assert torch.equal(own_labels, index)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("features", "labels", "error", "message"),
    [
        (torch.ones(256, 4), torch.zeros(200, dtype=torch.long), ValueError, r"labels .*\(256,\)"),
        (torch.ones(200, 4), torch.zeros(256, dtype=torch.long), ValueError, r"labels .*\(200,\)"),
        (torch.ones(4, 4), torch.zeros(4), ValueError, "labels must be integer class indices"),
        (torch.ones(4, 4).long(), torch.zeros(4).long(), ValueError, "features must be float"),
        (torch.ones(4), torch.zeros(4).long(), ValueError, "features must have shape"),
        ([[1.0]], torch.zeros(1).long(), TypeError, "features must be a tensor or a NumPy array"),
        (np.ones((4, 2)), [0, 1, 0, 1], TypeError, "labels must be a tensor or a NumPy array"),
    ],
)
def test_features_and_labels_that_do_not_fit_are_refused(
    features: Any, labels: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        FeatureLoader(features, labels)


def test_the_last_incomplete_batch_is_dropped() -> None:
    assert [num_batches(samples, 4) for samples in (3, 4, 7, 8)] == [1, 1, 1, 2]
    sizes = [len(index) for (index,) in index_batches(3, 4, seed=0, epoch=0)]
    assert sizes == [3], "fewer samples than a batch make one batch"


def test_orders_are_permutations_with_seeds_of_their_own() -> None:
    orders = [epoch_order(50, seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1, 2)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(50))
    assert all(not torch.equal(first, second) for first, second in pairwise(orders))
    assert torch.equal(epoch_order(50, seed=0, epoch=0), orders[0])


def test_the_global_generator_does_not_affect_the_order() -> None:
    orders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        orders.append(epoch_order(20, seed=0, epoch=0))
    assert torch.equal(*orders)


def test_derived_seeds_depend_on_purpose_seed_and_number() -> None:
    seeds = {
        derive_seed(purpose, seed, number)
        for purpose in ("order", "step")
        for seed in (0, 1, 11)
        for number in (0, 1, 11)
    }
    assert len(seeds) == 18
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    assert derive_seed("order", 42, 3) == 1476387613898115024, "runs can be repeated later"


def test_sample_seeds_differ() -> None:
    assert len({sample_seed(*key) for key in np.ndindex(10, 10, 100)}) == 10_000
    assert sample_seed(-1, 0, 0) != sample_seed(1, 0, 0)
