"""The fitted temperature against scipy's minimizer and a case by hand."""

import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from protosphere.evaluation import temperature_scaling
from protosphere.evaluation.temperature_scaling import fit_temperature


def _nll(logits: torch.Tensor, labels: torch.Tensor, temperature: float) -> float:
    scaled = log_softmax(logits.double().numpy() / temperature, axis=1)
    return float(-scaled[range(len(labels)), labels.numpy()].mean())


@pytest.mark.parametrize("scale", [0.02, 0.5, 1.0, 30.0])
@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_the_temperature_equals_that_of_scipy(scale: float, noise: float) -> None:
    labels = torch.randint(6, (300,))
    logits = scale * (torch.eye(6)[labels] * 2 + noise * torch.randn(300, 6))
    fit = fit_temperature(logits, labels)
    found = minimize_scalar(
        lambda log_t: _nll(logits, labels, math.exp(log_t)),
        bracket=(math.log(scale) - 1, math.log(scale) + 1),
        tol=1e-12,
    )
    assert fit.bound == "none"
    assert fit.temperature == pytest.approx(math.exp(found.x), rel=1e-6)
    assert fit.nll == pytest.approx(found.fun, rel=1e-12)


def test_scaled_logits_have_a_scaled_temperature() -> None:
    labels = torch.randint(4, (100,))
    logits = (torch.randn(100, 4) + torch.eye(4)[labels]).double()
    once, more = fit_temperature(logits, labels), fit_temperature(17 * logits, labels)
    assert more.temperature == pytest.approx(17 * once.temperature, rel=1e-9)
    assert more.nll == pytest.approx(once.nll, rel=1e-12)


def test_a_case_by_hand() -> None:
    """Three of four are right at a margin of 4: p = 3/4 where 4/T = ln 3."""
    logits = torch.tensor([[4.0, 0.0]]).repeat(4, 1)
    fit = fit_temperature(logits, torch.tensor([0, 0, 0, 1]))
    assert fit.temperature == pytest.approx(4 / math.log(3), rel=1e-9)
    assert fit.nll == pytest.approx(-(3 * math.log(3 / 4) + math.log(1 / 4)) / 4)


def test_chunks_do_not_change_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = torch.randint(4, (50,))
    logits = torch.randn(50, 4) + torch.eye(4)[labels]
    whole = fit_temperature(logits, labels)
    monkeypatch.setattr(temperature_scaling, "_CHUNK_ROWS", 7)
    parts = fit_temperature(logits, labels)
    assert parts[:2] == pytest.approx(whole[:2], rel=1e-9)


def test_temperatures_at_the_bounds_are_marked() -> None:
    labels = torch.arange(3)
    right = fit_temperature(5 * torch.eye(3), labels)
    assert (right.temperature, right.bound) == (1e-3, "lower")
    assert right.nll == pytest.approx(0, abs=1e-12)
    wrong = fit_temperature(-5 * torch.eye(3), labels, bounds=(0.1, 10.0))
    assert (wrong.temperature, wrong.bound) == (10.0, "upper")
    assert fit_temperature(torch.zeros(3, 3), labels).bound == "upper"


@pytest.mark.bad_input
def test_what_is_refused() -> None:
    logits, labels = torch.zeros(2, 3), torch.tensor([0, 1])
    for arguments, message in (
        ((logits, labels[:1]), r"got shapes \(2, 3\) and \(1,\)"),
        ((logits[:0], labels[:0]), "at least one sample"),
        ((logits, labels + 2), "between 0 and 2, got 2 to 3"),
        ((logits + math.nan, labels), "must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            fit_temperature(*arguments)
    with pytest.raises(ValueError, match=r"increasing order, got 2\.0 and 1\.0"):
        fit_temperature(logits, labels, bounds=(2.0, 1.0))
