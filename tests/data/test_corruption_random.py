"""The random numbers of the corruptions do not depend on batches, and are random."""

import hashlib

import numpy as np
import pytest
import torch
from scipy import stats

from protosphere.data.corruption_random import RandomNumbers

CPU = torch.device("cpu")


def numbers(**changes: object) -> RandomNumbers:
    options = {"seed": 3, "name": "fog", "severity": 2, "first_index": 0, "num_images": 4}
    return RandomNumbers(**{**options, **changes}, device=CPU)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 7, 8, 9, 100])
def test_an_image_has_the_same_numbers_in_every_batch(count: int) -> None:
    whole = numbers(num_images=9).uniform(count)
    assert whole.shape == (9, count)
    for index in range(9):
        assert torch.equal(numbers(first_index=index, num_images=1).uniform(count)[0], whole[index])
    assert torch.equal(numbers(first_index=5, num_images=3).uniform(count), whole[5:8])


def test_numbers_are_those_of_philox_at_the_counter_of_the_image() -> None:
    key = int.from_bytes(hashlib.sha256(b"3 fog 2").digest()[:16], "little")
    for index in (0, 1, 10**9):
        # An image with 11 numbers takes two steps of four words of 64 bits.
        generator = np.random.Generator(np.random.Philox(key=key, counter=2 * index))
        words = generator.integers(0, 2**32, size=11, dtype=np.uint32).view(np.int32)
        expected = 0.5 + (words.astype(float) + 0.5) / 2**32
        found = numbers(first_index=index, num_images=1).uniform(11)[0].numpy()
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "changes", [{"seed": 4}, {"name": "frost"}, {"severity": 3}, {"first_index": 1}]
)
def test_everything_that_names_an_image_changes_its_numbers(changes: dict) -> None:
    first, second = numbers().uniform(1000), numbers(**changes).uniform(1000)
    assert (first != second).all()
    assert abs(np.corrcoef(first[0], second[0])[0, 1]) < 0.15


def test_numbers_are_uniform_and_normal() -> None:
    uniform, normal = numbers().uniform(20_000).flatten(), numbers().normal(20_000).flatten()
    assert uniform.min() > 0
    assert uniform.max() < 1
    assert stats.kstest(uniform.numpy(), "uniform").pvalue > 1e-3
    assert stats.kstest(normal.numpy(), "norm").pvalue > 1e-3
    np.testing.assert_allclose(
        normal.numpy(), stats.norm.ppf(uniform.numpy()), rtol=1e-9, atol=1e-12
    )
