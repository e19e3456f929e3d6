"""Pairs of classes whose prototypes nearly coincide: found where they do, and nowhere else."""

import itertools
import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from protosphere.evaluation import find_coinciding_prototypes as public_function
from protosphere.geometry import simplex_etf, spherical_code
from protosphere.losses import normface_loss
from protosphere.metrics.coinciding_prototypes import (
    CoincidingPrototypes,
    PrototypePair,
    describe_coinciding,
    find_coinciding_prototypes,
)

NAMES = ("ant", "bee", "cat", "dog", "elk", "fox")


def simplex(num_classes: int) -> NDArray[np.float64]:
    return simplex_etf(num_classes, num_classes).double().numpy()


def random_prototypes(
    num_classes: int, dim: int, seed: int = 0, offset: float = 0.0
) -> NDArray[np.float64]:
    rows = np.random.default_rng(seed).normal(size=(num_classes, dim)) + offset
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def with_pairs(
    prototypes: NDArray[np.float64], *pairs: tuple[int, int, float]
) -> NDArray[np.float64]:
    """Prototypes of which the second of each pair has this cosine with the first."""
    changed = prototypes.copy()
    for first, second, cosine in pairs:
        own = changed[first] / np.linalg.norm(changed[first])
        other = changed[second] - (changed[second] @ own) * own
        other /= np.linalg.norm(other)
        changed[second] = cosine * own + math.sqrt(1 - cosine**2) * other
    return changed


def brute_force(
    prototypes: NDArray[np.float64], threshold: float = 0.95
) -> list[tuple[int, int, float]]:
    """All pairs above the threshold, one scalar product at a time, most similar first."""
    found = []
    for first, second in itertools.combinations(range(len(prototypes)), 2):
        one, other = prototypes[first], prototypes[second]
        cosine = float(one @ other) / math.sqrt(float(one @ one) * float(other @ other))
        if cosine > threshold:
            found.append((first, second, cosine))
    return sorted(found, key=lambda pair: -pair[2])


def indices(found: CoincidingPrototypes) -> list[tuple[int, int]]:
    return [(pair.first, pair.second) for pair in found.pairs]


# Every size of block from a row at a time to all rows; 31 is a prime, so that blocks end unevenly.
@pytest.mark.parametrize("block_entries", [1, 31, 70, 300, 31 * 31, 10**6])
def test_the_pairs_are_those_of_all_scalar_products(block_entries: int) -> None:
    prototypes = with_pairs(
        random_prototypes(31, 64), (0, 30, 0.97), (3, 4, 0.999), (9, 10, 0.96), (10, 20, 0.98)
    )
    prototypes *= np.random.default_rng(1).uniform(0.1, 10, size=(31, 1))  # Any norm.
    found = find_coinciding_prototypes(prototypes, block_entries=block_entries)
    expected = brute_force(prototypes)
    assert len(expected) >= 4
    assert indices(found) == [pair[:2] for pair in expected]
    assert [pair.cosine for pair in found.pairs] == pytest.approx([pair[2] for pair in expected])
    assert found.num_pairs == len(expected)


def test_the_threshold_can_be_chosen() -> None:
    prototypes = with_pairs(np.eye(32), (0, 1, 0.9), (2, 3, 0.99))
    assert indices(find_coinciding_prototypes(prototypes)) == [(2, 3)]
    assert indices(find_coinciding_prototypes(prototypes, threshold=0.85)) == [(2, 3), (0, 1)]
    assert indices(find_coinciding_prototypes(prototypes, threshold=0.995)) == []


@pytest.mark.parametrize("block_entries", [1, 7, 1000])
def test_only_the_most_similar_pairs_are_returned_but_all_are_counted(block_entries: int) -> None:
    prototypes = with_pairs(
        random_prototypes(20, 64), (0, 1, 0.96), (18, 19, 0.999), (4, 5, 0.98), (8, 9, 0.97)
    )
    found = find_coinciding_prototypes(prototypes, max_pairs=2, block_entries=block_entries)
    assert indices(found) == [(18, 19), (4, 5)]
    assert found.num_pairs == 4


def test_equal_pairs_are_in_the_order_of_the_classes() -> None:
    prototypes = np.eye(6)[[0, 1, 2, 2, 1, 0]]
    found = find_coinciding_prototypes(prototypes, block_entries=6)
    assert indices(found) == [(0, 5), (1, 4), (2, 3)]
    assert [pair.cosine for pair in found.pairs] == [1, 1, 1]


def test_prototypes_without_a_direction_are_left_out() -> None:
    prototypes = np.concatenate([simplex(6), simplex(6)[:1], np.zeros((2, 6))])
    prototypes[2] = np.nan
    prototypes[3, 1] = np.inf
    found = find_coinciding_prototypes(prototypes)
    assert indices(found) == [(0, 6)]
    assert found.num_pairs == 1


def test_norms_may_be_as_small_and_large_as_float32_allows() -> None:
    prototypes = np.array(simplex(5)[[0, 1, 2, 3, 4, 0]], np.float32)
    prototypes *= np.array([1e-37, 1, 1e37, 1, 1, 1e37], np.float32)[:, None]
    assert indices(find_coinciding_prototypes(prototypes)) == [(0, 5)]


@pytest.mark.parametrize("shape", [(0, 8), (1, 8), (1, 1), (5, 0)])
def test_fewer_than_two_prototypes_have_no_pair(shape: tuple[int, int]) -> None:
    assert find_coinciding_prototypes(np.ones(shape)) == CoincidingPrototypes((), 0)


def test_two_classes_are_a_pair() -> None:
    assert indices(find_coinciding_prototypes(with_pairs(simplex(2) @ np.eye(2, 8), (0, 1, 0.99))))
    assert not find_coinciding_prototypes(random_prototypes(2, 8)).pairs


def test_in_one_dimension_there_are_only_two_directions() -> None:
    assert not find_coinciding_prototypes(np.array([[1.0], [-1.0], [2.0]])).pairs


def test_a_head_whose_prototypes_are_all_equal_has_all_pairs() -> None:
    found = find_coinciding_prototypes(np.full((5, 16), 0.3), max_pairs=3)
    assert found.num_pairs == 10
    assert indices(found) == [(0, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize(
    ("num_classes", "dim"),
    [(3, 2), (10, 2), (100, 2), (10, 3), (1000, 3), (100, 8), (1000, 10), (2000, 16), (2000, 128)],
)
def test_random_prototypes_do_not_coincide(num_classes: int, dim: int) -> None:
    """The expected number of pairs is at most 0.01, so of 8 heads none has one."""
    for seed in range(8):
        prototypes = random_prototypes(num_classes, dim, seed)
        assert find_coinciding_prototypes(prototypes).num_pairs == 0


@pytest.mark.parametrize(("num_classes", "dim"), [(24, 2), (200, 3), (60, 10)])
def test_fixed_frames_do_not_coincide(num_classes: int, dim: int) -> None:
    # In 2 and 3 dimensions the best frames of so many classes have cosines above 0.95.
    frame = spherical_code(num_classes, dim, steps=200).double().numpy()
    assert find_coinciding_prototypes(frame).num_pairs == 0


def test_a_common_component_of_all_prototypes_is_no_coincidence() -> None:
    """As of class means of features that are not negative, early in training."""
    prototypes = random_prototypes(10, 64, offset=6.0)
    assert len(brute_force(prototypes)) == 45
    assert find_coinciding_prototypes(prototypes).num_pairs == 0
    merged = np.concatenate([prototypes, prototypes[3:4]])
    assert indices(find_coinciding_prototypes(merged)) == [(3, 10)]


@pytest.mark.parametrize(("num_classes", "dim"), [(10, 7), (1000, 15)])
def test_the_documented_number_of_dimensions_is_where_the_threshold_counts(
    num_classes: int, dim: int
) -> None:
    for extra, num_pairs in ((0, 0), (1, 1)):
        prototypes = random_prototypes(num_classes, dim + extra)
        prototypes = with_pairs(prototypes - prototypes.mean(0), (1, 2, 0.953))
        assert find_coinciding_prototypes(prototypes).num_pairs == num_pairs


@pytest.mark.parametrize("threshold", [-0.5, 0.0, 1.0, math.nan])
def test_a_threshold_that_makes_no_sense_is_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold must be between 0 and 1, got"):
        find_coinciding_prototypes(simplex(3), threshold=threshold)


def test_prototypes_that_are_no_matrix_are_refused() -> None:
    with pytest.raises(ValueError, match=r"prototypes must be a matrix, got shape \(4,\)"):
        find_coinciding_prototypes(np.ones(4))


def test_the_function_is_public() -> None:
    assert public_function is find_coinciding_prototypes


def found_pairs(*cosines: float, num_pairs: int | None = None) -> CoincidingPrototypes:
    pairs = tuple(PrototypePair(0, index + 1, value) for index, value in enumerate(cosines))
    return CoincidingPrototypes(pairs, len(pairs) if num_pairs is None else num_pairs)


def test_nothing_is_said_of_a_head_without_such_pairs() -> None:
    assert describe_coinciding(found_pairs(), NAMES, {"temperature": 0.6}) == ""


def test_a_loss_with_a_temperature_gets_advice() -> None:
    text = describe_coinciding(found_pairs(0.9984), NAMES, {"name": "ntce", "temperature": 0.6})
    assert text == (
        "The prototypes of ant and bee have nearly the same direction (cosine 0.998), so that the "
        "head can hardly tell these classes apart. A temperature below 0.6 (loss.temperature) may "
        "separate them."
    )


@pytest.mark.parametrize(
    "loss",
    [
        {"name": "ce"},
        {},
        {"temperature": None},
        {"temperature": "high"},
        # The value of the recipe is only the start.
        {"temperature": 0.6, "learn_temperature": True},
    ],
)
def test_without_a_temperature_only_the_fact_is_stated(loss: dict[str, object]) -> None:
    assert describe_coinciding(found_pairs(0.97), NAMES, loss) == (
        "The prototypes of ant and bee have nearly the same direction (cosine 0.970)."
    )


def test_at_most_three_pairs_are_named() -> None:
    three = describe_coinciding(found_pairs(0.999, 0.98, 0.97), NAMES, {})
    assert three == (
        "The prototypes of 3 pairs of classes have nearly the same direction: ant and bee (cosine "
        "0.999), ant and cat (0.980) and ant and dog (0.970)."
    )
    more = describe_coinciding(found_pairs(0.999, 0.98, 0.97, 0.96, num_pairs=1200), NAMES, {})
    assert more == (
        "The prototypes of 1,200 pairs of classes have nearly the same direction: ant and bee "
        "(cosine 0.999), ant and cat (0.980), ant and dog (0.970) and 1,197 more."
    )


def test_a_class_without_a_name_has_its_number() -> None:
    assert "of class 0 and class 1 have" in describe_coinciding(found_pairs(0.97), (), {})


@pytest.mark.parametrize(("temperature", "merging_is_lower"), [(0.6, True), (0.1, False)])
def test_a_high_temperature_favors_one_prototype_for_two_classes_that_look_alike(
    temperature: float, merging_is_lower: bool
) -> None:
    """Ten classes; half of the images of two of them could be of either, and lie halfway.

    Each configuration is a simplex with features at their best place: at their prototype, and for
    images of either class halfway between the two prototypes.
    """

    def loss(prototypes: torch.Tensor) -> float:
        between = torch.nn.functional.normalize(prototypes[0] + prototypes[1], dim=0)
        features = torch.cat([prototypes, prototypes[2:], between.expand(2, -1)])
        labels = torch.tensor([*range(10), *range(2, 10), 0, 1])  # Two images of each class.
        return float(normface_loss(features, prototypes, labels, temperature=temperature))

    nine = simplex_etf(9, 10).double()
    assert (loss(nine[[0, 0, *range(1, 9)]]) < loss(simplex_etf(10, 10).double())) is (
        merging_is_lower
    )
