"""Random numbers of the corruptions: the same for every batch size, order of batches and device.

All of them are quantiles of uniform numbers, which come from the counter-based generator Philox on
the CPU. Its key is made of the seed, the name of the corruption and the severity; its counter
starts at the index of the image times the number of blocks that one image takes. So the numbers of
a batch are one call, and those of an image do not depend on the other images.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

# One step of Philox's counter gives four words of 64 bits.
_NUMBERS_PER_STEP = 8


@dataclass(frozen=True, kw_only=True)
class RandomNumbers:
    """The random numbers of consecutive images for one corruption and severity.

    Attributes:
        seed: Seed of everything random.
        name: Name of the corruption.
        severity: Severity of the corruption.
        first_index: Index of the first image in the dataset.
        num_images: Number of images.
        device: Device to move the numbers to.
    """

    seed: int
    name: str
    severity: int
    first_index: int
    num_images: int
    device: torch.device

    def uniform(self, count: int) -> Float64[Tensor, "images count"]:
        """Return uniform numbers in (0, 1); the same ones at every call.

        A random word of 32 bits, read as the signed integer s, gives 1/2 + (s + 1/2)/2³².

        Args:
            count: How many numbers each image needs. It determines which ones these are.
        """
        steps = -(-count // _NUMBERS_PER_STEP)
        text = f"{self.seed} {self.name} {self.severity}"
        key = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")
        generator = np.random.Philox(key=key, counter=self.first_index * steps)
        words = generator.random_raw(self.num_images * steps * _NUMBERS_PER_STEP // 2)
        signed = words.astype("<u8", copy=False).view("<i4").reshape(self.num_images, -1)
        numbers = torch.from_numpy(signed).to(self.device)[:, :count].to(torch.float64)
        return numbers.add_(0.5).mul_(2.0**-32).add_(0.5)

    def normal(self, count: int) -> Float64[Tensor, "images count"]:
        """Return standard normal numbers, the normal quantiles of ``uniform(count)``."""
        return inverse_normal(self.uniform(count))


def inverse_normal(uniform: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """Return the normal quantiles of numbers in (0, 1)."""
    normal: Tensor = torch.special.ndtri(uniform)
    return normal
