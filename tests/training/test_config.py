"""The settings of training: out of range they are refused."""

from typing import Any

import pytest

from protosphere.training import SGD, Schedule, TrainConfig

SCHEDULE = Schedule(0.1, 3)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"micro_batch_size": 1}, r"micro_batch_size must be at least 2 .*, got 1"),
        ({"micro_batch_size": 16}, r"and less than batch_size \(16\), got 16"),
        ({"grad_clip": 0.0}, "grad_clip must be a positive number, got 0.0"),
        ({"ema_decay": 1.0}, "ema_decay must be between 0 and 1, got 1.0"),
        ({"precision": "fp8"}, "precision must be 'fp32', 'bf16' or 'fp16', got 'fp8'"),
        ({"report_every": 0}, "report_every must be at least 1, got 0"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(SCHEDULE, **{"batch_size": 16} | options)


def test_the_default_is_sgd_as_in_the_paper() -> None:
    assert TrainConfig(SCHEDULE, 512).optimizer == SGD(momentum=0.9, weight_decay=1e-4)
    assert TrainConfig(SCHEDULE, 512).seed == 42
