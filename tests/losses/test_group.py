"""A loss over a process group equals the loss of the concatenated batch, with its gradients."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from protosphere.geometry import simplex_etf
from protosphere.losses import MixedLabels
from support.ddp_training import IMAGE_DIM, Batch, Trained, train_with_ddp
from support.group_cases import (
    Case,
    Outcome,
    compiled,
    compute,
    compute_all,
    exchanged_bytes,
    messages_of_modules,
)
from support.losses import TABLE
from support.processes import Processes, gloo_processes

pytestmark = pytest.mark.long

F64 = torch.float64
SAMPLES, CLASSES, DIM = 12, 4, 5
EVEN = {1: [12], 2: [6, 6], 3: [4, 4, 4], 4: [3, 3, 3, 3]}
# Some ranks have no sample, and with sorted labels no rank has all classes.
UNEVEN = {1: [12], 2: [9, 3], 3: [5, 0, 7], 4: [6, 1, 0, 5]}

every_loss = pytest.mark.parametrize("index", range(len(TABLE)), ids=[row.name for row in TABLE])
every_size = pytest.mark.parametrize("world_size", [1, 2, 3, 4])


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with gloo_processes() as running:
        yield running


def _case(
    index: int,
    *,
    classes: int = CLASSES,
    labels: Tensor | MixedLabels | None = None,
    learned: bool = False,
    use_module: bool = False,
    form: str = "eager",
    **settings: Any,
) -> Case:
    row, generator = TABLE[index], torch.Generator().manual_seed(index)
    features = torch.randn(SAMPLES, DIM, dtype=F64, generator=generator)
    prototypes = torch.randn(classes, DIM, dtype=F64, generator=generator)
    if labels is None:
        labels = torch.arange(SAMPLES) * CLASSES // SAMPLES
    learned = learned and row.has_temperature and not (use_module and row.temperature == "module")
    options = row.settings(form=form, **settings)
    if row.has_temperature and not learned:
        options["temperature"] = 0.3
    if learned:
        options.update(row.learned_temperature)
    temperature = torch.tensor(0.3, dtype=F64) if learned else None
    return Case(index, features, prototypes, labels, temperature, options, use_module)


def _check(processes: Processes, cases: list[Case], sizes: list[int]) -> None:
    """Compare the outcome of all ranks with that of one process."""
    generator = torch.Generator().manual_seed(1)
    ranks: list[list[tuple[Case, Tensor]]] = [[] for _ in sizes]
    expected = []
    for case in cases:
        none = case.settings.get("reduction") == "none"
        shape = (SAMPLES,) if none else ()
        upstream = torch.rand(shape, dtype=F64, generator=generator)
        expected.append(compute(None, case, upstream))
        weights = upstream.split(sizes) if none else [upstream] * len(sizes)
        for rank, part in enumerate(case.split(sizes)):
            ranks[rank].append((part, weights[rank]))
    results = processes.run(compute_all, [(rank,) for rank in ranks])
    for case, wanted, *parts in zip(cases, expected, *results, strict=True):
        _assert_same(wanted, parts, none=case.settings.get("reduction") == "none")


def _assert_same(wanted: Outcome, parts: list[Outcome], *, none: bool) -> None:
    def close(got: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)

    if none:
        close(torch.cat([part.value for part in parts]), wanted.value)
    else:
        for part in parts:
            close(part.value, wanted.value)
    # Ranks that return the same scalar have world_size times their part of the gradient.
    scale = 1 if none else len(parts)
    close(torch.cat([part.features for part in parts]) / scale, wanted.features)
    for name in ("prototypes", "temperature"):
        gradient = getattr(wanted, name)
        if gradient is not None:
            close(sum(getattr(part, name) for part in parts) / scale, gradient)


@every_loss
@every_size
def test_world_size_does_not_matter(processes: Processes, index: int, world_size: int) -> None:
    sizes, uneven = EVEN[world_size], UNEVEN[world_size]
    weights = torch.linspace(0.5, 2, CLASSES, dtype=F64)
    labels = torch.arange(SAMPLES) % CLASSES
    labels[[1, 6]] = -100
    options: dict[str, Any] = {"labels": labels, "class_weights": weights}
    _check(processes, [_case(index, learned=True)], sizes)
    cases = [
        _case(index, learned=True),
        _case(index, **options, form="chunked"),
        _case(index, **options, reduction="none", learned=True),
        _case(index, **options, reduction="sum", use_module=True),
    ]
    _check(processes, cases, uneven)


@pytest.mark.parametrize(
    "index", [i for i, row in enumerate(TABLE) if row.soft_labels], ids=lambda i: TABLE[i].name
)
@pytest.mark.parametrize("world_size", [2, 4])
def test_soft_labels(processes: Processes, index: int, world_size: int) -> None:
    generator = torch.Generator().manual_seed(2)
    weights = torch.linspace(0.5, 2, CLASSES, dtype=F64)
    labels = torch.arange(SAMPLES) * CLASSES // SAMPLES
    ignored = labels.clone()
    ignored[4] = -100
    mixed = MixedLabels(
        ignored, labels.roll(5), torch.rand(SAMPLES, dtype=F64, generator=generator)
    )
    probabilities = torch.rand(SAMPLES, CLASSES, dtype=F64, generator=generator)
    probabilities = (probabilities / probabilities.sum(1, keepdim=True)).index_fill(
        0, torch.tensor([3]), 0
    )
    cases = [
        _case(index, labels=mixed, class_weights=weights, learned=True),
        _case(index, labels=probabilities, class_weights=weights, reduction="none"),
        _case(index, labels=ignored, label_smoothing=0.2, form="chunked"),
        _case(index, labels=mixed._replace(labels=labels), classes=40, reduction="sum"),
    ]
    _check(processes, cases, UNEVEN[world_size])


@every_loss
def test_edges(processes: Processes, index: int) -> None:
    """More classes than samples, one class only, one sample of each class on each rank, none."""
    apart = torch.arange(SAMPLES) % 3 * 13 + 1
    nobody = torch.full((SAMPLES,), -100)
    only_one = nobody.clone()
    only_one[7] = 2
    cases = [
        _case(index, labels=labels, classes=40, form=form)
        for labels in (apart, torch.full((SAMPLES,), 2), nobody, only_one)
        for form in ("chunked", "eager")
    ]
    _check(processes, cases, UNEVEN[3])
    by_rank = torch.arange(SAMPLES).view(3, 4).remainder(4).reshape(-1)
    _check(processes, [_case(index, labels=by_rank)], EVEN[3])


@every_loss
def test_gradients_equal_finite_differences_over_processes(
    processes: Processes, index: int
) -> None:
    """The value on the first rank, as a sample of the third one moves."""
    case, step = _case(index, labels=torch.arange(SAMPLES) % CLASSES), 1e-5
    direction = torch.zeros(SAMPLES, DIM, dtype=F64)
    direction[7] = torch.linspace(-1, 1, DIM, dtype=F64)
    cases = [
        replace(case, features=case.features + shift * direction) for shift in (0, step, -step)
    ]
    one = torch.ones((), dtype=F64)
    ranks = zip(*(case.split(UNEVEN[3]) for case in cases), strict=True)
    first, _, third = processes.run(
        compute_all, [([(case, one) for case in moved],) for moved in ranks]
    )
    slope = (first[1].value - first[2].value) / (2 * step)
    gradient = (third[0].features * direction[5:]).sum() / 3
    torch.testing.assert_close(gradient, slope, rtol=1e-6, atol=1e-8)


@every_size
def test_features_of_scl_go_around_in_a_ring(processes: Processes, world_size: int) -> None:
    """With ``form="chunked"``: in as many bits as they have, and no rank gathers them."""
    index = [row.name for row in TABLE].index("SCL")
    labels = torch.arange(SAMPLES) % CLASSES
    cases = [
        _case(index, labels=labels, form="chunked", learned=True, reduction=reduction)
        for reduction in ("mean", "none")
    ]
    _check(processes, cases, UNEVEN[world_size])
    narrow = replace(cases[0], features=cases[0].features.bfloat16())
    expected = compute(None, narrow, torch.ones((), dtype=F64))
    parts = narrow.split(UNEVEN[world_size])
    results = processes.run(compute, [(part, torch.ones((), dtype=F64)) for part in parts])
    gradients = torch.cat([result.features for result in results]) / world_size
    torch.testing.assert_close(results[0].value, expected.value, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradients, expected.features, rtol=2e-2, atol=1e-4)
    of_labels, of_mean, of_sizes = 8 * max(UNEVEN[world_size]), 4 * 8, 8
    for total in processes.run(exchanged_bytes, [(part,) for part in parts]):
        assert total <= of_labels + of_mean + of_sizes


@pytest.mark.parametrize("form", ["eager", "chunked"])
@pytest.mark.parametrize("name", ["NTCE", "NONL, negatives=samples", "SCL", "prototype loss"])
def test_gradients_near_collapse_keep_their_digits(
    processes: Processes, name: str, form: str
) -> None:
    """In float32, against float64 on the same inputs."""
    index = [row.name for row in TABLE].index(name)
    generator = torch.Generator().manual_seed(3)
    labels, frame = torch.arange(SAMPLES) % CLASSES, simplex_etf(CLASSES, 32)
    noise = torch.randn(SAMPLES, 32, dtype=F64, generator=generator)
    drift = torch.randn(CLASSES, 32, dtype=F64, generator=generator)
    case = Case(
        index,
        (frame[labels] + 0.001 * noise).float(),
        (frame + 0.001 * drift).float(),
        labels,
        settings={"temperature": 0.1, "form": form},
    )
    wide = replace(case, features=case.features.double(), prototypes=case.prototypes.double())
    expected = compute(None, wide, torch.ones((), dtype=F64))
    parts = processes.run(compute, [(part, torch.ones(())) for part in case.split(EVEN[3])])
    got = torch.cat([part.features for part in parts]).double() / 3
    assert (got - expected.features).norm() <= 0.01 * expected.features.norm()
    if expected.prototypes is not None:
        gradient = sum(part.prototypes.double() for part in parts) / 3
        assert (gradient - expected.prototypes).norm() <= 0.01 * expected.prototypes.norm()


@pytest.mark.parametrize(
    ("name", "vectors", "means"),
    [
        ("NTCE", 8, 1),
        ("NONL, negatives=samples", 3, 1),
        ("NTCE, from logits", 8, 1),
        ("NormFace + NONL", 3, 2),
    ],
)
def test_column_losses_exchange_numbers_per_class_only(
    processes: Processes, name: str, vectors: int, means: int
) -> None:
    """As many bytes as float32 vectors with one number per class, whatever samples and width."""
    index = [row.name for row in TABLE].index(name)
    for samples, dim in ((6, 4), (30, 64)):
        part = Case(
            index,
            torch.randn(samples, dim),
            torch.randn(50, dim),
            torch.randint(50, (samples,)),
        )
        of_mean = 4 * 4  # The sum of values and of weights, and their gradients.
        for total in processes.run(exchanged_bytes, [(part,)] * 2):
            assert total == vectors * 50 * 4 + means * of_mean


def _five_batches(index: int, num_classes: int) -> list[Batch]:
    """Steps with everything that a loss takes: reductions, ignored samples, soft labels."""
    generator = torch.Generator().manual_seed(4)
    labels = torch.arange(SAMPLES) * CLASSES // SAMPLES * (num_classes // CLASSES)
    shuffled = labels[torch.randperm(SAMPLES, generator=generator)]
    ignored = shuffled.clone()
    ignored[[1, 6]] = -100
    weights = torch.rand(SAMPLES, dtype=F64, generator=generator)
    mixed = MixedLabels(ignored, labels, weights) if TABLE[index].soft_labels else ignored
    kinds: list[tuple[Any, str, Tensor | None]] = [
        (labels, "mean", None),
        (ignored, "mean", None),
        (shuffled, "none", weights / SAMPLES),
        (mixed, "mean", None),
        (mixed, "sum", None),
    ]
    return [
        Batch(torch.randn(SAMPLES, IMAGE_DIM, dtype=F64, generator=generator), *kind)
        for kind in kinds
    ]


@every_loss
def test_five_steps_with_ddp(processes: Processes, index: int) -> None:
    """Losses, gradients and weights; on three processes also with more classes than samples."""
    for num_classes, world_sizes in ((CLASSES, (1, 2, 3, 4)), (40, (3,))):
        batches = _five_batches(index, num_classes)
        expected = train_with_ddp(None, index, num_classes, batches)
        for size in world_sizes:
            splits = EVEN[size], UNEVEN[size]
            parts = [batch.split(splits[step % 2]) for step, batch in enumerate(batches, 1)]
            ranks = [list(rank) for rank in zip(*parts, strict=True)]
            results = processes.run(train_with_ddp, [(index, num_classes, rank) for rank in ranks])
            _assert_same_training(expected, results, batches)


def _assert_same_training(expected: Trained, results: list[Trained], batches: list[Batch]) -> None:
    for step, batch in enumerate(batches):
        values = torch.stack([result.losses[step] for result in results])
        if batch.reduction == "none":
            values = values.mean(0, keepdim=True)
        wanted = expected.losses[step].expand_as(values)
        torch.testing.assert_close(values, wanted, rtol=1e-10, atol=1e-12)
    for result in results:
        for part in ("gradients", "weights"):
            torch.testing.assert_close(
                getattr(result, part), getattr(expected, part), rtol=1e-10, atol=1e-10
            )


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["NTCE", "SCL"])
def test_compiles_without_a_break(processes: Processes, name: str) -> None:
    case = _case([row.name for row in TABLE].index(name))
    expected = compute(None, case, torch.ones((), dtype=F64))
    results = processes.run(compiled, [(part,) for part in case.split(EVEN[2])])
    for value, _ in results:
        torch.testing.assert_close(value, expected.value, rtol=1e-10, atol=1e-12)
    gradients = torch.cat([gradient for _, gradient in results]) / 2
    torch.testing.assert_close(gradients, expected.features, rtol=1e-10, atol=1e-12)


def test_modules_without_a_group_say_so_once(processes: Processes) -> None:
    for without, given in processes.run(messages_of_modules, [()] * 2):
        first, second = without
        assert "CrossEntropyLoss has no process group" in first
        assert "DotRegressionLoss has no process group" in second
        assert not given


@pytest.mark.bad_input
@every_loss
def test_a_group_of_other_processes_is_refused(index: int) -> None:
    row, outside = TABLE[index], torch.distributed.GroupMember.NON_GROUP_MEMBER
    message = "group must be None or a process group"
    with pytest.raises(ValueError, match=message):
        row.module(**row.options, group=outside)
    with pytest.raises(ValueError, match=message):
        row.call(torch.eye(4), torch.eye(4), torch.arange(4), **row.options, group=outside)
