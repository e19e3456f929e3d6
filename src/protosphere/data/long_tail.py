"""Long-tailed versions of datasets: class sizes that decrease exponentially."""

from fractions import Fraction
from typing import TypeVar

import torch
from jaxtyping import Integer
from torch import Tensor

from protosphere.data.imbalance import class_counts
from protosphere.data.sampling import derive_seed
from protosphere.data.splits import DataError, Split

SomeSplit = TypeVar("SomeSplit", bound=Split)


def long_tail_counts(largest: int, num_classes: int, ratio: float) -> list[int]:
    r"""Return the number of images of each class of a long-tailed set.

    .. math:: n_c = \lfloor n_{\max}\, r^{c/(K-1)} \rfloor, \quad c = 0, \dots, K-1

    The floor is that of the exact number, with r as it is written in decimals: rounding of
    floating-point numbers does not take an image away from a class.

    Args:
        largest: Number n_max of images of the first class, at least 1.
        num_classes: Number K of classes, at least 2.
        ratio: Size r of the last class relative to the first, greater than 0 and at most 1.

    Returns:
        The size of each class; 0 for classes of less than one image.

    Raises:
        DataError: An argument is out of its range.

    >>> long_tail_counts(100, 3, 0.01)
    [100, 10, 1]
    >>> sum(long_tail_counts(500, 100, 0.01)), sum(long_tail_counts(5000, 10, 0.01))
    (10847, 12406)

    Reference:
        Cao et al., Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss,
        NeurIPS 2019.
    """
    if largest < 1:
        raise DataError(f"the largest class must have at least 1 image, got {largest}")
    if num_classes < 2:
        raise DataError(f"a long tail needs at least 2 classes, got {num_classes}")
    if not 0 < ratio <= 1:
        raise DataError(f"ratio must be greater than 0 and at most 1, got {ratio}")
    exact = Fraction(repr(float(ratio)))
    if exact == 1:
        return [largest] * num_classes
    return [_floor(largest, exact, index, num_classes - 1) for index in range(num_classes)]


def _floor(largest: int, ratio: Fraction, index: int, last: int) -> int:
    """Return the largest n with n^last <= largest^last * ratio^index."""
    value: float = largest * float(ratio) ** (index / last)
    nearest = round(value)
    if abs(value - nearest) > 1e-9 * value:
        return int(value)  # Rounding errors are far smaller than the distance to a whole number.
    reaches = nearest**last * ratio.denominator**index <= largest**last * ratio.numerator**index
    return nearest if reaches else nearest - 1


def long_tail_indices(
    labels: Integer[Tensor, "samples"], *, num_classes: int, ratio: float, seed: int = 0
) -> Integer[Tensor, "subset"]:
    """Choose the images of a long-tailed version of a set.

    The first n_c images of a random permutation of each class are chosen, with n_c of
    :func:`long_tail_counts` and n_max the size of the largest class. A class that has fewer than
    n_c images keeps all of them. The permutation depends on the seed, the class and the number of
    its images, so that the images of a smaller ratio are among those of a larger one.

    Args:
        labels: Class index of each image.
        num_classes: Number of classes.
        ratio: Size of the last class relative to the first, greater than 0 and at most 1.
        seed: Seed of the permutations.

    Returns:
        Indices of the chosen images, increasing, on the CPU.

    Raises:
        DataError: The ratio is out of its range, there are fewer than two classes, or a class
            would have no images.

    >>> labels = torch.arange(2).repeat_interleave(10)
    >>> labels[long_tail_indices(labels, num_classes=2, ratio=0.2)].bincount()
    tensor([10,  2])
    """
    available = class_counts(labels, num_classes).tolist()
    wanted = long_tail_counts(max(available), num_classes, ratio)
    counts = [min(pair) for pair in zip(wanted, available, strict=True)]
    if 0 in counts:
        raise DataError(
            f"every class of a long tail must have an image; with ratio {ratio:g} of "
            f"{max(available)} images, class {counts.index(0)} has none"
        )
    members_of = labels.cpu().argsort(stable=True).split(available)
    chosen = []
    for index, (members, count) in enumerate(zip(members_of, counts, strict=True)):
        generator = torch.Generator().manual_seed(derive_seed("long tail", seed, index))
        chosen.append(members[torch.randperm(len(members), generator=generator)[:count]])
    return torch.cat(chosen).sort().values


def take_long_tail(split: SomeSplit, ratio: float, *, seed: int = 0) -> SomeSplit:
    """Return a long-tailed version of a split, in memory or on disk.

    Args:
        split: Images; the classes are those of its labels, the first class the largest one.
        ratio: Size of the last class relative to the first, greater than 0 and at most 1.
        seed: Seed of the choice of images.

    Raises:
        DataError: As :func:`long_tail_indices`.

    >>> from protosphere.data import load_digits
    >>> take_long_tail(load_digits().train, 0.1).labels.bincount().tolist()
    [119, 94, 73, 56, 43, 33, 26, 20, 15, 12]
    """
    return split.subset(
        long_tail_indices(split.labels, num_classes=split.num_classes, ratio=ratio, seed=seed)
    )
