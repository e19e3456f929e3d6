"""Spectra of symmetric matrices: entropy, effective rank and parallel eigenvalues."""

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
    """Return the Shannon entropy, in nats, of a spectrum normalized to sum to one.

    H = −Σ_i p_i ln p_i, p_i = s_i / Σ_j s_j over the positive values; 0 for a zero spectrum.

    Args:
        spectrum: Eigenvalues; negative ones are treated as zero.

    Returns:
        Scalar tensor.

    >>> entropy(torch.tensor([1.0, 1.0, 0.0]))
    tensor(0.6931)
    """
    values = spectrum.clamp(min=0)
    total = values.sum()
    probabilities = values / torch.where(total > 0, total, 1)
    return -torch.xlogy(probabilities, probabilities).sum()


def effective_rank(spectrum: Float[Tensor, "values"]) -> Float[Tensor, ""]:
    """Return the effective rank of a matrix from its spectrum.

    erank = exp(H), between 1 and the number of positive values; 0 for a zero spectrum.

    Args:
        spectrum: Eigenvalues of a covariance; negative ones are rounding errors and count as zero.

    Returns:
        Scalar tensor.

    >>> round(float(effective_rank(torch.tensor([2.0, 2.0, 2.0, 0.0]))), 6)
    3.0

    Reference:
        Roy and Vetterli, The effective rank, EUSIPCO 2007.
    """
    return torch.where((spectrum > 0).any(), entropy(spectrum).exp(), 0)


def symmetric_eigenvalues(matrix: Float[Tensor, "size size"]) -> Float[Tensor, "size"]:
    """Return the eigenvalues of a symmetric matrix in ascending order; reads the lower triangle.

    On the CPU it calls NumPy, whose LAPACK takes two thirds of the time of PyTorch's here and
    whose number of threads can be limited, as :func:`thread_map` requires.
    """
    if matrix.device.type != "cpu":
        values: Tensor = torch.linalg.eigvalsh(matrix)
        return values
    return torch.from_numpy(np.linalg.eigvalsh(matrix.detach().numpy()))


@contextmanager
def thread_map(
    function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[Iterator[Result]]:
    """Apply a NumPy function to items in one thread per core, and yield the results in order.

    One eigenvalue problem of a few hundred rows hardly gains from a second core; two of them do.
    Inside the block each BLAS call is limited to one thread. At most two items per core are in
    flight, which bounds the memory.

    Args:
        function: Function of one item; it should release the GIL.
        items: Inputs, consumed lazily.
    """
    # Imported here because it inspects the loaded libraries, which slows down the import.
    from threadpoolctl import threadpool_limits  # noqa: PLC0415

    workers = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    iterator = iter(items)

    def results(pool: ThreadPoolExecutor) -> Iterator[Result]:
        pending = deque(pool.submit(function, item) for item in islice(iterator, 2 * workers))
        while pending:
            yield pending.popleft().result()
            pending.extend(pool.submit(function, item) for item in islice(iterator, 1))

    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(workers) as pool:
        yield results(pool)
