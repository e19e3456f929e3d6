"""Averaged weights with batch norm on several processes: the same statistics on all of them."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from support.group_averages import Result, average_synchronized, train_batch_norm
from support.processes import Processes, gloo_processes

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with gloo_processes("torch.distributed.fsdp", "support.group_averages") as running:
        yield running


def _assert_close(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(got) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize(
    ("size", "micro_batch_size", "alone_size"),
    [(2, None, 10), (3, None, 7), (4, None, 5), (2, 5, 5)],
)
def test_statistics_are_those_of_one_process_with_the_parts_as_micro_batches(
    processes: Processes, size: int, micro_batch_size: int | None, alone_size: int
) -> None:
    """Three processes have parts of 7, 7 and 6 samples."""
    averages, losses, _ = train_batch_norm(None, alone_size)
    results: list[Result] = processes.run(train_batch_norm, [(micro_batch_size,)] * size)
    for own_averages, own_losses, _ in results:
        assert own_losses == pytest.approx(losses, rel=1e-9)
        for own, expected in zip(own_averages, averages, strict=True):
            _assert_close(own, expected)


def test_processes_encode_as_many_pieces(processes: Processes) -> None:
    """Parts of 7, 7 and 6 samples in pieces of at most 6; other numbers of pieces could block."""
    results: list[Result] = processes.run(train_batch_norm, [(6,)] * 3)
    assert [int(weights["encoder.1.num_batches_tracked"]) for *_, weights in results] == [12] * 3
    for averages, *_ in results:
        for own, expected in zip(averages, results[0][0], strict=True):
            _assert_close(own, expected)


def test_with_fsdp_training_does_not_depend_on_evaluations(processes: Processes) -> None:
    plain = processes.run(train_batch_norm, [(None,)] * 2)
    divided = processes.run(train_batch_norm, [(None, True)] * 2)
    unevaluated = processes.run(train_batch_norm, [(None, True, False)] * 2)
    for one, two, three in zip(plain, divided, unevaluated, strict=True):
        assert one[1] == pytest.approx(two[1], rel=1e-9)
        assert two[1] == three[1]
        _assert_close(two[2], three[2])
        _assert_close(two[2], one[2])
        for expected, own in zip(one[0], two[0], strict=True):
            _assert_close(own, expected)


def test_synchronized_statistics_are_left_as_they_are(processes: Processes) -> None:
    results = processes.run(average_synchronized, [()] * 3)
    assert results == [[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]
