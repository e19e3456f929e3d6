"""The settings of training: out of range they are refused, and each optimizer creates its own."""

from typing import Any

import pytest
import torch
from torch import nn

from protosphere.training import SGD, AdamW, Schedule, TrainConfig

SCHEDULE = Schedule(0.1, 3)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"grad_accum_steps": 3}, r"grad_accum_steps must divide batch_size \(16\), got 3"),
        ({"grad_accum_steps": 0}, r"grad_accum_steps must divide batch_size \(16\), got 0"),
        ({"grad_clip": 0.0}, "grad_clip must be a positive number, got 0.0"),
        ({"ema_decay": 1.0}, "ema_decay must be between 0 and 1, got 1.0"),
        ({"precision": "fp16"}, "precision must be 'fp32' or 'bf16', got 'fp16'"),
        ({"report_every": 0}, "report_every must be at least 1, got 0"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(SCHEDULE, **{"batch_size": 16} | options)


@pytest.mark.bad_input
def test_optimizer_values_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"momentum must be at least 0 and less than 1, got 1\.0"):
        SGD(momentum=1.0)
    with pytest.raises(ValueError, match=r"betas must be at least 0 and less than 1, got 1\.5"):
        AdamW(betas=(0.9, 1.5))
    for optimizer in (SGD, AdamW):
        with pytest.raises(ValueError, match="weight_decay must be a number of at least 0, got -1"):
            optimizer(weight_decay=-1)


def test_each_optimizer_creates_its_own() -> None:
    layer = nn.Linear(2, 2)
    sgd = SGD(momentum=0.5, weight_decay=0.1).create(layer.parameters(), 0.3)
    assert isinstance(sgd, torch.optim.SGD)
    assert {"lr": 0.3, "momentum": 0.5, "weight_decay": 0.1}.items() <= sgd.defaults.items()
    adamw = AdamW(betas=(0.5, 0.6), weight_decay=0.1).create(layer.parameters(), 0.3)
    assert isinstance(adamw, torch.optim.AdamW)
    assert {"lr": 0.3, "betas": (0.5, 0.6), "weight_decay": 0.1}.items() <= adamw.defaults.items()
    assert not adamw.defaults["capturable"]


def test_a_capturable_optimizer_is_fused() -> None:
    layer, lr = nn.Linear(2, 2), torch.tensor(0.3)
    sgd = SGD().create(layer.parameters(), lr, capturable=True)
    assert sgd.defaults["fused"]
    assert sgd.param_groups[0]["lr"] is lr
    adamw = AdamW().create(layer.parameters(), lr, capturable=True)
    assert adamw.defaults["fused"]
    assert adamw.defaults["capturable"]


def test_the_default_is_sgd_as_in_the_paper() -> None:
    assert TrainConfig(SCHEDULE, 512).optimizer == SGD(momentum=0.9, weight_decay=1e-4)
    assert TrainConfig(SCHEDULE, 512).seed == 42
