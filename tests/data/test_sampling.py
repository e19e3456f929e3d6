"""Samplers: class frequencies, cycles through each class, and orders that only the seed decides."""

from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
import torch

from protosphere.data.augmentation import Augmentation, AugmentationPolicy
from protosphere.data.datasets import ImageSet
from protosphere.data.folder_loader import FolderLoader
from protosphere.data.folders import IMAGENET_STATISTICS, ImageFiles
from protosphere.data.imbalance import (
    balanced_class_weights,
    class_counts,
    effective_class_weights,
)
from protosphere.data.loaders import MemoryLoader
from protosphere.data.sampling import SamplerName, epoch_order, index_batches

COUNTS = (900, 90, 0, 9, 1)
LABELS = torch.repeat_interleave(torch.arange(5), torch.tensor(COUNTS))


def shuffled_labels() -> torch.Tensor:
    return LABELS[torch.randperm(len(LABELS), generator=torch.Generator().manual_seed(0))]


@pytest.mark.parametrize("sampler", ["balanced", "sqrt"])
def test_class_frequencies_are_those_of_the_definition(sampler: SamplerName) -> None:
    labels = shuffled_labels()
    weights = [float(n > 0) if sampler == "balanced" else n**0.5 for n in COUNTS]
    drawn: Counter[int] = Counter()
    for epoch in range(100):
        order = epoch_order(1000, seed=3, epoch=epoch, sampler=sampler, labels=labels)
        assert len(order) == 1000
        drawn.update(labels[order].tolist())
    for index, weight in enumerate(weights):
        p = weight / sum(weights)
        # Five standard deviations of a binomial number.
        deviation = 5 * (1e5 * p * (1 - p)) ** 0.5
        assert abs(drawn[index] - 1e5 * p) <= deviation, (index, drawn[index], p)


@pytest.mark.parametrize("sampler", ["balanced", "sqrt"])
def test_a_class_is_exhausted_before_a_sample_is_repeated(sampler: SamplerName) -> None:
    labels = shuffled_labels()
    order = epoch_order(1000, seed=0, epoch=0, sampler=sampler, labels=labels)
    for index, count in enumerate(COUNTS):
        own = order[labels[order] == index].tolist()
        for start in range(0, len(own), count or 1):
            cycle = own[start : start + count]
            assert len(set(cycle)) == len(cycle)
    repeated = [own for own in Counter(order.tolist()).values() if own > 1]
    assert repeated, "small classes are repeated"
    if sampler == "balanced":
        nine = order[labels[order] == 3].tolist()
        assert nine[:9] != nine[9:18], "each cycle has an order of its own"


def test_samples_of_a_large_class_are_equally_likely() -> None:
    labels = torch.tensor([0] * 18 + [1] * 2)
    drawn = Counter(
        index
        for epoch in range(2000)
        for index in epoch_order(
            20, seed=0, epoch=epoch, sampler="balanced", labels=labels
        ).tolist()
    )
    expected = 2000 * 10 / 18
    assert all(abs(drawn[index] - expected) < 5 * expected**0.5 for index in range(18))


def test_seed_and_epoch_decide_the_order() -> None:
    labels = shuffled_labels()

    def order(seed: int, epoch: int, sampler: SamplerName = "balanced") -> list[int]:
        return epoch_order(1000, seed=seed, epoch=epoch, sampler=sampler, labels=labels).tolist()

    torch.manual_seed(1)
    reference = order(0, 0)
    torch.manual_seed(2)
    assert order(0, 0) == reference, "the global generator is not used"
    assert len({tuple(order(*key)) for key in ((0, 0), (0, 1), (1, 0))}) == 3
    assert order(0, 0, "sqrt") != reference
    uniform = epoch_order(1000, seed=0, epoch=0).tolist()
    assert order(0, 0, "uniform") == uniform
    assert sorted(uniform) == list(range(1000))


def test_any_batch_is_reachable_directly() -> None:
    def batches(first: int) -> list[list[int]]:
        stream = index_batches(
            1000, 96, seed=5, epoch=2, first=first, sampler="sqrt", labels=LABELS
        )
        return [index.tolist() for (index,) in stream]

    whole = batches(0)
    assert [len(index) for index in whole] == [96] * 10, "the length of an epoch does not change"
    assert all(batches(first) == whole[first:] for first in (1, 7, 10))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("sampler", ["uniform", "balanced", "sqrt"])
def test_processes_draw_together_what_one_draws(sampler: SamplerName, count: int) -> None:
    """Every batch of one process is divided, so that no sample is drawn because of processes."""
    labels = shuffled_labels()

    def draw(epoch: int, shard: tuple[int, int]) -> list[list[int]]:
        stream = index_batches(
            1000, 50, seed=5, epoch=epoch, sampler=sampler, labels=labels, shard=shard
        )
        return [index.tolist() for (index,) in stream]

    for epoch in range(4):
        parts = [draw(epoch, (rank, count)) for rank in range(count)]
        steps = list(zip(*parts, strict=True))
        assert [list(chain(*step)) for step in steps] == draw(epoch, (0, 1))
        assert all(max(map(len, step)) - min(map(len, step)) <= 1 for step in steps)
        times = Counter(index for part in parts for step in part for index in step)
        assert times.total() == 1000
        if sampler == "uniform":
            assert set(times) == set(range(1000))
        for index, size in enumerate(COUNTS):
            own = [times[sample] for sample in (labels == index).nonzero().flatten().tolist()]
            assert len(own) == size
            assert not own or max(own) - min(own) <= 1, "each sample once before one is repeated"


@pytest.mark.parametrize("sampler", ["balanced", "sqrt"])
def test_epochs_cover_the_whole_set(sampler: SamplerName) -> None:
    labels = shuffled_labels()
    orders = [
        epoch_order(1000, seed=0, epoch=epoch, sampler=sampler, labels=labels)
        for epoch in range(80)
    ]
    assert len(torch.cat(orders).unique()) == 1000


def test_the_memory_loader_samples_classes_alike() -> None:
    labels = torch.tensor([0] * 60 + [1] * 4)
    split = ImageSet(torch.zeros(64, 3, 8, 8, dtype=torch.uint8), labels, ("many", "few"))
    augmentation = Augmentation(AugmentationPolicy(8), *split.channel_statistics())
    loader = MemoryLoader(split, augmentation, sampler="balanced")
    batches = list(loader.batches(16, seed=0, epoch=0))
    order = epoch_order(64, seed=0, epoch=0, sampler="balanced", labels=labels)
    assert torch.equal(torch.cat([index for (index,) in batches]), order)
    (resumed, *_) = loader.batches(16, seed=0, epoch=0, first=2)
    assert torch.equal(resumed[0], batches[2][0])
    plain = torch.cat(
        [index for (index,) in MemoryLoader(split, augmentation).batches(16, seed=0, epoch=0)]
    )
    assert sorted(plain.tolist()) == list(range(64))


def test_the_folder_loader_samples_classes_alike_and_crops_repeated_images_anew(
    files: ImageFiles,
) -> None:
    augmentation = Augmentation(AugmentationPolicy(16, hflip=0.0), *IMAGENET_STATISTICS)
    loader = FolderLoader(files, augmentation, device="cpu", workers=0, sampler="balanced")
    batches = list(loader.batches(11, seed=1, epoch=0))
    (images, labels), order = (
        batches[0],
        epoch_order(11, seed=1, epoch=0, sampler="balanced", labels=files.labels),
    )
    assert torch.equal(labels, files.labels[order])
    index, number = Counter(order.tolist()).most_common(1)[0]
    assert number > 1, "otherwise the next line tests nothing"
    repeated = images[order == index]
    assert not torch.equal(repeated[0], repeated[1])
    split = list(loader.batches(4, seed=1, epoch=0, first=1))
    assert torch.equal(split[0][0], images[4:8]), "a resumed epoch has the same crops"
    uniform = FolderLoader(files, augmentation, device="cpu", workers=0)
    ((plain, plain_labels),) = uniform.batches(11, seed=1, epoch=0)
    assert sorted(plain_labels.tolist()) == sorted(files.labels.tolist())
    where = {int(sample): place for place, sample in enumerate(epoch_order(11, seed=1, epoch=0))}
    first = int((order == index).nonzero()[0])
    assert torch.equal(images[first], plain[where[index]]), "the first crop does not depend on it"


@pytest.mark.bad_input
def test_invalid_samplers_are_refused(files: ImageFiles, image_folder: Path) -> None:
    assert image_folder.is_dir()
    with pytest.raises(ValueError, match="sampler 'sqrt' needs labels, one per sample"):
        epoch_order(10, seed=0, epoch=0, sampler="sqrt")
    with pytest.raises(ValueError, match=r"of shape \(10,\); got shape \(9,\)"):
        epoch_order(10, seed=0, epoch=0, sampler="sqrt", labels=torch.zeros(9, dtype=torch.long))
    augmentation = Augmentation(AugmentationPolicy(16), *IMAGENET_STATISTICS)
    message = "sampler must be one of uniform, balanced, sqrt; got 'even'"
    with pytest.raises(ValueError, match=message):
        FolderLoader(files, augmentation, device="cpu", sampler="even")  # type: ignore[arg-type]
    split = ImageSet(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]), ("a", "b"))
    with pytest.raises(ValueError, match=message):
        MemoryLoader(split, augmentation, sampler="even")  # type: ignore[arg-type]


def test_counts_include_classes_without_samples() -> None:
    assert class_counts(LABELS, 6).tolist() == [*COUNTS, 0]
    assert class_counts(torch.empty(0, dtype=torch.long), 2).tolist() == [0, 0]


def test_balanced_weights_are_scikit_learns() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    labels = LABELS[LABELS != 2] - (LABELS[LABELS != 2] > 2).long()
    expected = compute_class_weight("balanced", classes=torch.arange(4).numpy(), y=labels.numpy())
    weights = balanced_class_weights(class_counts(labels, 4))
    torch.testing.assert_close(weights.double(), torch.from_numpy(expected), rtol=1e-6, atol=0)
    assert float(weights[labels].mean()) == pytest.approx(1)


def test_effective_weights_are_those_of_the_definition() -> None:
    counts = [5000, 500, 50, 5, 1]
    for beta in (0.0, 0.9, 0.9999, 0.999999):
        inverse = [(1 - beta) / (1 - beta**n) for n in counts]
        expected = [5 * value / sum(inverse) for value in inverse]
        found = effective_class_weights(torch.tensor(counts), beta=beta).tolist()
        assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.bad_input
def test_invalid_counts_are_refused() -> None:
    for weights in (balanced_class_weights, effective_class_weights):
        with pytest.raises(ValueError, match="at least 1 for every class, got 0 for class 1"):
            weights(torch.tensor([3, 0, 2]))
    with pytest.raises(ValueError, match="beta must be at least 0 and less than 1, got 1"):
        effective_class_weights(torch.tensor([3, 2]), beta=1)
