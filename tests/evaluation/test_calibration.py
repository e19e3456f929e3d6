"""Calibration against loops over scalars, torchmetrics and their properties."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_calibration_error

from protosphere.evaluation import calibration
from protosphere.evaluation.calibration import (
    adaptive_calibration_error,
    expected_calibration_error,
    measure_calibration,
    reliability_table,
    score_samples,
)

Samples = list[tuple[float, bool]]
ERRORS = [expected_calibration_error, adaptive_calibration_error]
# Few values, so that many confidences are equal, and any values.
confidence = st.sampled_from([0.25, 0.5, 0.75, 1.0]) | st.floats(2**-10, 1.0, width=32)
samples = st.lists(st.tuples(confidence, st.booleans()), min_size=1, max_size=60)
num_bins = st.sampled_from([1, 2, 7, 15])


def ece_oracle(data: Samples, bins: int) -> float:
    total = 0.0
    for index in range(bins):
        low, high = Fraction(index, bins), Fraction(index + 1, bins)
        inside = [(p, hit) for p, hit in data if low < Fraction(p) <= high]
        if inside:
            accuracy = sum(hit for _, hit in inside) / len(inside)
            mean = sum(p for p, _ in inside) / len(inside)
            total += len(inside) / len(data) * abs(accuracy - mean)
    return total


def adaptive_oracle(data: Samples, bins: int) -> float:
    """Every sample is as correct as the samples of its confidence are on average."""
    shared = []
    for p, _ in sorted(data):
        equals = [hit for other, hit in data if other == p]
        shared.append((p, sum(equals) / len(equals)))
    quotient, remainder = divmod(len(data), bins)
    total, start = 0.0, 0
    for index in range(bins):
        size = quotient + (index < remainder)
        inside = shared[start : start + size]
        start += size
        if inside:
            accuracy = sum(hit for _, hit in inside) / size
            mean = sum(p for p, _ in inside) / size
            total += size / len(data) * abs(accuracy - mean)
    return total


def tensors(data: Samples) -> tuple[torch.Tensor, torch.Tensor]:
    confidences, correct = zip(*data, strict=True)
    return torch.tensor(confidences, dtype=torch.float64), torch.tensor(correct)


@given(samples, num_bins)
def test_ece_equals_the_definition(data: Samples, bins: int) -> None:
    found = expected_calibration_error(*tensors(data), num_bins=bins)
    assert found == pytest.approx(ece_oracle(data, bins), abs=1e-12)


@given(samples, num_bins)
def test_adaptive_ece_equals_the_definition(data: Samples, bins: int) -> None:
    found = adaptive_calibration_error(*tensors(data), num_bins=bins)
    assert found == pytest.approx(adaptive_oracle(data, bins), abs=1e-12)


@given(samples, num_bins)
def test_the_reliability_table_adds_up_to_the_ece(data: Samples, bins: int) -> None:
    table = reliability_table(*tensors(data), num_bins=bins)
    assert [one.lower for one in table] == [index / bins for index in range(bins)]
    assert sum(one.num_samples for one in table) == len(data)
    total = 0.0
    for index, one in enumerate(table):
        low, high = Fraction(index, bins), Fraction(index + 1, bins)
        inside = [(p, hit) for p, hit in data if low < Fraction(p) <= high]
        assert one.num_samples == len(inside)
        if one.accuracy is None or one.confidence is None:
            assert (one.confidence, one.accuracy, inside) == (None, None, [])
            continue
        assert one.accuracy == pytest.approx(sum(hit for _, hit in inside) / len(inside))
        assert one.confidence == pytest.approx(sum(p for p, _ in inside) / len(inside))
        total += len(inside) / len(data) * abs(one.accuracy - one.confidence)
    assert total == pytest.approx(ece_oracle(data, bins), abs=1e-12)


@given(samples, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(data: Samples, random) -> None:
    shuffled = random.sample(data, len(data))
    for error in ERRORS:
        assert error(*tensors(shuffled)) == pytest.approx(error(*tensors(data)), abs=1e-12)


def test_ece_equals_torchmetrics() -> None:
    logits, labels = 2 * torch.randn(500, 6), torch.randint(6, (500,))
    scores = score_samples(logits, labels)
    found = expected_calibration_error(scores.confidences, scores.predictions == labels)
    expected = multiclass_calibration_error(logits.softmax(1), labels, num_classes=6, n_bins=15)
    assert found == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("error", ERRORS)
def test_known_values(error) -> None:
    always = torch.full((60,), 0.75)
    assert error(always, torch.arange(60) % 4 != 0) == pytest.approx(0, abs=1e-12)
    assert error(torch.ones(60), torch.ones(60, dtype=torch.bool)) == 0
    assert error(torch.ones(60), torch.zeros(60, dtype=torch.bool)) == 1


def test_scores_equal_scalar_loops() -> None:
    logits, labels = 3 * torch.randn(30, 5, dtype=torch.float64), torch.randint(5, (30,))
    scores = score_samples(logits, labels)
    for row, label, prediction, confidence, loss in zip(
        logits.tolist(), labels.tolist(), *(part.tolist() for part in scores), strict=True
    ):
        weights = [math.exp(value) for value in row]
        assert prediction == row.index(max(row))
        assert confidence == pytest.approx(max(weights) / sum(weights), rel=1e-12)
        assert loss == pytest.approx(-math.log(weights[label] / sum(weights)), rel=1e-10)


def test_scores_of_large_logits_are_finite_and_exact() -> None:
    logits = torch.tensor([[1e4, 1e4 - 3, 0.0], [-1e4, -2e4, -3e4]])
    scores = score_samples(logits, torch.tensor([1, 0]))
    assert scores.confidences.tolist() == pytest.approx([1 / (1 + math.exp(-3)), 1])
    assert scores.losses.tolist() == pytest.approx([3 + math.log1p(math.exp(-3)), 0])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_all_metrics_equal_scalar_loops(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "_CHUNK_ROWS", 11)
    logits, labels = 3 * torch.randn(30, 5), torch.randint(5, (30,))
    brier = nll = 0.0
    confident = []
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        weights = [math.exp(value / temperature) for value in row]
        probabilities = [weight / sum(weights) for weight in weights]
        brier += sum((p - (c == label)) ** 2 for c, p in enumerate(probabilities)) / 30
        nll -= math.log(probabilities[label]) / 30
        best = max(range(5), key=row.__getitem__)
        confident.append((probabilities[best], best == label))
    found, table = measure_calibration(logits, labels, temperature=temperature)
    assert found.brier == pytest.approx(brier, rel=1e-10)
    assert found.nll == pytest.approx(nll, rel=1e-10)
    assert found.accuracy == pytest.approx(sum(hit for _, hit in confident) / 30)
    assert found.ece == pytest.approx(ece_oracle(confident, 15), abs=1e-12)
    assert found.adaptive_ece == pytest.approx(adaptive_oracle(confident, 15), abs=1e-12)
    expected = reliability_table(*tensors(confident))
    assert [one.num_samples for one in table] == [one.num_samples for one in expected]
    assert [one.accuracy for one in table] == [one.accuracy for one in expected]


def test_the_brier_score_of_certain_and_of_even_predictions() -> None:
    """By hand: 0 if certain and right, 2 if certain and wrong, 1 − 1/K if even."""
    certain = 1e4 * torch.eye(4)
    assert measure_calibration(certain, torch.arange(4)).metrics.brier == 0
    assert measure_calibration(certain, torch.arange(4).flip(0)).metrics.brier == 2
    even = measure_calibration(torch.zeros(4, 4), torch.arange(4)).metrics
    assert even.brier == pytest.approx(1 - 1 / 4)
    assert even.nll == pytest.approx(math.log(4))


@pytest.mark.bad_input
def test_calibration_needs_samples_and_a_positive_temperature() -> None:
    logits, labels = torch.zeros(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        measure_calibration(logits, labels, temperature=0)
    with pytest.raises(ValueError, match="at least one sample, got none"):
        measure_calibration(logits[:0], labels[:0])


@pytest.mark.bad_input
@pytest.mark.parametrize("error", [*ERRORS, reliability_table])
def test_what_is_refused(error) -> None:
    correct = torch.ones(3, dtype=torch.bool)
    for confidences, options, message in (
        (torch.ones(3), {"num_bins": 0}, "num_bins must be at least 1, got 0"),
        (torch.ones(4), {}, r"got shapes \(4,\) and \(3,\)"),
        (torch.ones(3, 1), {}, r"got shapes \(3, 1\) and \(3,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            error(confidences, correct, **options)
    with pytest.raises(ValueError, match="at least one sample"):
        error(torch.ones(0), correct[:0])
