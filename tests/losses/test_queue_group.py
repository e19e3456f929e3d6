"""A queue over a process group equals the queue of one process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from protosphere.losses import QueuedFeatures
from protosphere.recipes.loading import load_run
from protosphere.recipes.queues import QueueSettings
from protosphere.runs.checkpoints import load_checkpoint
from support import group_cases
from support.group_cases import exchanged_bytes
from support.group_training import run_digits
from support.losses import TABLE
from support.processes import Processes, gloo_processes
from support.queue_cases import MODULES, Case, compute, refuse, train_steps
from support.short_runs import few_digits

pytestmark = pytest.mark.long

F64 = torch.float64
# Of the samples and of the entries of the queue; some ranks have none.
SAMPLES = {1: [9], 2: [6, 3], 3: [5, 0, 4]}
ENTRIES = {1: [14], 2: [5, 9], 3: [8, 6, 0]}
SETTINGS = {"size": 30, "start_epoch": 0, "max_age": 2}


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with gloo_processes() as running:
        yield running


def _case(name: str, classes: int, *, rescale: bool = False, **settings: Any) -> Case:
    generator = torch.Generator().manual_seed(3)
    features, prototypes, entries = (
        torch.randn(count, 5, dtype=F64, generator=generator) for count in (9, classes, 14)
    )
    labels, of_queue = (torch.randint(4, (count,), generator=generator) for count in (9, 14))
    labels[2] = -100
    kept = torch.rand(14, generator=generator) < 0.8
    queue = QueuedFeatures(entries, of_queue, kept, rescale)
    return name, features, prototypes, labels, queue, settings


def _split(case: Case, world_size: int) -> list[Case]:
    name, features, prototypes, labels, queue, settings = case
    samples, entries = SAMPLES[world_size], ENTRIES[world_size]
    # SCL has the whole queue on every rank.
    queues = [queue] * world_size
    if name != "scl":
        parts = zip(*(tensor.split(entries) for tensor in queue[:3]), strict=True)
        queues = [QueuedFeatures(x, y, kept, queue.rescale) for x, y, kept in parts]
    return [
        (name, x, prototypes, y, part, settings)
        for x, y, part in zip(features.split(samples), labels.split(samples), queues, strict=True)
    ]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_world_size_does_not_matter(processes: Processes, world_size: int) -> None:
    cases = [
        _case(name, classes, temperature=0.3, reduction=reduction, form=form, rescale=rescale)
        for name in MODULES
        for rescale in ((False,) if name == "scl" else (False, True))
        for classes, reduction, form in (
            (4, "mean", "eager"),
            (30, "sum", "chunked"),
            (4, "none", "eager"),
        )
    ]
    ranks = zip(*(_split(case, world_size) for case in cases), strict=True)
    parts = processes.run(compute, [(list(rank),) for rank in ranks])
    for case, expected, *got in zip(cases, compute(None, cases), *parts, strict=True):
        none = case[-1]["reduction"] == "none"
        scale = 1 if none else world_size
        value = torch.cat([rank[0] for rank in got]) if none else got[-1][0]
        features = torch.cat([rank[1] for rank in got]) / scale
        prototypes = torch.stack([rank[2] for rank in got]).sum(0) / scale
        for result, wanted in zip((value, features, prototypes), expected, strict=True):
            torch.testing.assert_close(result, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["NTCE", "NONL, negatives=samples"])
def test_the_queue_of_column_losses_does_not_travel(processes: Processes, name: str) -> None:
    """As many bytes as without a queue."""
    index = [row.name for row in TABLE].index(name)
    _, features, prototypes, labels, queue, _ = _case(name, 4)
    totals = [
        processes.run(
            exchanged_bytes,
            [(group_cases.Case(index, features, prototypes, labels, settings=settings),)] * 2,
        )
        for settings in ({"queue": queue}, {})
    ]
    assert totals[0] == totals[1]


def _assert_close(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    for name, value in wanted.items():
        torch.testing.assert_close(got[name], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", MODULES)
def test_training_does_not_depend_on_the_number_of_processes(
    processes: Processes, name: str
) -> None:
    """Eight steps of ten samples, which three processes divide into 4, 3 and 3."""
    expected, last = train_steps(None, name, SETTINGS)
    without, _ = train_steps(None, name, {**SETTINGS, "start_epoch": 1, "max_age": 1})
    assert not all(torch.equal(value, without[key]) for key, value in expected.items())
    for world_size in (2, 3):
        results = processes.run(train_steps, [(name, SETTINGS)] * world_size)
        for weights, _ in results:
            _assert_close(weights, expected)
        queue, wanted = results[0][1].state["queue"], last.state["queue"]
        assert torch.equal(queue["added_at"], wanted["added_at"])
        assert queue["position"] == wanted["position"]
        assert sorted(queue["labels"].tolist()) == sorted(wanted["labels"].tolist())


@pytest.mark.parametrize("name", ["nonl", "scl"])
@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3), (3, 2)])
def test_a_checkpoint_continues_on_any_number_of_processes(
    processes: Processes, name: str, before: int, after: int
) -> None:
    expected, _ = train_steps(None, name, SETTINGS)
    first = processes.run(train_steps, [(name, SETTINGS, None, 5)] * before)
    checkpoint = first[0][1]
    assert checkpoint.step == 5
    second = processes.run(train_steps, [(name, SETTINGS, checkpoint, None, 2)] * after)
    for weights, _ in second:
        _assert_close(weights, expected)


def test_recipes_have_one_queue_over_processes(processes: Processes, tmp_path: Path) -> None:
    """A run of two processes, whose checkpoint has the whole queue, continues on one."""
    queue = "loss.queue={size: 300, start_epoch: 1}"
    settings = [*few_digits(), queue, "schedule.epochs=2", "evaluation.every=2"]
    processes.run(run_digits, [(str(tmp_path / "run"), settings)] * 2)
    checkpoint = load_checkpoint(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None
    state = checkpoint.state["queue"]
    assert len(state["features"]) == 300
    assert torch.equal(state["added_at"].unique(), torch.arange(10, 16))
    torch.testing.assert_close(state["features"].norm(dim=1), torch.ones(300))
    objective = load_run(tmp_path / "run").objective
    objective.load_queue(state)
    assert torch.equal(objective.loss.queue.labels, state["labels"])


@pytest.mark.bad_input
@pytest.mark.parametrize("is_divided", [True, False])
def test_a_queue_of_broken_steps_is_refused(processes: Processes, is_divided: bool) -> None:
    message = "queue.size must be a multiple of the 20 features of a step with several processes"
    for text in processes.run(refuse, [(QueueSettings(size=30), is_divided)] * 2):
        assert message in text
