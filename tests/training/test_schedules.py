"""Schedules against their formulas, at the ends and between."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protosphere.training import Schedule


@given(st.integers(1, 50), st.integers(1, 20), st.floats(0.001, 1), st.data())
def test_cosine_by_whole_epochs(epochs: int, steps: int, rate: float, data: st.DataObject) -> None:
    schedule = Schedule(rate, epochs)
    step = data.draw(st.integers(0, epochs * steps - 1))
    least = rate * 1e-3
    expected = least + 0.5 * (rate - least) * (1 + math.cos(math.pi * (step // steps) / epochs))
    assert schedule.at(step, steps_per_epoch=steps) == pytest.approx(expected, rel=1e-12)


def test_the_papers_imagenet_schedule() -> None:
    """Ten warm-up epochs from 0.01, by single steps, to the cosine's value at their end."""
    schedule = Schedule(0.8, 500, warmup_epochs=10, final_share=0.0)
    rates = [schedule.at(step, steps_per_epoch=100) for step in range(1101)]
    assert rates[0] == 0.01
    assert rates[500] == pytest.approx((0.01 + schedule.at_epoch(10)) / 2)
    assert rates[1000] == schedule.at_epoch(10) < 0.8
    assert rates[1000] - rates[999] == pytest.approx(rates[1] - rates[0])
    assert rates[1099] == rates[1000] > rates[1100]


def test_steps_of_the_probe() -> None:
    schedule = Schedule(5.0, 100, "steps", milestones=(60, 75, 90), gamma=0.2)
    assert [schedule.at_epoch(epoch) for epoch in (0, 59, 60, 74, 75, 99)] == pytest.approx(
        [5, 5, 1, 1, 0.2, 0.04]
    )
    assert Schedule(0.3, 7, "constant").at(6, steps_per_epoch=1) == 0.3


@pytest.mark.bad_input
def test_schedules_that_make_no_sense() -> None:
    for options, message in (
        ({"rate": 0.0, "epochs": 3}, "a positive rate and an epoch"),
        (
            {"rate": 0.1, "epochs": 3, "warmup_epochs": 3},
            "must be shorter than the run, 3 epochs; got 3",
        ),
        (
            {"rate": 0.1, "epochs": 3, "kind": "linear"},
            "'cosine', 'steps' or 'constant'; got 'linear'",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            Schedule(**options)
