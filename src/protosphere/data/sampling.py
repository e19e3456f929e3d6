"""The order of samples in an epoch, and seeds for everything random."""

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor


def index_batches(
    num_samples: int,
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    first: int = 0,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[Integer[Tensor, "batch"]]]:
    """Yield the full batches of an epoch as sample indices.

    Args:
        num_samples: Number of samples in the dataset.
        batch_size: Number of samples in a batch.
        seed: Seed of the run.
        epoch: Index of the epoch.
        first: Index of the first batch to yield.
        device: Device of the indices.

    >>> [len(index) for (index,) in index_batches(10, 4, seed=0, epoch=0)]
    [4, 4]
    """
    order = epoch_order(num_samples, seed=seed, epoch=epoch).to(device)
    for start in range(
        first * batch_size, num_batches(num_samples, batch_size) * batch_size, batch_size
    ):
        yield (order[start : start + batch_size],)


def num_batches(num_samples: int, batch_size: int) -> int:
    """Return the number of full batches; fewer samples than ``batch_size`` make one batch.

    >>> num_batches(10, 4), num_batches(3, 4)
    (2, 1)
    """
    return max(1, num_samples // batch_size)


def epoch_order(num_samples: int, *, seed: int, epoch: int) -> Integer[Tensor, "samples"]:
    """Return the order of the samples in an epoch.

    It is drawn on the CPU, so that it is the same on every device.
    """
    generator = torch.Generator().manual_seed(derive_seed("order", seed, epoch))
    return torch.randperm(num_samples, generator=generator)


def derive_seed(purpose: str, seed: int, number: int) -> int:
    """Derive an independent seed for one purpose and one step or epoch of a run.

    Args:
        purpose: What the seed is for.
        seed: Seed of the run.
        number: Index of the step or epoch.

    Returns:
        A seed of 63 bits.

    >>> derive_seed("order", 42, 0) == derive_seed("order", 42, 0)
    True
    >>> derive_seed("order", 42, 1) == derive_seed("step", 42, 1)
    False
    """
    text = f"{purpose} {seed} {number}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """Derive the seed of one sample's crop in one epoch.

    Returns:
        A seed of 32 bits, which is what the CPU generator takes.

    >>> sample_seed(0, 1, 2) == sample_seed(0, 1, 2), sample_seed(0, 1, 2) == sample_seed(0, 2, 1)
    (True, False)
    """
    return int(np.random.SeedSequence((seed % (1 << 64), epoch, index)).generate_state(1)[0])
