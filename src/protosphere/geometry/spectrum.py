"""Spectra of symmetric matrices: entropies, effective ranks, and eigenvalues of many classes at once."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")


def entropy(spectrum: Float[Tensor, "values"]) -> Float[Tensor, ""]:
    """The entropy of a spectrum as a distribution, in nats.

    H = −Σ_i p_i ln p_i, p_i = s_i / Σ_j s_j over the positive values; 0 for a spectrum of zeros.

    >>> entropy(torch.tensor([1.0, 1.0, 0.0]))
    tensor(0.6931)
    """
    values = spectrum.clamp(min=0)
    total = values.sum()
    shares = values / torch.where(total > 0, total, 1)
    return -torch.xlogy(shares, shares).sum()


def effective_rank(spectrum: Float[Tensor, "values"]) -> Float[Tensor, ""]:
    """How many directions a spectrum fills.

    erank = exp(H), between 1 and the number of positive values; 0 for a spectrum of zeros.

    Args:
        spectrum: eigenvalues of a covariance; negative ones are rounding and count as zero.

    Returns:
        One number.

    >>> round(float(effective_rank(torch.tensor([2.0, 2.0, 2.0, 0.0]))), 6)
    3.0

    Reference:
        Roy and Vetterli, The effective rank, EUSIPCO 2007.
    """
    return torch.where((spectrum > 0).any(), entropy(spectrum).exp(), 0)


def symmetric_eigenvalues(matrix: Float[Tensor, "size size"]) -> Float[Tensor, "size"]:
    """The eigenvalues of a symmetric matrix, of which the lower triangle is read, in rising order.

    On the CPU through NumPy: its LAPACK takes two thirds of the time of torch's here, and its number of threads can be
    set, which :func:`over_classes` needs.
    """
    if matrix.device.type != "cpu":
        values: Tensor = torch.linalg.eigvalsh(matrix)
        return values
    return torch.from_numpy(np.linalg.eigvalsh(matrix.detach().numpy()))


@contextmanager
def over_classes(
    function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[Iterator[Result]]:
    """Apply a NumPy function to items, one core an item; the results come in order.

    Eigenvalues of one matrix of a few hundred rows hardly gain from a second core; two matrices do. The linear
    algebra is held to one thread each inside the block. At most two items a core are in work, so that memory stays
    bounded.
    """
    # Imported here: it looks through the libraries of the process, which takes time that help should not take.
    from threadpoolctl import threadpool_limits  # noqa: PLC0415

    workers = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    iterator = iter(items)

    def results(pool: ThreadPoolExecutor) -> Iterator[Result]:
        waiting = deque(pool.submit(function, item) for item in islice(iterator, 2 * workers))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(function, item) for item in islice(iterator, 1))

    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(workers) as pool:
        yield results(pool)
