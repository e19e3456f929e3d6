"""The order of samples in an epoch, samplers against imbalance, and seeds."""

import hashlib
from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor

SamplerName = Literal["uniform", "balanced", "sqrt"]


def index_batches(
    num_samples: int,
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    first: int = 0,
    device: torch.device | str = "cpu",
    sampler: SamplerName = "uniform",
    labels: Integer[Tensor, "samples"] | None = None,
    shard: tuple[int, int] = (0, 1),
) -> Iterator[tuple[Integer[Tensor, "batch"]]]:
    """Yield the full batches of an epoch as sample indices.

    Args:
        num_samples: Number of samples in the dataset.
        batch_size: Number of samples in a batch.
        seed: Seed of the run.
        epoch: Index of the epoch.
        first: Index of the first batch to yield.
        device: Device of the indices.
        sampler: How samples are drawn, as :func:`epoch_order` has it.
        labels: Class index of each sample; needed unless the sampler is ``"uniform"``.
        shard: Which part of each batch to yield, and of how many.

    >>> [len(index) for (index,) in index_batches(10, 4, seed=0, epoch=0)]
    [4, 4]
    >>> [len(index) for (index,) in index_batches(10, 4, seed=0, epoch=0, shard=(0, 3))]
    [2, 2]
    """
    order = epoch_order(num_samples, seed=seed, epoch=epoch, sampler=sampler, labels=labels)
    order = order.to(device)
    for part in batch_slices(num_samples, batch_size, first=first, shard=shard):
        yield (order[part],)


def batch_slices(
    num_samples: int, batch_size: int, *, first: int = 0, shard: tuple[int, int] = (0, 1)
) -> list[slice]:
    """Return where one part of each full batch is in the order of an epoch.

    The parts of a batch are as those of ``torch.tensor_split``: the first ones are longer by one
    sample if the number of parts does not divide the batch.

    Args:
        num_samples: Number of samples in the dataset.
        batch_size: Number of samples in a batch.
        first: Index of the first batch.
        shard: Which part of each batch, and of how many.

    >>> batch_slices(10, 5, shard=(1, 2))
    [slice(3, 5, None), slice(8, 10, None)]
    """
    index, count = shard
    length = min(num_samples, batch_size)
    quotient, remainder = divmod(length, count)
    begin = index * quotient + min(index, remainder)
    end = begin + quotient + (index < remainder)
    starts = range(first, num_batches(num_samples, batch_size))
    return [slice(start * batch_size + begin, start * batch_size + end) for start in starts]


def evaluation_slices(
    num_samples: int, batch_size: int, *, shard: tuple[int, int] = (0, 1)
) -> list[slice]:
    """Return where the evaluation batches of one process are in the order of the images.

    Processes take whole batches in turn, so that every image is in the batch that it is in with one
    process. Processes beyond the number of batches have none.

    Args:
        num_samples: Number of samples in the dataset.
        batch_size: Number of samples in a batch; the last one may have fewer.
        shard: Which process, and of how many.

    >>> evaluation_slices(10, 4, shard=(0, 2))
    [slice(0, 4, None), slice(8, 10, None)]
    """
    index, count = shard
    starts = range(index * batch_size, num_samples, count * batch_size)
    return [slice(start, min(start + batch_size, num_samples)) for start in starts]


def num_batches(num_samples: int, batch_size: int) -> int:
    """Return the number of full batches; fewer samples than ``batch_size`` make one batch.

    >>> num_batches(10, 4), num_batches(3, 4)
    (2, 1)
    """
    return max(1, num_samples // batch_size)


def check_sampler(sampler: str) -> None:
    """Raise ValueError unless there is a sampler of this name.

    >>> check_sampler("even")
    Traceback (most recent call last):
    ValueError: sampler must be one of uniform, balanced, sqrt; got 'even'
    """
    if sampler not in get_args(SamplerName):
        names = ", ".join(get_args(SamplerName))
        raise ValueError(f"sampler must be one of {names}; got {sampler!r}")


def epoch_order(
    num_samples: int,
    *,
    seed: int,
    epoch: int,
    sampler: SamplerName = "uniform",
    labels: Integer[Tensor, "samples"] | None = None,
) -> Integer[Tensor, "samples"]:
    r"""Return the order of the samples in an epoch.

    It is drawn on the CPU, so that it is the same on every device, and has ``num_samples`` entries
    for every sampler. With ``"uniform"`` it is a permutation. Otherwise a class is drawn for each
    entry with replacement, with probability

    .. math:: p_c \propto 1 \text{ (balanced)} \quad\text{or}\quad p_c \propto \sqrt{n_c}
        \text{ (sqrt)}

    over the classes that have samples, and then a sample of this class: all samples of a class
    appear in random order before one of them is repeated.

    Args:
        num_samples: Number of samples in the dataset.
        seed: Seed of the run.
        epoch: Index of the epoch.
        sampler: ``"uniform"``, ``"balanced"`` or ``"sqrt"``.
        labels: Class index of each sample; needed unless the sampler is ``"uniform"``.

    Raises:
        ValueError: There is no such sampler, or the labels are missing.

    >>> labels = torch.tensor([0] * 98 + [1] * 2)
    >>> order = epoch_order(100, seed=0, epoch=0, sampler="balanced", labels=labels)
    >>> len(order), 30 < int(labels[order].sum()) < 70
    (100, True)
    """
    check_sampler(sampler)
    generator = torch.Generator().manual_seed(derive_seed("order", seed, epoch))
    if sampler == "uniform":
        return torch.randperm(num_samples, generator=generator)
    if labels is None or labels.shape != (num_samples,):
        given = "none" if labels is None else f"shape {tuple(labels.shape)}"
        raise ValueError(
            f"sampler {sampler!r} needs labels, one per sample, of shape ({num_samples},); "
            f"got {given}"
        )
    labels = labels.cpu()
    counts = torch.bincount(labels)
    weights = (counts > 0).double() if sampler == "balanced" else counts.double().sqrt()
    classes = torch.multinomial(weights, num_samples, replacement=True, generator=generator)
    # Sample indices grouped by class, and positions of the order grouped by the class drawn there.
    members = labels.argsort(stable=True).split(counts.tolist())
    draws = torch.bincount(classes, minlength=len(counts)).tolist()
    positions = classes.argsort(stable=True).split(draws)
    order = torch.empty(num_samples, dtype=torch.int64)
    for own, places in zip(members, positions, strict=True):
        if len(places):
            cycles = -(-len(places) // len(own))
            shuffled = [torch.randperm(len(own), generator=generator) for _ in range(cycles)]
            order[places] = own[torch.cat(shuffled)[: len(places)]]
    return order


def repetitions(order: Integer[Tensor, "draws"]) -> Integer[Tensor, "draws"]:
    """Return how often each entry of an order has appeared before.

    >>> repetitions(torch.tensor([5, 2, 5, 5, 2]))
    tensor([0, 0, 1, 2, 1])
    """
    ascending, places = order.sort(stable=True)
    _, counts = torch.unique_consecutive(ascending, return_counts=True)
    starts = (counts.cumsum(0) - counts).repeat_interleave(counts)
    numbers = torch.empty_like(order)
    numbers[places] = torch.arange(len(order)) - starts
    return numbers


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
