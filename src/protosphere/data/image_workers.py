"""Worker processes that decode images."""

import os
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from protosphere.data.splits import DataError

# What a dataset is indexed with.
Key = Any


class ImageWorkers:
    """Persistent worker processes that decode batches of images, other ones in each epoch.

    Args:
        dataset: Images by key; an error message in place of an image that cannot be read.
        device: Device of the batches.
        workers: Number of processes, at most one per core. 0 decodes in this process.
    """

    def __init__(self, dataset: Dataset[Tensor | str], device: torch.device, workers: int) -> None:
        cores = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
        num_workers = min(workers, cores)
        self.device = device
        self.sampler = _KeySampler()
        self.loader: DataLoader[Tensor | str] = DataLoader(
            dataset,
            batch_sampler=self.sampler,
            num_workers=num_workers,
            collate_fn=_collate,
            worker_init_fn=_leave_process_group,
            persistent_workers=num_workers > 0,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),
        )
        # If the loader were collected in a cycle with this object, its queues would close before
        # the workers are told to stop, and it would wait five seconds for each of them.
        weakref.finalize(self, lambda _: None, self.loader).atexit = False

    def batches(self, keys: Iterator[list[Key]]) -> Iterator[Tensor]:
        """Yield a batch of images for each list of keys.

        Raises:
            DataError: An image cannot be read, or another epoch has started.
        """
        self.sampler.keys = keys
        for images in self.loader:
            if isinstance(images, str):
                raise DataError(images)
            yield images.to(self.device, non_blocking=True)
            if self.sampler.keys is not keys:
                raise DataError(
                    "an epoch must be finished before another one starts; another one has started"
                )


def _leave_process_group(_: int) -> None:
    # Ctrl-C signals the whole process group; the parent still needs the workers to finish a step.
    os.setpgid(0, 0)


class _KeySampler(Iterable[list[Key]]):
    """Batch sampler whose batches are set before each epoch."""

    keys: Iterator[list[Key]] = iter(())

    def __iter__(self) -> Iterator[list[Key]]:
        return self.keys


def _collate(samples: list[Tensor | str]) -> Any:
    """Stack the images, or return the first error message."""
    problem = next((sample for sample in samples if isinstance(sample, str)), None)
    return problem or default_collate(samples)
