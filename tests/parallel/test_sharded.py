"""Losses and heads with prototypes sharded over processes equal those of one process."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from protosphere.classifiers import CosineClassifier
from protosphere.losses.sharded import sharded_ntce_loss
from protosphere.parallel import Shards
from support.processes import Processes, gloo_processes
from support.sharded_cases import Case, compute, compute_all, frozen_features, use_head

pytestmark = pytest.mark.long

F64 = torch.float64
SAMPLES, DIM = 12, 5
# Some ranks have no sample, and with sorted labels no rank has all classes.
SIZES = {1: [12], 2: [9, 3], 3: [5, 0, 7], 4: [6, 1, 0, 5]}
# Fewer classes than processes, parts that differ, and more classes than samples.
NUM_CLASSES = (3, 7, 61)

world_sizes = pytest.mark.parametrize("world_size", [1, 2, 3, 4])


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with gloo_processes() as running:
        yield running


def _case(loss: str, num_classes: int, *, labels: Tensor | None = None, **settings: Any) -> Case:
    generator = torch.Generator().manual_seed(num_classes)
    features = torch.randn(SAMPLES, DIM, dtype=F64, generator=generator)
    prototypes = torch.randn(num_classes, DIM, dtype=F64, generator=generator)
    if labels is None:
        labels = torch.randint(num_classes, (SAMPLES,), generator=generator).sort().values
    shape = (SAMPLES,) if settings.get("reduction") == "none" else ()
    upstream = torch.rand(shape, dtype=F64, generator=generator)
    return Case(loss, features, prototypes, labels, upstream, settings)


def _check(processes: Processes, cases: list[Case], sizes: list[int]) -> None:
    """Compare values and gradients of all ranks with those of one process."""
    ranks = list(zip(*(case.split(sizes) for case in cases), strict=True))
    results = processes.run(compute_all, [(list(rank),) for rank in ranks])
    for case, *parts in zip(cases, *results, strict=True):
        wanted = compute(None, case)
        values = [part.value for part in parts]
        if case.is_reduced:
            for value in values:
                _assert_close(value, wanted.value)
        else:
            _assert_close(torch.cat(values), wanted.value)
        # Of a scalar, ranks get world_size times their part; of values of their own, their part.
        average = len(parts) if case.is_reduced else 1
        _assert_close(torch.cat([part.features for part in parts]) / average, wanted.features)
        _assert_close(sum(part.temperature for part in parts) / average, wanted.temperature)
        # Gradients of sharded prototypes are not averaged.
        own = torch.cat([part.prototypes for part in parts])
        _assert_close(own if case.is_reduced else own * len(parts), wanted.prototypes)


def _assert_close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("loss", ["normface", "ntce", "nonl"])
@world_sizes
def test_world_size_does_not_matter(processes: Processes, loss: str, world_size: int) -> None:
    cases = []
    for num_classes in NUM_CLASSES:
        plain = _case(loss, num_classes)
        labels = plain.labels.clone()
        labels[[1, 6]] = -100
        weights = torch.linspace(0.5, 2, num_classes, dtype=F64)
        options: dict[str, Any] = {"labels": labels, "class_weights": weights}
        cases += [
            plain,
            _case(loss, num_classes, **options, form="chunked"),
            _case(loss, num_classes, **options, reduction="none"),
            _case(loss, num_classes, **options, reduction="sum"),
        ]
    _check(processes, cases, SIZES[world_size])


@world_sizes
def test_options(processes: Processes, world_size: int) -> None:
    adjustments = [torch.linspace(-1, 1, count, dtype=F64) for count in NUM_CLASSES]
    cases = [
        _case("normface", count, logit_adjustment=adjustment, **margin, form=form)
        for count, adjustment in zip(NUM_CLASSES, adjustments, strict=True)
        for margin in ({"margin": 0.3}, {"margin": 0.4, "margin_kind": "angle"})
        for form in ("eager", "chunked")
    ]
    cases += [
        _case("nonl", count, negatives=negatives)
        for count in NUM_CLASSES
        for negatives in ("prototypes", "both")
    ]
    _check(processes, cases, SIZES[world_size])


@pytest.mark.parametrize("loss", ["normface", "ntce", "nonl"])
def test_batches_without_samples_or_negatives(processes: Processes, loss: str) -> None:
    nobody = torch.full((SAMPLES,), -100)
    only_one = nobody.clone()
    only_one[7] = 2
    cases = [
        _case(loss, count, labels=labels, reduction=reduction)
        for count in NUM_CLASSES
        for labels in (nobody, only_one, torch.full((SAMPLES,), 1))
        for reduction in ("mean", "none")
    ]
    _check(processes, cases, SIZES[3])


@pytest.mark.parametrize("loss", ["normface", "ntce", "nonl"])
def test_a_frozen_encoder(processes: Processes, loss: str) -> None:
    """A rank without a class takes part in the backward pass too, where only prototypes train."""
    case = _case(loss, 3)
    results = processes.run(frozen_features, [(part,) for part in case.split(SIZES[4])])
    expected = compute(None, case).prototypes / case.upstream
    _assert_close(torch.cat(results), expected)


@world_sizes
@pytest.mark.parametrize("num_classes", [3, 250_001])
def test_a_head_is_that_of_one_process(
    processes: Processes, world_size: int, num_classes: int
) -> None:
    """The larger one is drawn in several pieces."""
    torch.manual_seed(0)
    head = CosineClassifier(DIM, num_classes, temperature=0.2, learn_temperature=True)
    features = torch.randn(world_size, 2, DIM)
    expected = head(features).detach()
    results = processes.run(use_head, [(DIM, num_classes, x) for x in features])
    sizes = [len(part) for part in torch.arange(num_classes).tensor_split(world_size)]
    for rank, result in enumerate(results):
        assert result.own.shape == (sizes[rank], DIM)
        assert torch.equal(result.full, head.prototypes)
        torch.testing.assert_close(result.logits, expected[rank])
        torch.testing.assert_close(result.of_full_classifier, expected[rank])
        assert torch.equal(result.predictions, expected[rank].argmax(-1))
    assert torch.equal(torch.cat([result.own for result in results]), head.prototypes)
    if world_size == 4 and num_classes == 3:
        assert "num_classes=3, classes=2..2, temperature=0.2" in results[2].text
        assert "num_classes=3, classes=none, temperature=0.2" in results[3].text


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing": 0.1}, "label_smoothing must be 0 with sharded prototypes, got 0.1"),
        ({"group": "another"}, "must have the process group of the head, got another one"),
        ({"labels": torch.eye(3)}, r"labels must be class indices.*got shape \(3, 3\)"),
        ({"prototypes": torch.eye(3)}, r"prototypes must be those of this rank.*shape \(2, 3\)"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "features": torch.eye(3),
        "prototypes": torch.eye(3)[:2],
        "labels": torch.arange(3),
        "shards": Shards((2, 1)),
        "temperature": 0.1,
        "group": None,
    }
    with pytest.raises(ValueError, match=message):
        sharded_ntce_loss(**arguments | options)
