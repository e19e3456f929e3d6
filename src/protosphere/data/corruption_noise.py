"""Noise corruptions: Gaussian, shot, impulse and speckle noise."""

from functools import lru_cache

import torch
from jaxtyping import Float64
from torch import Tensor

from protosphere.data.corruption_filters import Levels, to_levels, to_values
from protosphere.data.corruption_random import RandomNumbers


def gaussian_noise(levels: Levels, random: RandomNumbers, deviation: float) -> Levels:
    """Add normal noise to every value: x + deviation·n."""
    noise = random.normal(levels[0].numel()).view(levels.shape)
    return to_levels(noise.mul_(deviation).add_(to_values(levels)))


def speckle_noise(levels: Levels, random: RandomNumbers, deviation: float) -> Levels:
    """Add normal noise in proportion to the value: x + x·deviation·n."""
    noise = random.normal(levels[0].numel()).view(levels.shape)
    return to_levels(noise.mul_(deviation).add_(1).mul_(to_values(levels)))


def impulse_noise(levels: Levels, random: RandomNumbers, amount: float) -> Levels:
    """Make a fraction of all values black or white, half of them each (salt and pepper)."""
    uniform = random.uniform(levels[0].numel()).view(levels.shape)
    return torch.where(uniform <= amount / 2, 255, torch.where(uniform <= amount, 0, levels)).to(
        torch.uint8
    )


def shot_noise(levels: Levels, random: RandomNumbers, photons: int) -> Levels:
    """Replace every value x by k/photons with k ~ Poisson(x·photons), clipped at 1.

    A value has one of 256 levels: the Poisson quantile of a uniform number is looked up in the
    table of its level.
    """
    uniform = random.uniform(levels[0].numel()).view(levels.shape)
    table = poisson_table(photons).to(levels.device)
    # The rows are one ascending sequence if each is raised by its number.
    ramp = torch.arange(256, dtype=torch.float64, device=levels.device)[:, None]
    found = torch.searchsorted((table + ramp).flatten(), uniform.add_(levels))
    counts = found - levels.long() * table.shape[1]
    return to_levels(counts.to(torch.float64).div_(photons))


@lru_cache(maxsize=16)
def poisson_table(photons: int) -> Float64[Tensor, "256 counts"]:
    """Return the distribution functions of Poisson(level/255·photons) at 0 to ``photons``.

    The last entry is 1: more photons than ``photons`` make the same white.
    """
    rates = torch.arange(256, dtype=torch.float64)[:, None] * (photons / 255)
    counts = torch.arange(photons + 1, dtype=torch.float64)
    masses = torch.exp(torch.xlogy(counts, rates) - rates - torch.lgamma(counts + 1))
    table = masses.cumsum(1).clamp(max=1)
    table[:, -1] = 1
    return table
