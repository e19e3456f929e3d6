"""Collectives over processes equal the operation on all of their tensors, and so do gradients."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from protosphere.parallel import check_group, gather_rows, logsumexp_over, max_over, sum_over
from support.group_cases import collective
from support.processes import Processes, gloo_processes

pytestmark = pytest.mark.long

F64 = torch.float64
sizes = pytest.mark.parametrize("world_size", [1, 2, 3, 4])


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with gloo_processes() as running:
        yield running


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def _assert_gradients(reduced: Tensor, leaves: Tensor, weights: Tensor, got: list[Tensor]) -> None:
    """The gradient of Σ over ranks of (result · weights of the rank)."""
    (expected,) = torch.autograd.grad((reduced * weights).sum(), leaves)
    torch.testing.assert_close(torch.stack(got), expected, rtol=1e-13, atol=1e-13)


@sizes
def test_sum(processes: Processes, world_size: int) -> None:
    leaves = _random(world_size, 2, 3).requires_grad_()
    weights = _random(world_size, 2, 3, seed=1)
    results = processes.run(
        collective,
        [("sum", x, w) for x, w in zip(leaves.detach(), weights, strict=True)],
    )
    for value, _ in results:
        torch.testing.assert_close(value, leaves.detach().sum(0), rtol=1e-14, atol=1e-14)
    _assert_gradients(leaves.sum(0), leaves, weights, [gradient for _, gradient in results])


@sizes
def test_logsumexp(processes: Processes, world_size: int) -> None:
    """With values far from 0, and −∞ on some ranks and on all of them."""
    values = 10 * _random(world_size, 5) + 500
    values[0, 0] = -torch.inf
    values[:, 1] = -torch.inf
    weights = _random(world_size, 5, seed=1)
    results = processes.run(
        collective, [("logsumexp", x, w) for x, w in zip(values, weights, strict=True)]
    )
    finite = [column for column in range(5) if not torch.isneginf(values[:, column]).all()]
    leaves = values[:, finite].clone().requires_grad_()
    expected = leaves.logsumexp(0)
    for value, gradient in results:
        torch.testing.assert_close(value[finite], expected.detach(), rtol=1e-14, atol=1e-14)
        assert value[1] == -torch.inf
        assert torch.isfinite(gradient).all()
        assert gradient[1] == 0
    gradients = [gradient[finite] for _, gradient in results]
    _assert_gradients(expected, leaves, weights[:, finite], gradients)


@sizes
def test_max(processes: Processes, world_size: int) -> None:
    values = _random(world_size, 7)
    for result, _ in processes.run(collective, [("max", x) for x in values]):
        assert torch.equal(result, values.amax(0))


@pytest.mark.parametrize("lengths", [(3,), (2, 2), (1, 4, 2), (3, 0, 0, 2), (0, 0, 5, 1)])
def test_gather_of_uneven_rows(processes: Processes, lengths: tuple[int, ...]) -> None:
    blocks = [_random(length, 3, seed=length) for length in lengths]
    total = sum(lengths)
    weights = [_random(total, 3, seed=10 + rank) for rank in range(len(lengths))]
    results = processes.run(
        collective, [("gather", x, w) for x, w in zip(blocks, weights, strict=True)]
    )
    expected = [torch.zeros_like(block) for block in blocks]
    for rank, (value, _) in enumerate(results):
        order = [(rank + step) % len(blocks) for step in range(len(blocks))]
        assert torch.equal(value, torch.cat([blocks[r] for r in order]))
        for r, part in zip(order, weights[rank].split([lengths[r] for r in order]), strict=True):
            expected[r] += part
    for (_, gradient), wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-14, atol=1e-14)


def test_gather_of_no_rows_and_of_labels(processes: Processes) -> None:
    for value, _ in processes.run(collective, [("gather", torch.zeros(0, 3))] * 2):
        assert value.shape == (0, 3)
    labels = torch.arange(3), torch.arange(5)
    (first, _), (second, _) = processes.run(collective, [("gather", y) for y in labels])
    assert first.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert second.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]


def test_an_error_on_one_rank_reaches_the_test(processes: Processes) -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'unknown'"):
        processes.run(collective, [("unknown", torch.zeros(1))])


def test_without_a_group_nothing_is_exchanged() -> None:
    tensor = torch.ones(2, 3, requires_grad=True)
    assert sum_over(tensor, None) is tensor
    assert logsumexp_over(tensor, None) is tensor
    assert gather_rows(tensor, None) is tensor
    assert torch.equal(max_over(tensor, None), tensor)


@pytest.mark.bad_input
def test_what_is_no_group_is_refused() -> None:
    check_group(None)
    outside = torch.distributed.GroupMember.NON_GROUP_MEMBER
    with pytest.raises(ValueError, match=r"group must be None or a process group .* got -100"):
        check_group(outside)
