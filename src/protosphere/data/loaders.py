"""Feeds: what a training loop is given, batch by batch, wherever the images are."""

import hashlib
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from protosphere.data.augmentation import Augmentation
from protosphere.data.datasets import ImageSet

Batch = tuple[Tensor, Tensor]


@runtime_checkable
class Feed(Protocol):
    """Images for training and for evaluation.

    A batch comes in two steps, so that the second can be compiled with the model: :meth:`batches` finds or loads it,
    :meth:`prepared` augments it on the device, with random numbers of the device's own generator. Where a feed has
    several views, each sample comes out so many times, all samples of one view after those of another.
    """

    @property
    def device(self) -> torch.device:
        """Where batches come out."""
        ...

    def __len__(self) -> int:
        """How many samples there are."""
        ...

    def batches(
        self, size: int, *, seed: int, epoch: int, first: int = 0
    ) -> Iterator[tuple[Tensor, ...]]:
        """The whole batches of an epoch from the ``first`` on, in an order that seed and epoch decide alone."""
        ...

    def prepared(self, *parts: Tensor) -> Batch:
        """Images, augmented and normalized, and labels: of what :meth:`batches` gave, on the device."""
        ...

    def in_order(self, size: int) -> Iterator[Batch]:
        """All images in their own order, normalized and not augmented, and their labels."""
        ...


class MemoryFeed:
    """A set that lives on the device as bytes; batches are cut and augmented there.

    Args:
        data: on the device.
        augmentation: what is done to the images.
        views: how often each image of a batch is augmented, each time anew.
    """

    def __init__(self, data: ImageSet, augmentation: Augmentation, *, views: int = 1) -> None:
        self.data = data
        self.augmentation = augmentation
        self.views = views

    @property
    def device(self) -> torch.device:
        """Where the images are."""
        return self.data.images.device

    def __len__(self) -> int:
        return len(self.data)

    def batches(
        self, size: int, *, seed: int, epoch: int, first: int = 0
    ) -> Iterator[tuple[Tensor, ...]]:
        """Indices of samples."""
        return index_batches(
            len(self), size, seed=seed, epoch=epoch, first=first, device=self.device
        )

    def prepared(self, *parts: Tensor) -> Batch:
        """The samples of these indices."""
        index = parts[0].repeat(self.views)
        return self.augmentation(self.data.images[index]), self.data.labels[index]

    def in_order(self, size: int) -> Iterator[Batch]:
        """All samples."""
        clean = self.augmentation.clean()
        for images, labels in zip(
            self.data.images.split(size), self.data.labels.split(size), strict=True
        ):
            yield clean(images), labels


def index_batches(
    samples: int, size: int, *, seed: int, epoch: int, first: int, device: torch.device
) -> Iterator[tuple[Tensor, ...]]:
    """The whole batches of an epoch as indices, for sets that are on the device."""
    order = shuffled(samples, seed=seed, epoch=epoch).to(device)
    for start in range(first * size, whole_batches(samples, size) * size, size):
        yield (order[start : start + size],)


def whole_batches(samples: int, size: int) -> int:
    """How many whole batches there are; a set smaller than a batch is one."""
    return max(1, samples // size)


def shuffled(samples: int, *, seed: int, epoch: int) -> Tensor:
    """The order of an epoch: drawn on the CPU, so that it is the same wherever training runs."""
    return torch.randperm(
        samples, generator=torch.Generator().manual_seed(seed_of("order", seed, epoch))
    )


def seed_of(purpose: str, seed: int, number: int) -> int:
    """A seed for one purpose at one time; those of other purposes, seeds and times have nothing to do with it.

    >>> seed_of("order", 42, 0) == seed_of("order", 42, 0), seed_of("order", 42, 1) == seed_of("step", 42, 1)
    (True, False)
    """
    return (
        int.from_bytes(
            hashlib.blake2b(f"{purpose} {seed} {number}".encode(), digest_size=8).digest()
        )
        >> 1
    )
