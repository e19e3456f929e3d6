"""Long-tailed sets: exact sizes, the images that are chosen, and splits in memory and on disk."""

import math
from collections import Counter
from decimal import Decimal, localcontext
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protosphere.data.datasets import load_digits
from protosphere.data.folders import load_folder
from protosphere.data.long_tail import long_tail_counts, long_tail_indices, take_long_tail
from protosphere.data.splits import DataError
from support.images import write_image


def _decimal_counts(largest: int, num_classes: int, ratio: str) -> list[int]:
    """The definition in arithmetic of 60 digits; exact roots are rounded to whole numbers."""
    counts = []
    with localcontext() as context:
        context.prec = 60
        for index in range(num_classes):
            exponent = Decimal(index) / (num_classes - 1)
            value = largest * Decimal(ratio) ** exponent
            nearest = value.to_integral_value()
            counts.append(int(nearest if abs(value - nearest) < Decimal("1e-40") else value))
    return counts


@pytest.mark.parametrize(
    ("largest", "num_classes", "total"),
    [(500, 100, 10_847), (5000, 10, 12_406)],
)
def test_sizes_of_long_tailed_cifar(largest: int, num_classes: int, total: int) -> None:
    counts = long_tail_counts(largest, num_classes, 0.01)
    assert sum(counts) == total
    assert (counts[0], counts[-1]) == (largest, largest // 100)


@pytest.mark.parametrize("ratio", ["0.1", "0.02", "0.01", "0.3", "1", "0.007"])
@pytest.mark.parametrize(("largest", "num_classes"), [(500, 100), (5000, 10), (1000, 4), (9, 2)])
def test_sizes_follow_the_definition(largest: int, num_classes: int, ratio: str) -> None:
    counts = long_tail_counts(largest, num_classes, float(ratio))
    assert counts == _decimal_counts(largest, num_classes, ratio)


def test_whole_numbers_are_not_rounded_down() -> None:
    """100 · 0.29 is 28.99… in floating point and 29 by the definition."""
    assert 100 * 0.29 < 29
    assert long_tail_counts(100, 2, 0.29) == [100, 29]


@given(st.integers(1, 3000), st.integers(2, 60), st.floats(1e-4, 1))
def test_sizes_decrease_from_the_largest(largest: int, num_classes: int, ratio: float) -> None:
    counts = long_tail_counts(largest, num_classes, ratio)
    assert counts[0] == largest
    assert counts == sorted(counts, reverse=True)
    for index, count in enumerate(counts):
        value = largest * ratio ** (index / (num_classes - 1))
        assert count <= value * (1 + 1e-9) < (count + 1) * (1 + 2e-9)


def test_chosen_images_are_of_each_class_and_nested_over_ratios() -> None:
    labels = torch.randint(5, (400,))
    sizes = Counter(labels.tolist())
    chosen = long_tail_indices(labels, num_classes=5, ratio=0.1)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    expected = [
        min(sizes[index], math.floor(max(sizes.values()) * 0.1 ** (index / 4)))
        for index in range(5)
    ]
    assert torch.bincount(labels[chosen]).tolist() == expected
    more = long_tail_indices(labels, num_classes=5, ratio=0.5)
    assert set(chosen.tolist()) < set(more.tolist())
    again = long_tail_indices(labels, num_classes=5, ratio=0.1)
    assert torch.equal(chosen, again)
    other = long_tail_indices(labels, num_classes=5, ratio=0.1, seed=1)
    assert not torch.equal(chosen, other)


def test_the_choice_is_a_uniform_one() -> None:
    """Over many seeds every image of a class is chosen about equally often."""
    labels = torch.tensor([0] * 10 + [1] * 10)
    picks = Counter(
        int(index)
        for seed in range(300)
        for index in long_tail_indices(labels, num_classes=2, ratio=0.3, seed=seed)
    )
    assert all(picks[index] == 300 for index in range(10))
    assert all(50 < picks[index] < 130 for index in range(10, 20))


def test_the_same_images_on_every_machine() -> None:
    """A golden value: results of runs on other machines must be comparable."""
    labels = torch.tensor([0, 1] * 8)
    chosen = long_tail_indices(labels, num_classes=2, ratio=0.25)
    assert chosen[labels[chosen] == 1].tolist() == [11, 15]


def test_a_split_in_memory_keeps_pixels_and_names() -> None:
    digits = load_digits().train
    tail = take_long_tail(digits, 0.05)
    index = long_tail_indices(digits.labels, num_classes=10, ratio=0.05)
    assert torch.equal(tail.images, digits.images[index])
    assert torch.equal(tail.labels, digits.labels[index])
    assert tail.class_names == digits.class_names
    assert tail.fingerprint() != digits.fingerprint()
    assert tail.fingerprint() == take_long_tail(load_digits().train, 0.05).fingerprint()


def test_a_folder_keeps_the_files_of_the_chosen_images(image_folder: Path) -> None:
    for index in range(5, 9):
        write_image(image_folder / "train" / "bee" / f"{index}.png", seed=50 + index)
    files = load_folder(image_folder)[0]
    tail = take_long_tail(files, 0.25)
    # n_max is 9, of the second class: 9, 4.5 and 2.25 images; the first class has only 4.
    assert torch.bincount(tail.labels).tolist() == [4, 4, 2]
    assert set(tail.paths) < set(files.paths)
    for path, label in zip(tail.paths, tail.labels.tolist(), strict=True):
        assert Path(path).parent.name == files.class_names[label]


def test_a_ratio_of_one_keeps_everything() -> None:
    digits = load_digits().train
    assert take_long_tail(digits, 1.0).fingerprint() == digits.fingerprint()


@pytest.mark.bad_input
@pytest.mark.parametrize("ratio", [0.0, -0.1, 1.01, math.nan])
def test_ratios_out_of_range_are_refused(ratio: float) -> None:
    with pytest.raises(DataError, match="ratio must be greater than 0 and at most 1, got"):
        long_tail_counts(500, 100, ratio)


@pytest.mark.bad_input
def test_one_class_and_classes_without_images_are_refused() -> None:
    with pytest.raises(DataError, match="at least 2 classes, got 1"):
        long_tail_counts(500, 1, 0.1)
    with pytest.raises(DataError, match="at least 1 image, got 0"):
        long_tail_counts(0, 2, 0.1)
    labels = torch.tensor([0] * 20 + [1] * 20)
    with pytest.raises(DataError, match=r"ratio 0.01 of 20 images, class 1 has none"):
        long_tail_indices(labels, num_classes=2, ratio=0.01)


def test_a_size_just_below_a_whole_number_is_rounded_down() -> None:
    assert long_tail_counts(10, 2, 0.3) == [10, 3]
    assert long_tail_counts(10, 2, 0.29999999999999) == [10, 2]
