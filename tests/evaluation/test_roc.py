"""AUROC, FPR at 95% TPR and average precision against scikit-learn and loops over scalars."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from protosphere.evaluation.roc import (
    auroc,
    average_precision,
    detection_metrics,
    false_positive_rate,
)

# Few values, so that many scores are equal, and any values.
value = st.integers(-3, 3).map(float) | st.floats(-10, 10, width=32)
scores = st.lists(value, min_size=1, max_size=50)


def _auroc_oracle(known: list[float], unknown: list[float]) -> float:
    total = 0.0
    for a in known:
        for b in unknown:
            total += 1.0 if a > b else 0.5 if a == b else 0.0
    return total / (len(known) * len(unknown))


def _fpr_oracle(known: list[float], unknown: list[float], tpr: float) -> float:
    """Try every score as the threshold, from the highest."""
    for threshold in sorted(set(known), reverse=True):
        if sum(a >= threshold for a in known) / len(known) >= tpr - 1e-12:
            return sum(b >= threshold for b in unknown) / len(unknown)
    raise AssertionError


@given(scores, scores)
def test_metrics_equal_the_definitions(known: list[float], unknown: list[float]) -> None:
    found = detection_metrics(torch.tensor(known), torch.tensor(unknown))
    assert found.auroc == pytest.approx(_auroc_oracle(known, unknown), abs=1e-14)
    assert found.fpr95 == _fpr_oracle(known, unknown, 0.95)


@given(scores, scores)
def test_metrics_equal_those_of_scikit_learn(known: list[float], unknown: list[float]) -> None:
    found = detection_metrics(torch.tensor(known), torch.tensor(unknown))
    labels, values = [1] * len(known) + [0] * len(unknown), known + unknown
    assert found.auroc == pytest.approx(roc_auc_score(labels, values), abs=1e-12)
    assert found.aupr == pytest.approx(average_precision_score(labels, values), abs=1e-12)
    # All thresholds: without the collinear points it would skip some.
    fpr, tpr, _ = roc_curve(labels, values, drop_intermediate=False)
    assert found.fpr95 == pytest.approx(fpr[(tpr >= 0.95).argmax()], abs=1e-12)


@given(scores, scores)
def test_exchanging_the_sets_reverses_the_auroc(known: list[float], unknown: list[float]) -> None:
    a, b = torch.tensor(known), torch.tensor(unknown)
    assert auroc(a, b) + auroc(b, a) == pytest.approx(1, abs=1e-14)
    assert auroc(a, b) == auroc(a.double().atan(), b.double().atan())


def test_known_values() -> None:
    high, low = torch.tensor([2.0, 3.0, 4.0]), torch.tensor([0.0, 1.0])
    assert detection_metrics(high, low) == (1.0, 0.0, 1.0)
    equal = torch.ones(7)
    assert detection_metrics(equal, equal[:3]) == (0.5, 1.0, 0.7)
    assert auroc(low, high) == 0


def test_a_known_sample_below_the_threshold_is_one_in_twenty() -> None:
    known, unknown = torch.arange(20.0), torch.tensor([0.5, 1.0, 7.0, -1.0])
    # The threshold is 1, the score of the 19th best of 20.
    assert false_positive_rate(known, unknown) == 0.5
    assert false_positive_rate(known, unknown, true_positive_rate=1.0) == 0.75


def test_scores_that_only_float64_tells_apart() -> None:
    known = torch.tensor([1.0], dtype=torch.float64)
    assert auroc(known + 1e-12, known) == 1


@pytest.mark.bad_input
@pytest.mark.parametrize("metric", [auroc, average_precision, false_positive_rate])
def test_what_is_refused(metric) -> None:
    fine = torch.ones(3)
    for known, unknown, message in (
        (fine[:0], fine, r"scores of known samples .* got \(0,\)"),
        (fine, fine[:, None], r"scores of unknown samples .* got \(3, 1\)"),
        (fine, torch.tensor([math.nan]), "scores of unknown samples must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            metric(known, unknown)
    with pytest.raises(ValueError, match=r"at most 1, got 1\.5"):
        false_positive_rate(fine, fine, true_positive_rate=1.5)
