"""Label noise: a fraction of the training labels replaced by other classes."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, TypeVar, get_args

import torch
from jaxtyping import Integer
from torch import Tensor

from protosphere.data.class_groups import CIFAR100_SUPERCLASSES, relabel
from protosphere.data.imbalance import class_counts
from protosphere.data.sampling import derive_seed
from protosphere.data.splits import DataError, Split

SomeSplit = TypeVar("SomeSplit", bound=Split)
NoiseName = Literal["symmetric", "asymmetric"]

_CIFAR10 = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
_CIFAR10_FLIPS = {
    "truck": "automobile",
    "bird": "airplane",
    "deer": "horse",
    "cat": "dog",
    "dog": "cat",
}
_CIFAR100_FLIPS = {
    name: members[(index + 1) % len(members)]
    for members in CIFAR100_SUPERCLASSES.values()
    for index, name in enumerate(members)
}


def noisy_labels(
    labels: Integer[Tensor, "samples"],
    *,
    num_classes: int,
    name: NoiseName,
    fraction: float,
    flips: Sequence[int] | None = None,
    seed: int = 0,
) -> Integer[Tensor, "samples"]:
    """Replace a fraction of the labels of each class by other classes.

    Of the n_c images of a class, round(fraction · n_c) get a wrong label, an exact number, but at
    most n_c − 1: every class keeps a correctly labeled image. They are the first ones of a random
    permutation that depends on the seed, the class and the number of its images. With
    ``"symmetric"`` the wrong class is drawn uniformly from the other K − 1 classes; with
    ``"asymmetric"`` it is the one that ``flips`` has for the class. Images with a wrong label at
    one fraction have the same wrong label at every larger fraction.

    Args:
        labels: Class index of each image.
        num_classes: Number K of classes, at least 2.
        name: ``"symmetric"`` or ``"asymmetric"``.
        fraction: Fraction of wrong labels in a class, greater than 0 and less than 1.
        flips: Class that each class is taken for, for asymmetric noise; a class that is its own
            has no noise. None is the next class, and the first for the last.
        seed: Seed of the choice.

    Returns:
        The labels with noise, on the device of the labels.

    Raises:
        DataError: An argument is out of its range, or the classes are so small that no label
            changes.

    >>> labels = torch.zeros(10, dtype=torch.long)
    >>> noisy_labels(labels, num_classes=3, name="asymmetric", fraction=0.2).bincount()
    tensor([8, 2])

    Reference:
        Patrini et al., Making Deep Neural Networks Robust to Label Noise: A Loss Correction
        Approach, CVPR 2017.
    """
    if name not in get_args(NoiseName):
        names = ", ".join(get_args(NoiseName))
        raise DataError(f"label noise must be one of {names}; got {name!r}")
    if not 0 < fraction < 1:
        raise DataError(f"fraction must be greater than 0 and less than 1, got {fraction}")
    if num_classes < 2:
        raise DataError(f"label noise needs at least 2 classes, got {num_classes}")
    if flips is None:
        flips = [(index + 1) % num_classes for index in range(num_classes)]
    exact = Fraction(repr(float(fraction)))
    noisy = labels.cpu().clone()
    counts = class_counts(labels, num_classes).tolist()
    for index, members in enumerate(noisy.argsort(stable=True).split(counts)):
        generator = torch.Generator().manual_seed(derive_seed("label noise", seed, index))
        order = torch.randperm(len(members), generator=generator)
        count = max(0, min(round(exact * len(members)), len(members) - 1))
        if name == "symmetric":
            offsets = torch.randint(1, num_classes, (len(members),), generator=generator)
            wrong = (index + offsets) % num_classes
        else:
            wrong = torch.full((len(members),), flips[index])
        noisy[members[order[:count]]] = wrong[:count].to(noisy.dtype)
    if torch.equal(noisy, labels.cpu()):
        raise DataError(
            f"label noise must change some labels; fraction {fraction:g} of {max(counts)} images "
            "in the largest class changes none"
        )
    return noisy.to(labels.device)


def class_flips(class_names: Sequence[str]) -> tuple[int, ...]:
    """Return the class that each class is taken for by asymmetric noise.

    For the classes of CIFAR-10 these are truck → automobile, bird → airplane, deer → horse and
    cat ↔ dog, the other classes have no noise; for those of CIFAR-100 the next class of the
    superclass in alphabetical order, and the first for the last; otherwise the next class.

    Args:
        class_names: Name of each class, in the order of the class indices.

    >>> class_flips(["ant", "bee", "cat"])
    (1, 2, 0)

    Reference:
        Patrini et al., Making Deep Neural Networks Robust to Label Noise: A Loss Correction
        Approach, CVPR 2017.
    """
    names = list(class_names)
    for known, flips in (
        (_CIFAR10, _CIFAR10_FLIPS),
        (tuple(_CIFAR100_FLIPS), _CIFAR100_FLIPS),
    ):
        if sorted(names) == sorted(known):
            return tuple(names.index(flips.get(name, name)) for name in names)
    return tuple((index + 1) % len(names) for index in range(len(names)))


def add_label_noise(
    split: SomeSplit, *, name: NoiseName, fraction: float, seed: int = 0
) -> SomeSplit:
    """Return a split with label noise, its asymmetric flips those of :func:`class_flips`.

    Args:
        split: Images with correct labels, in memory or on disk.
        name: ``"symmetric"`` or ``"asymmetric"``.
        fraction: Fraction of wrong labels in a class, greater than 0 and less than 1.
        seed: Seed of the choice.

    Raises:
        DataError: As :func:`noisy_labels`.

    >>> from protosphere.data import load_digits
    >>> digits = load_digits().train
    >>> noisy = add_label_noise(digits, name="symmetric", fraction=0.25)
    >>> round(float((noisy.labels != digits.labels).double().mean()), 2)
    0.25
    """
    labels = noisy_labels(
        split.labels,
        num_classes=split.num_classes,
        name=name,
        fraction=fraction,
        flips=class_flips(split.class_names),
        seed=seed,
    )
    return relabel(split, labels)
