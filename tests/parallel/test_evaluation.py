"""Evaluation on several processes: every image once, and the results of one process."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from protosphere.data.sampling import evaluation_slices
from protosphere.recipes.loading import load_run
from protosphere.runs import RunFolder
from support.group_evaluation import (
    BATCH_SIZE,
    HEADS,
    NUM_TEST,
    NUM_TRAIN,
    average_gradients,
    evaluate_part,
    fail_in_evaluation,
    run_and_evaluate,
    train_with_compiler,
)
from support.processes import Processes, gloo_processes

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with gloo_processes() as running:
        yield running


@pytest.mark.parametrize("metrics", ["all", "cheap"])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("batch_size", "dim"), [(5, 8), (20, 3)])
def test_results_are_those_of_one_process(
    processes: Processes, head: str, metrics: str, batch_size: int, dim: int
) -> None:
    """With uneven parts; of 20 images in a batch, the last of 3 and 4 processes have no images."""
    arguments = (head, metrics, batch_size, dim)
    (metric_values, arrays, verdicts), train, test, prototypes = evaluate_part(None, *arguments)
    assert sorted(train) == list(range(NUM_TRAIN))
    assert sorted(test) == list(range(NUM_TEST))
    for size in (1, 2, 3, 4):
        parts = processes.run(evaluate_part, [arguments] * size)
        for index, num_samples in ((1, NUM_TRAIN), (2, NUM_TEST)):
            seen = sorted(number for part in parts for number in part[index])
            assert seen == list(range(num_samples))
        for result, *_, own_prototypes in parts:
            assert own_prototypes == prototypes
            assert list(result.metrics) == list(metric_values)
            for name, value in metric_values.items():
                is_count = name.endswith("accuracy") or name == "nc4_agreement"
                tolerance = 0 if is_count else 1e-9
                expected = pytest.approx(value, rel=tolerance, abs=tolerance)
                assert result.metrics[name] == expected, name
            assert [v.answer for v in result.verdicts] == [v.answer for v in verdicts]
            for name, array in arrays.items():
                np.testing.assert_allclose(result.arrays[name], array, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("metrics", ["all", "cheap"])
def test_a_failure_on_one_process_is_one_on_all(processes: Processes, metrics: str) -> None:
    peer = "PeerError: process 1 of the run has failed"
    errors = processes.run(fail_in_evaluation, [(metrics, "image")] * 3)
    assert errors == [peer, f"DataError: image {BATCH_SIZE} cannot be read", peer]
    # The processes still understand each other.
    assert len(processes.run(evaluate_part, [("cosine", metrics, BATCH_SIZE)] * 3)) == 3


def test_errors_about_all_samples_are_those_of_one_process(processes: Processes) -> None:
    message = "ValueError: every class needs a sample"
    first, second = processes.run(fail_in_evaluation, [("all", "class")] * 2)
    assert first == f"{message}; class 4 has none"
    assert second == "PeerError: process 0 of the run has failed"
    alone = fail_in_evaluation(None, "all", "features")
    assert "in sample 12" in alone
    assert alone in processes.run(fail_in_evaluation, [("all", "features")] * 2)


def test_records_of_a_run_are_those_of_its_weights_on_one_process(
    processes: Processes, tmp_path: Path
) -> None:
    """With a fitted head, averaged weights and running statistics that differ on each process."""
    settings = ["schedule.epochs=3", "training.batch_size=256", "training.ema_decay=0.9"]
    settings += ["evaluation.every=1", "checkpoint={every: 1, monitor: accuracy}"]
    settings += ["data.validation_fraction=0.2"]
    arguments = ("digits-scl", str(tmp_path), settings)
    first, *others = processes.run(run_and_evaluate, [arguments] * 3)
    assert all(other == first for other in others)
    records = [r for r in RunFolder(tmp_path).records() if r["kind"] == "evaluation"]
    assert [record["epoch"] for record in records] == [1, 2, 3]
    expected = load_run(tmp_path, checkpoint="last").evaluate().metrics
    assert first[-1][0] == pytest.approx(expected, rel=1e-6)
    assert {name: records[-1][name] for name in expected} == first[-1][0]


def test_an_exchange_that_overlaps_the_backward_pass_gives_the_same_averages(
    processes: Processes,
) -> None:
    plain = processes.run(average_gradients, [(False,)] * 2)
    overlapped = processes.run(average_gradients, [(True,)] * 2)
    # Each parameter is a bucket. The first step finds out which of them have gradients; the first
    # one has them on the first process only and not in the last step, and the others wait for it.
    assert [started for _, started in plain] == [[0, 0, 0]] * 2
    assert [started for _, started in overlapped] == [[0, 5, 0], [0, 0, 0]]
    for (expected, _), (gradients, _) in zip(plain, overlapped, strict=True):
        for step, others in zip(gradients, expected, strict=True):
            for own, value in zip(step, others, strict=True):
                assert (own is None) == (value is None)
                if own is not None:
                    torch.testing.assert_close(own, value, rtol=0, atol=0)


@pytest.mark.compiled
def test_a_compiled_encoder_changes_nothing(processes: Processes) -> None:
    """The loss of both processes is computed outside of the compiled graph."""
    eager = processes.run(train_with_compiler, [(False,)] * 2)
    compiled = processes.run(train_with_compiler, [(True,)] * 2)
    for (expected, _), (weights, num_graphs) in zip(eager, compiled, strict=True):
        assert num_graphs == 1
        for value, own in zip(expected, weights, strict=True):
            torch.testing.assert_close(own, value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("num_samples", [1, 7, 20, 21])
def test_processes_take_whole_batches_in_turn(num_samples: int, count: int) -> None:
    whole = [list(range(num_samples))[start : start + 4] for start in range(0, num_samples, 4)]
    for index in range(count):
        parts = evaluation_slices(num_samples, 4, shard=(index, count))
        assert [list(range(num_samples))[part] for part in parts] == whole[index::count]
