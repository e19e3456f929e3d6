"""The moving average of weights: its recursion by hand, exchanged and given back, through a checkpoint."""

import pytest
import torch
from torch import nn

from protosphere.training.ema import WeightAverage


def test_the_recursion() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    average = WeightAverage(module, decay=0.8)
    expected = {name: value.double().clone() for name, value in module.state_dict().items()}
    for step in range(60):
        module(torch.randn(4, 3))
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(torch.randn_like(parameter))
        average.at(step)
        average.update()
        decay = min(0.8, (1 + step) / (10 + step))
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                expected[name] = decay * expected[name] + (1 - decay) * value.double()
    own = {name: value.clone() for name, value in module.state_dict().items()}
    with average.applied():
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                torch.testing.assert_close(value.double(), expected[name], rtol=1e-5, atol=1e-5)
    assert all(torch.equal(value, own[name]) for name, value in module.state_dict().items())


def test_restored() -> None:
    module = nn.Linear(3, 2)
    average, again = WeightAverage(module, decay=0.9), WeightAverage(module, decay=0.9)
    with torch.no_grad():
        module.weight += 1
    average.at(5)
    average.update()
    again.restore(average.state())
    assert all(torch.equal(value, again.state()[name]) for name, value in average.state().items())


@pytest.mark.bad_input
def test_a_decay_must_be_one() -> None:
    with pytest.raises(ValueError, match="must lie between 0 and 1; got 1"):
        WeightAverage(nn.Linear(1, 1), decay=1.0)
