"""On one GPU: NCCL with one process, and two gloo processes that share it, equal no group."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from protosphere.losses import MixedLabels
from support.fsdp_training import Run
from support.gpu_cases import (
    backend,
    compute_losses,
    exchange_state,
    run_collectives,
    run_digits,
    train_divided,
    train_with_batch_norm,
)
from support.gpu_processes import gpu_processes
from support.group_cases import Case
from support.losses import TABLE
from support.processes import Processes

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

DEVICE = "cuda"
F64 = torch.float64
SAMPLES, CLASSES, DIM = 12, 4, 5
# The second process has no sample of the first two classes.
UNEVEN = [9, 3]
SETTINGS = ["schedule.epochs=1", "training.ema_decay=0.9", "training.grad_clip=1.0"]


@pytest.fixture(scope="module")
def one() -> Iterator[Processes]:
    """A process with NCCL."""
    with gpu_processes(1, DEVICE) as running:
        yield running


@pytest.fixture(scope="module")
def two() -> Iterator[Processes]:
    """Two processes with gloo, because NCCL refuses two processes on one GPU."""
    with gpu_processes(2, DEVICE) as running:
        yield running


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def _cases(index: int) -> list[Case]:
    """All kinds of labels, in both forms."""
    row, generator = TABLE[index], torch.Generator().manual_seed(index)
    features = torch.randn(SAMPLES, DIM, dtype=F64, generator=generator)
    prototypes = torch.randn(CLASSES, DIM, dtype=F64, generator=generator)
    labels = torch.arange(SAMPLES) * CLASSES // SAMPLES
    ignored = labels.clone()
    ignored[4] = -100
    weights = torch.linspace(0.5, 2, CLASSES, dtype=F64)
    learned = torch.tensor(0.3, dtype=F64) if row.has_temperature else None

    def case(labels: Any, *, learn: bool = False, form: str, **options: Any) -> Case:
        given = row.settings(form=form, temperature=None if learn else 0.3, **options)
        if learn:
            given.update(row.learned_temperature)
        return Case(index, features, prototypes, labels, learned if learn else None, given)

    cases = [
        case(labels, learn=True, form="eager"),
        case(ignored, form="chunked", class_weights=weights),
        case(ignored, learn=True, form="eager", class_weights=weights, reduction="none"),
    ]
    if row.soft_labels:
        mixed = MixedLabels(labels, labels.roll(5), torch.linspace(0, 1, SAMPLES, dtype=F64))
        cases.append(case(mixed, form="eager", class_weights=weights))
    return cases


def _upstream(case: Case) -> Tensor:
    shape = (SAMPLES,) if case.settings.get("reduction") == "none" else ()
    return torch.rand(shape, dtype=F64, generator=torch.Generator().manual_seed(1))


def _close(got: Tensor | None, expected: Tensor | None) -> None:
    assert (got is None) == (expected is None)
    if got is not None:
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


def _assert_weights(got: dict[str, Tensor], expected: dict[str, Tensor], **tolerance: Any) -> None:
    assert list(got) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, **tolerance, msg=f"{name} differs")


def test_one_process_joins_as_torchrun_starts_it(one: Processes) -> None:
    assert one.run(backend, [()]) == ["nccl" if DEVICE == "cuda" else "gloo"]


def test_collectives_of_one_process_change_nothing(one: Processes) -> None:
    rows, weights = _random(3, 2), _random(3, 2, seed=1)
    (results,) = one.run(run_collectives, [(DEVICE, rows, weights)])
    for name, (value, gradient) in results.items():
        _close(value, torch.zeros_like(rows) if name == "gradient of sum" else rows)
        _close(gradient, torch.zeros_like(rows) if name == "max" else weights)
    (exchanged,) = one.run(exchange_state, [(DEVICE,)])
    assert exchanged.numbers == [[0, 7]]
    assert exchanged.weight.tolist() == exchanged.gradient.tolist() == [[1.0, 1.0]]
    assert exchanged.shards.tolist() == [0, 1, 2]
    assert exchanged.rows.tolist() == [0]
    assert exchanged.decision


def test_collectives_of_two_processes(two: Processes) -> None:
    rows, weights = _random(2, 3, 2), _random(2, 6, 2, seed=1)
    results = two.run(run_collectives, [(DEVICE, x, w) for x, w in zip(rows, weights, strict=True)])
    both = weights[:, :3].sum(0)
    for rank, result in enumerate(results):
        order = [rank, 1 - rank]
        _close(result["sum"][0], rows.sum(0))
        _close(result["sum"][1], both)
        _close(result["gradient of sum"][1], both)
        _close(result["max"][0], rows.amax(0))
        _close(result["logsumexp"][0], rows.logsumexp(0))
        _close(result["logsumexp"][1], both * rows.softmax(0)[rank])
        for name in ("gather", "exchanged rows"):
            value, gradient = result[name]
            _close(value, rows[order].flatten(0, 1))
            _close(gradient, weights[rank, :3] + weights[1 - rank, 3:])
    for rank, exchanged in enumerate(two.run(exchange_state, [(DEVICE,)] * 2)):
        assert exchanged.numbers == [[0, 7], [1, 7]]
        assert exchanged.weight.tolist() == [[1.0, 1.0]]
        assert exchanged.gradient.tolist() == [[1.5, 1.5]]
        assert exchanged.shards.tolist() == [0, 1, 2]
        assert exchanged.rows.tolist() == [rank, 10 + rank]
        assert exchanged.decision


def test_losses_over_one_process_are_those_without_a_group(one: Processes) -> None:
    cases = [(case, _upstream(case)) for index in range(len(TABLE)) for case in _cases(index)]
    ((expected,), (results,)) = (
        one.run(compute_losses, [(DEVICE, use_group, cases)]) for use_group in (False, True)
    )
    for wanted, got in zip(expected, results, strict=True):
        for tensor, other in zip(got, wanted, strict=True):
            _close(tensor, other)


def test_losses_over_two_processes_are_those_of_the_whole_batch(
    one: Processes, two: Processes
) -> None:
    cases = [(case, _upstream(case)) for index in range(len(TABLE)) for case in _cases(index)]
    (expected,) = one.run(compute_losses, [(DEVICE, False, cases)])
    ranks: list[list[tuple[Case, Tensor]]] = [[], []]
    for case, upstream in cases:
        parts = upstream.split(UNEVEN) if upstream.ndim else [upstream] * 2
        for rank, (part, weight) in enumerate(zip(case.split(UNEVEN), parts, strict=True)):
            ranks[rank].append((part, weight))
    results = two.run(compute_losses, [(DEVICE, True, rank) for rank in ranks])
    for (_, upstream), wanted, *parts in zip(cases, expected, *results, strict=True):
        # Ranks that return the same scalar have world_size times their part of the gradient.
        none = bool(upstream.ndim)
        scale = 1 if none else 2
        if none:
            _close(torch.cat([part.value for part in parts]), wanted.value)
        else:
            for part in parts:
                _close(part.value, wanted.value)
        _close(torch.cat([part.features for part in parts]) / scale, wanted.features)
        for name in ("prototypes", "temperature"):
            if getattr(wanted, name) is not None:
                _close(sum(getattr(part, name) for part in parts) / scale, getattr(wanted, name))


@pytest.mark.parametrize("batch_size", [16, 15])
def test_synchronized_batch_norm_has_the_weights_of_one_process(
    one: Processes, two: Processes, batch_size: int
) -> None:
    """Running statistics included, in float64; 15 samples are 8 and 7."""
    ((expected, none),) = one.run(train_with_batch_norm, [(DEVICE, False, batch_size)])
    assert none == 0
    for weights, synchronized in two.run(train_with_batch_norm, [(DEVICE, True, batch_size)] * 2):
        assert synchronized == 3
        # The variance of all comes from the inverse deviations of the parts.
        _assert_weights(weights, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.compiled
def test_an_encoder_is_compiled_around_synchronized_batch_norm(two: Processes) -> None:
    eager, compiled = (
        two.run(train_with_batch_norm, [(DEVICE, True, 15, flag)] * 2) for flag in (False, True)
    )
    for (expected, _), (weights, _) in zip(eager, compiled, strict=True):
        _assert_weights(weights, expected, rtol=1e-8, atol=1e-9)


def test_fsdp_over_nccl_has_the_weights_of_no_group(one: Processes) -> None:
    """A transformer in float64."""
    run = Run(device=DEVICE)
    (expected,) = one.run(train_divided, [(run, False)])
    (divided,) = one.run(train_divided, [(run, True)])
    _assert_weights(divided, expected, rtol=1e-8, atol=1e-9)


def test_training_over_nccl_is_training_without_a_group(one: Processes, tmp_path: Path) -> None:
    """A recipe with random augmentation in float32, not compiled and compiled."""
    runs = {
        name: one.run(run_digits, [(DEVICE, use_group, str(tmp_path / name), settings)])[0][0]
        for name, use_group, settings in (
            ("alone", False, [*SETTINGS, "training.compile=false"]),
            ("over NCCL", True, [*SETTINGS, "training.compile=false"]),
            ("compiled", True, [*SETTINGS, "training.compile=true"]),
        )
    }
    _assert_weights(runs["over NCCL"], runs["alone"], rtol=5e-3, atol=1e-3)
    _assert_weights(runs["compiled"], runs["alone"], rtol=2e-2, atol=5e-3)


def test_a_recipe_on_two_processes_is_that_of_one(
    one: Processes, two: Processes, tmp_path: Path
) -> None:
    """Two steps and an evaluation in float32, with batch norm and without random augmentation."""
    settings = [*SETTINGS, "training.batch_size=512", "augmentation.crop=null"]
    settings.append("training.compile=false")
    ((expected, metrics),) = one.run(run_digits, [(DEVICE, False, str(tmp_path / "one"), settings)])
    arguments = (DEVICE, True, str(tmp_path / "two"), settings)
    (weights, got), (_, others) = two.run(run_digits, [arguments] * 2)
    _assert_weights(weights, expected, rtol=1e-3, atol=1e-4)
    assert got == others
    assert got == pytest.approx(metrics, rel=1e-2, abs=1e-3)
