"""Paired differences and adjusted p-values, against scipy and cases worked by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from protosphere.studies.compare_statistics import (
    PairedDifference,
    adjust_p_values,
    paired_difference,
    summarize,
)


def test_mean_and_deviation_of_a_case_worked_by_hand() -> None:
    # Deviations −3, −1, 1, 3 from 5: their squares sum to 20, over three.
    assert tuple(summarize([2.0, 4.0, 6.0, 8.0])) == pytest.approx((5.0, math.sqrt(20 / 3)))
    assert summarize([0.25]) == (0.25, None)


def test_an_interval_worked_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, deviation 1; t with two degrees of freedom is 4.302653 at 97.5%.
    result = paired_difference([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    half = 4.302653 / math.sqrt(3)
    assert (result.mean, result.std) == (2.0, 1.0)
    assert result.low == pytest.approx(2 - half, rel=1e-6)
    assert result.high == pytest.approx(2 + half, rel=1e-6)
    # With two degrees of freedom, P(|T| > t) = 1 − t/√(2 + t²), and t = 2√3.
    t = 2 * math.sqrt(3)
    assert result.p_value == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-9)


@pytest.mark.parametrize("num_pairs", [2, 3, 5, 20])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_intervals_and_p_values_are_those_of_scipy(num_pairs: int, confidence: float) -> None:
    rng = np.random.default_rng(num_pairs)
    baseline = rng.normal(0.7, 0.01, num_pairs)
    values = baseline + rng.normal(0.005, 0.01, num_pairs)
    test = stats.ttest_rel(values, baseline)
    low, high = test.confidence_interval(confidence)
    result = paired_difference(values.tolist(), baseline.tolist(), confidence=confidence)
    assert result.low == pytest.approx(low, rel=1e-9)
    assert result.high == pytest.approx(high, rel=1e-9)
    assert result.p_value == pytest.approx(test.pvalue, rel=1e-9)


def test_pairs_count_and_not_the_deviation_of_the_methods() -> None:
    """Seeds that move both methods alike do not hide a difference."""
    paired = paired_difference([0.61, 0.71, 0.81], [0.6, 0.7, 0.801])
    shuffled = paired_difference([0.61, 0.71, 0.81], [0.801, 0.6, 0.7])
    assert paired.mean == pytest.approx(shuffled.mean)
    assert paired.p_value is not None
    assert shuffled.p_value is not None
    assert paired.p_value < 0.05 < shuffled.p_value


def test_one_pair_has_a_difference_and_nothing_else() -> None:
    assert paired_difference([0.75], [0.5]) == PairedDifference(0.25, None, None, None, None)


def test_equal_differences_are_no_evidence() -> None:
    """Two runs with three more images right each: Student's test would answer p = 0."""
    assert paired_difference([2.0, 3.0], [1.0, 2.0]) == (1.0, 0.0, None, None, None)
    rounded = paired_difference([0.9, 0.7], [0.8, 0.6])  # Differences that differ by 1e-17.
    assert rounded.mean == pytest.approx(0.1)
    assert rounded[2:] == (None, None, None)
    assert paired_difference([2.0, 3.0], [2.0, 3.0]) == (0.0, 0.0, 0.0, 0.0, 1.0)


def test_holm_of_a_case_worked_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1: 0.04, 0.06, 0.06, 0.04 → 0.06.
    assert adjust_p_values([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert adjust_p_values([0.6, 0.7]) == [1.0, 1.0]
    assert adjust_p_values([0.03]) == [0.03]
    assert adjust_p_values([]) == []


def test_holm_rejects_what_its_sequential_procedure_rejects() -> None:
    """Test the smallest p-value at α/m, the next at α/(m − 1), and stop at the first failure."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        p_values = (rng.random(rng.integers(1, 7)) ** 3).tolist()
        rejected = set()
        for rank, index in enumerate(np.argsort(p_values)):
            if p_values[index] > 0.05 / (len(p_values) - rank):
                break
            rejected.add(index)
        adjusted = adjust_p_values(p_values)
        assert {index for index, p_value in enumerate(adjusted) if p_value <= 0.05} == rejected


@pytest.mark.bad_input
def test_bad_input() -> None:
    with pytest.raises(ValueError, match="at least one number, got none"):
        summarize([])
    with pytest.raises(ValueError, match="same number of values, at least one, got 2 and 1"):
        paired_difference([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="at least one, got 0 and 0"):
        paired_difference([], [])
    for confidence in (0.0, 1.0, 95.0, float("nan")):
        with pytest.raises(ValueError, match="confidence must be between 0 and 1, got"):
            paired_difference([1.0], [1.0], confidence=confidence)
