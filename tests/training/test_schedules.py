"""Schedules against their formulas."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protosphere.training import Schedule


@given(st.integers(1, 50), st.integers(1, 20), st.floats(0.001, 1), st.floats(0, 1), st.data())
def test_cosine_is_constant_within_an_epoch(
    epochs: int, steps_per_epoch: int, lr: float, min_lr_ratio: float, data: st.DataObject
) -> None:
    schedule = Schedule(lr, epochs, min_lr_ratio=min_lr_ratio)
    step = data.draw(st.integers(0, epochs * steps_per_epoch - 1))
    min_lr = lr * min_lr_ratio
    cosine = math.cos(math.pi * (step // steps_per_epoch) / epochs)
    expected = min_lr + 0.5 * (lr - min_lr) * (1 + cosine)
    assert schedule.at_step(step, steps_per_epoch=steps_per_epoch) == pytest.approx(
        expected, rel=1e-12
    )


def test_cosine_ends_at_a_thousandth_by_default() -> None:
    assert Schedule(0.2, 1000).at_epoch(1000) == pytest.approx(0.2e-3)


@pytest.mark.parametrize("warmup_lr", [0.01, 0.1])
def test_the_imagenet_schedule_of_the_paper(warmup_lr: float) -> None:
    """Ten warmup epochs, linear in steps, to the value of the cosine at their end."""
    schedule = Schedule(0.8, 500, warmup_epochs=10, min_lr_ratio=0.0, warmup_lr=warmup_lr)
    lrs = [schedule.at_step(step, steps_per_epoch=100) for step in range(1101)]
    assert lrs[0] == warmup_lr
    assert lrs[500] == pytest.approx((warmup_lr + schedule.at_epoch(10)) / 2)
    assert lrs[1000] == schedule.at_epoch(10) < 0.8
    assert lrs[1000] - lrs[999] == pytest.approx(lrs[1] - lrs[0])
    assert lrs[1099] == lrs[1000] > lrs[1100]


def test_the_warmup_starts_at_one_hundredth_by_default() -> None:
    assert Schedule(0.8, 5, warmup_epochs=1).at_step(0, steps_per_epoch=3) == 0.01


@pytest.mark.parametrize("gamma", [0.2, 0.5])
def test_multistep_multiplies_by_gamma_at_each_milestone(gamma: float) -> None:
    schedule = Schedule(5.0, 100, "multistep", milestones=(60, 75, 90), gamma=gamma)
    assert [schedule.at_epoch(epoch) for epoch in (0, 59, 60, 74, 75, 99)] == pytest.approx(
        [5, 5, 5 * gamma, 5 * gamma, 5 * gamma**2, 5 * gamma**3]
    )
    assert Schedule(1.0, 9, "multistep", milestones=(3,)).at_epoch(3) == pytest.approx(0.2)


def test_constant_is_constant() -> None:
    schedule = Schedule(0.3, 7, "constant")
    assert {schedule.at_step(step, steps_per_epoch=2) for step in range(14)} == {0.3}


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "lr must be a positive number, got 0.0"),
        ({"lr": math.nan}, "lr must be a positive number, got nan"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"warmup_epochs": 3}, r"warmup_epochs must be .* less than epochs \(3\), got 3"),
        ({"warmup_epochs": -1}, "warmup_epochs must be at least 0 .* got -1"),
        ({"warmup_lr": 0.0}, "warmup_lr must be a positive number, got 0.0"),
        ({"gamma": -1.0}, "gamma must be a positive number, got -1.0"),
        ({"min_lr_ratio": 2.0}, "min_lr_ratio must be between 0 and 1, got 2.0"),
        ({"name": "linear"}, "name must be 'cosine', 'multistep' or 'constant', got 'linear'"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**{"lr": 0.1, "epochs": 3} | options)
