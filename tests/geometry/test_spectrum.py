"""Entropy and effective rank by definition, eigenvalues, and parallel maps."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from protosphere.geometry.spectrum import (
    effective_rank,
    entropy,
    symmetric_eigenvalues,
    thread_map,
)


def test_entropy_and_effective_rank() -> None:
    values = torch.tensor([0.5, 0.25, 0.25, 0.0, -1e-17], dtype=torch.float64)
    assert float(entropy(7 * values)) == pytest.approx(1.5 * math.log(2), rel=1e-12)
    assert float(effective_rank(values)) == pytest.approx(2**1.5, rel=1e-12)
    assert float(effective_rank(torch.zeros(4))) == 0
    assert float(effective_rank(torch.tensor([3.0]))) == 1


def test_eigenvalues_read_the_lower_triangle() -> None:
    matrix = torch.randn(9, 9, dtype=torch.float64)
    matrix = matrix + matrix.T
    expected = torch.linalg.eigvalsh(matrix)
    torch.testing.assert_close(symmetric_eigenvalues(matrix.tril()), expected)


def test_thread_map_keeps_the_order_and_consumes_few_items_at_a_time() -> None:
    consumed: list[int] = []

    def items() -> Iterator[int]:
        for index in range(100):
            consumed.append(index)
            yield index

    with thread_map(lambda index: np.full(3, index).sum(), items()) as results:
        assert next(results) == 0
        assert len(consumed) < 50
        assert list(results) == [3 * index for index in range(1, 100)]
    with thread_map(len, []) as results:
        assert list(results) == []


def test_thread_map_raises_errors_of_the_function() -> None:
    with (
        pytest.raises(ZeroDivisionError),
        thread_map(lambda number: 1 // number, [1, 0, 1]) as results,
    ):
        list(results)
