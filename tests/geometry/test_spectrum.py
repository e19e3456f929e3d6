"""Spectra: entropies and ranks by definition, eigenvalues, and work spread over cores in order."""

import math

import numpy as np
import pytest
import torch

from protosphere.geometry.spectrum import (
    effective_rank,
    entropy,
    over_classes,
    symmetric_eigenvalues,
)


def test_entropy_and_rank() -> None:
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


def test_over_classes_keeps_the_order_and_takes_only_a_few_at_a_time() -> None:
    taken = []

    def items():
        for index in range(100):
            taken.append(index)
            yield index

    with over_classes(lambda index: np.full(3, index).sum(), items()) as results:
        assert next(results) == 0
        assert len(taken) < 50
        assert list(results) == [3 * index for index in range(1, 100)]
    with over_classes(len, []) as results:
        assert list(results) == []


def test_over_classes_passes_errors_on() -> None:
    with (
        pytest.raises(ZeroDivisionError),
        over_classes(lambda number: 1 // number, [1, 0, 1]) as results,
    ):
        list(results)
