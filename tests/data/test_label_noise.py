"""Label noise: exact fractions, wrong classes, flips of the usual benchmarks."""

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from scipy import stats

from protosphere.data.class_groups import CIFAR100_SUPERCLASSES
from protosphere.data.datasets import load_digits
from protosphere.data.folders import ImageFiles
from protosphere.data.label_noise import add_label_noise, class_flips, noisy_labels
from protosphere.data.splits import DataError

CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


@pytest.mark.parametrize("fraction", [0.2, 0.4, 0.29])
def test_symmetric_noise_is_exact_in_each_class(fraction: float) -> None:
    labels = torch.arange(10).repeat(100)
    noisy = noisy_labels(labels, num_classes=10, name="symmetric", fraction=fraction)
    for index in range(10):
        wrong = [one for one in noisy[labels == index].tolist() if one != index]
        assert len(wrong) == round(100 * fraction)
    assert noisy.dtype == labels.dtype
    assert torch.equal(labels, torch.arange(10).repeat(100))


def test_symmetric_noise_is_uniform_over_the_other_classes() -> None:
    labels = torch.zeros(20_000, dtype=torch.long)
    noisy = noisy_labels(labels, num_classes=5, name="symmetric", fraction=0.5)
    counts = Counter(noisy.tolist())
    assert counts[0] == 10_000
    assert stats.chisquare([counts[index] for index in range(1, 5)]).pvalue > 1e-3


def test_noise_is_nested_over_fractions_and_depends_on_the_seed() -> None:
    labels = torch.randint(4, (300,))
    few, more = (
        noisy_labels(labels, num_classes=4, name="symmetric", fraction=fraction)
        for fraction in (0.2, 0.4)
    )
    changed = few != labels
    assert torch.equal(more[changed], few[changed])
    assert int((more != labels).sum()) > int(changed.sum())
    other = noisy_labels(labels, num_classes=4, name="symmetric", fraction=0.2, seed=1)
    assert not torch.equal(few, other)


@pytest.mark.parametrize("sizes", [[1, 3], [2, 1, 3], [5, 0, 4]])
def test_every_class_keeps_a_correct_label(sizes: list[int]) -> None:
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    noisy = noisy_labels(labels, num_classes=len(sizes), name="symmetric", fraction=0.9)
    for index, size in enumerate(sizes):
        kept = int((noisy[labels == index] == index).sum())
        assert kept == size - min(round(0.9 * size), max(size - 1, 0))


def test_asymmetric_noise_of_other_sets_is_the_next_class() -> None:
    labels = torch.arange(3).repeat_interleave(10)
    noisy = noisy_labels(labels, num_classes=3, name="asymmetric", fraction=0.3)
    matrix = torch.zeros(3, 3, dtype=torch.long)
    for true, given in zip(labels.tolist(), noisy.tolist(), strict=True):
        matrix[true, given] += 1
    assert matrix.tolist() == [[7, 3, 0], [0, 7, 3], [3, 0, 7]]


def test_asymmetric_noise_of_cifar10_is_that_of_the_literature() -> None:
    flips = {CIFAR10[index]: CIFAR10[target] for index, target in enumerate(class_flips(CIFAR10))}
    expected = {name: name for name in CIFAR10} | {
        "truck": "automobile",
        "bird": "airplane",
        "deer": "horse",
        "cat": "dog",
        "dog": "cat",
    }
    assert flips == expected
    labels = torch.arange(10).repeat(10)
    noisy = noisy_labels(
        labels, num_classes=10, name="asymmetric", fraction=0.4, flips=class_flips(CIFAR10)
    )
    assert int((noisy != labels).sum()) == 5 * 4
    assert Counter(noisy[labels == 3].tolist()) == {3: 6, 5: 4}


def test_asymmetric_noise_of_cifar100_stays_in_the_superclass() -> None:
    names = sorted(name for members in CIFAR100_SUPERCLASSES.values() for name in members)
    flips = class_flips(names)
    superclass = {name: group for group, names in CIFAR100_SUPERCLASSES.items() for name in names}
    for index, target in enumerate(flips):
        assert index != target
        assert superclass[names[index]] == superclass[names[target]]
    assert sorted(flips) == list(range(100))
    assert names[flips[names.index("baby")]] == "boy"
    assert names[flips[names.index("woman")]] == "baby"


def test_a_split_in_memory_keeps_its_images() -> None:
    digits = load_digits().train
    noisy = add_label_noise(digits, name="asymmetric", fraction=0.2)
    wrong = noisy.labels != digits.labels
    assert torch.equal(noisy.labels[wrong], (digits.labels[wrong] + 1) % 10)
    assert torch.equal(noisy.images, digits.images)
    assert noisy.fingerprint() != digits.fingerprint()


def test_a_folder_keeps_its_files(files: ImageFiles) -> None:
    noisy = add_label_noise(files, name="asymmetric", fraction=0.5)
    assert noisy.paths == files.paths
    wrong = [
        (Path(path).parent.name, noisy.class_names[label])
        for path, label in zip(noisy.paths, noisy.labels.tolist(), strict=True)
        if Path(path).parent.name != noisy.class_names[label]
    ]
    # round(2.5) is 2, to the even number.
    assert Counter(wrong) == {("ant", "bee"): 2, ("bee", "cat"): 2, ("cat", "ant"): 1}
    assert noisy.fingerprint() != files.fingerprint()


@pytest.mark.bad_input
def test_wrong_arguments_are_refused() -> None:
    labels = torch.arange(3)
    for fraction in (0.0, 1.0, -0.2, math.nan):
        with pytest.raises(DataError, match="fraction must be greater than 0 and less than 1"):
            noisy_labels(labels, num_classes=3, name="symmetric", fraction=fraction)
    with pytest.raises(DataError, match=r"fraction 0\.9 of 1 images in the largest class changes"):
        noisy_labels(labels, num_classes=3, name="symmetric", fraction=0.9)
    with pytest.raises(DataError, match="one of symmetric, asymmetric; got 'pair'"):
        noisy_labels(labels, num_classes=3, name="pair", fraction=0.1)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="at least 2 classes, got 1"):
        noisy_labels(labels * 0, num_classes=1, name="symmetric", fraction=0.1)
