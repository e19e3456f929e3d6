"""Pairs of classes whose prototypes nearly coincide, and a sentence about them; without torch."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Of as many random directions, the number of pairs that may be found by chance.
_CHANCE = 0.01
# Cosines of equal directions in float64 differ from 1 by less.
_ROUNDING = 1e-12
_MAX_NAMED = 3


class PrototypePair(NamedTuple):
    """Two classes whose prototypes nearly coincide.

    Attributes:
        first: Index of a class.
        second: Index of the other class, the larger one.
        cosine: Cosine of their prototypes.
    """

    first: int
    second: int
    cosine: float


class CoincidingPrototypes(NamedTuple):
    """The result of :func:`find_coinciding_prototypes`.

    Attributes:
        pairs: The most similar pairs, the largest cosine first.
        num_pairs: Number of all pairs, of which ``pairs`` may have only a part.
    """

    pairs: tuple[PrototypePair, ...]
    num_pairs: int


def find_coinciding_prototypes(
    prototypes: NDArray[Any],
    *,
    threshold: float = 0.95,
    max_pairs: int = 20,
    block_entries: int = 2_000_000,
) -> CoincidingPrototypes:
    """Return the pairs of classes whose prototypes have nearly the same direction.

    A pair is found if its cosine reaches the threshold. Where this says little, more is needed:

    - If the mean of 1 − cosine over all pairs is less than 1, as of class means of features that
      are not negative, 1 − cosine must be less than 1 − threshold times this mean. Two classes
      have no other pairs to compare with.
    - In few dimensions, the cosine must be so large that of as many random directions at most 0.01
      pairs are expected to have it: of K directions in d dimensions, no more than
      K (K − 1)/4 · (1 − cosine²)^((d − 1)/2) do. This is more than a threshold of 0.95 for 10
      classes in fewer than 8 dimensions and for 1,000 classes in fewer than 16.

    Args:
        prototypes: Prototypes of any norm, shape (K, d). Those that are zero or not finite are left
            out.
        threshold: Cosine between 0 and 1.
        max_pairs: Largest number of pairs to return.
        block_entries: Number of cosines that are in memory at once, at least those of one class.

    Raises:
        ValueError: The prototypes are no matrix, or the threshold is not between 0 and 1.

    >>> vectors = np.eye(12)
    >>> vectors[7] = vectors[2] + 0.1 * vectors[7]
    >>> (pair,) = find_coinciding_prototypes(vectors).pairs
    >>> pair.first, pair.second, round(pair.cosine, 3)
    (2, 7, 0.995)
    """
    vectors = np.asarray(prototypes)
    if vectors.ndim != 2:
        raise ValueError(f"prototypes must be a matrix, got shape {vectors.shape}")
    if not 0 < threshold < 1:
        raise ValueError(f"threshold must be between 0 and 1, got {threshold}")
    classes, directions = _directions(vectors)
    num_classes, dim = directions.shape
    if num_classes < 2 or dim < 2:  # In one dimension there are only two directions.
        return CoincidingPrototypes((), 0)
    smallest = _smallest_cosine(directions, threshold)
    size = max(1, block_entries // num_classes)
    num_pairs = 0
    pairs: list[PrototypePair] = []
    for start in range(0, num_classes, size):
        cosines = directions[start : start + size] @ directions[start:].T
        rows, columns = np.nonzero(np.triu(cosines >= smallest, 1))
        num_pairs += len(rows)
        # Equal directions have cosines that differ by rounding, which must not decide.
        values = np.minimum(cosines[rows, columns], 1).round(12)
        chosen = np.argsort(-values, kind="stable")[:max_pairs]
        first, second = classes[rows[chosen] + start], classes[columns[chosen] + start]
        found = zip(first.tolist(), second.tolist(), values[chosen].tolist(), strict=True)
        pairs += [PrototypePair(*pair) for pair in found]
        pairs = sorted(pairs, key=lambda pair: -pair.cosine)[:max_pairs]
    return CoincidingPrototypes(tuple(pairs), num_pairs)


def _directions(vectors: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return which vectors have a direction, and their directions."""
    values = vectors.astype(np.float64)
    largest = np.abs(values).max(1, initial=0)
    classes = np.flatnonzero(np.isfinite(largest) & (largest > 0))
    scaled = values[classes] / largest[classes, None]  # Squares neither overflow nor vanish.
    return classes, scaled / np.linalg.norm(scaled, axis=1, keepdims=True)


def _smallest_cosine(directions: NDArray[np.float64], threshold: float) -> float:
    """Return the cosine from which on a pair coincides."""
    num_classes, dim = directions.shape
    num_pairs = num_classes * (num_classes - 1) / 2
    total = directions.sum(0)
    mean_cosine = (float(total @ total) - num_classes) / (2 * num_pairs)
    spread = 1.0 if num_classes == 2 else min(1.0, 1 - mean_cosine)
    # A cap of the sphere has at most the area of the half-sphere over its boundary, so that a
    # random direction has a cosine above t with probability at most (1 − t²)^((d−1)/2) / 2.
    squared_sine = min(1.0, (2 * _CHANCE / num_pairs) ** (2 / (dim - 1)))
    by_chance = float(np.sqrt(1 - squared_sine))
    return min(max(1 - (1 - threshold) * spread, by_chance), 1 - _ROUNDING)


def describe_coinciding(
    found: CoincidingPrototypes, class_names: Sequence[str], loss: Mapping[str, Any]
) -> str:
    """Return one or two sentences about prototypes that nearly coincide; empty if none do.

    Args:
        found: The pairs.
        class_names: Name of each class; empty if not known.
        loss: Section ``loss`` of the recipe as plain values. A loss whose temperature is set gets
            the advice to lower it.

    >>> pairs = CoincidingPrototypes((PrototypePair(0, 1, 0.97),), 1)
    >>> describe_coinciding(pairs, ["cat", "dog"], {"name": "ce"})
    'The prototypes of cat and dog have nearly the same direction (cosine 0.970).'
    """
    if not found.pairs:
        return ""
    temperature = None if loss.get("learn_temperature") else loss.get("temperature")
    has_temperature = isinstance(temperature, int | float)
    effect = ", so that the head can hardly tell these classes apart" if has_temperature else ""
    named = [
        (" and ".join(_name(index, class_names) for index in pair[:2]), f"{pair.cosine:.3f}")
        for pair in found.pairs[:_MAX_NAMED]
    ]
    if found.num_pairs == 1:
        ((names, cosine),) = named
        text = (
            f"The prototypes of {names} have nearly the same direction (cosine {cosine}){effect}."
        )
    else:
        listed = [
            f"{names} ({'' if index else 'cosine '}{cosine})"
            for index, (names, cosine) in enumerate(named)
        ]
        if found.num_pairs > len(named):
            listed.append(f"{found.num_pairs - len(named):,} more")
        pairs = f"{', '.join(listed[:-1])} and {listed[-1]}"
        text = (
            f"The prototypes of {found.num_pairs:,} pairs of classes have nearly the same "
            f"direction{effect}: {pairs}."
        )
    if has_temperature:
        advice = f"A temperature below {temperature:g} (loss.temperature) may separate them."
        return f"{text} {advice}"
    return text


def _name(index: int, class_names: Sequence[str]) -> str:
    return class_names[index] if index < len(class_names) else f"class {index}"
