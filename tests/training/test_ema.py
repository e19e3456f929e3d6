"""The moving average of weights: its recursion by hand, swapping, saving and loading."""

from contextlib import suppress

import pytest
import torch
from torch import nn

from protosphere.training.ema import ExponentialMovingAverage


@pytest.mark.parametrize("decay", [0.3, 0.8])
def test_the_average_follows_its_recursion(decay: float) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    ema = ExponentialMovingAverage(module, decay=decay)
    expected = {name: value.double().clone() for name, value in module.state_dict().items()}
    for step in range(60):
        module(torch.randn(4, 3))
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(torch.randn_like(parameter))
        ema.set_step(step)
        ema.update()
        d = min(decay, (1 + step) / (10 + step))
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                expected[name] = d * expected[name] + (1 - d) * value.double()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with ema.applied():
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                torch.testing.assert_close(value.double(), expected[name], rtol=1e-5, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_an_error_inside_the_context_restores_the_weights() -> None:
    module = nn.Linear(3, 2)
    ema = ExponentialMovingAverage(module, decay=0.9)
    with torch.no_grad():
        module.weight += 1
    weight = module.weight.detach().clone()
    with suppress(KeyError), ema.applied():
        assert not torch.equal(module.weight, weight)
        raise KeyError
    assert torch.equal(module.weight, weight)


def test_a_saved_average_is_loaded() -> None:
    module = nn.Linear(3, 2)
    ema = ExponentialMovingAverage(module, decay=0.9)
    loaded = ExponentialMovingAverage(module, decay=0.9)
    with torch.no_grad():
        module.weight += 1
    ema.set_step(5)
    ema.update()
    loaded.load_state_dict(ema.state_dict())
    assert ema.state_dict().keys() == loaded.state_dict().keys() == module.state_dict().keys()
    for name, value in ema.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name])


@pytest.mark.bad_input
@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5])
def test_a_decay_out_of_range_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match=f"decay must be between 0 and 1, got {decay}"):
        ExponentialMovingAverage(nn.Linear(1, 1), decay=decay)
