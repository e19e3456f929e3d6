"""A loss over a process group equals the loss of the concatenated batch, with its gradients."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from protosphere.losses import MixedLabels
from support.group_cases import Case, Outcome, compute, compute_all
from support.losses import TABLE
from support.processes import Processes, gloo_processes

pytestmark = pytest.mark.long

F64 = torch.float64
SAMPLES, CLASSES, DIM = 12, 4, 5
EVEN = {1: [12], 2: [6, 6], 3: [4, 4, 4], 4: [3, 3, 3, 3]}
# Some ranks have no sample, and with sorted labels no rank has all classes.
UNEVEN = {1: [12], 2: [9, 3], 3: [5, 0, 7], 4: [6, 1, 0, 5]}

every_loss = pytest.mark.parametrize("index", range(len(TABLE)), ids=[row.name for row in TABLE])
world_sizes = pytest.mark.parametrize("world_size", [1, 2, 3, 4])


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
@world_sizes
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
