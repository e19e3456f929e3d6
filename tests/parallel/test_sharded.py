"""Losses and heads with prototypes sharded over processes equal those of one process."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier, ShardedCosineClassifier
from protosphere.geometry import simplex_etf
from protosphere.losses import NONLLoss
from protosphere.losses.sharded import sharded_ntce_loss
from protosphere.parallel import Shards
from protosphere.recipes.catalog import get_recipe
from protosphere.recipes.loading import load_run
from protosphere.recipes.schema import RecipeError, apply_overrides
from protosphere.runs import RunFolder
from protosphere.training import SGD, Objective, TimmOptimizer
from protosphere.training.sharded_state import find_sharded_parameters
from support.processes import Processes, gloo_processes
from support.sharded_cases import (
    Case,
    compute,
    compute_all,
    frozen_features,
    largest_tensor,
    use_head,
)
from support.sharded_training import DIM as DIM_OF_TRAINING
from support.sharded_training import (
    Training,
    create_objective,
    overflow,
    run_digits,
    train_five_steps,
)

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


@pytest.mark.parametrize("world_size", [2, 4])
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


@pytest.mark.parametrize("loss", ["normface", "ntce", "nonl"])
def test_no_rank_holds_all_prototypes_or_logits(processes: Processes, loss: str) -> None:
    num_classes = 400
    case, logits = _case(loss, num_classes), SAMPLES * num_classes // 4
    assert logits < num_classes * DIM <= largest_tensor(None, case)
    for numel in processes.run(largest_tensor, [(part,) for part in case.split(SIZES[4])]):
        assert numel <= logits


@pytest.mark.parametrize("loss", ["normface", "ntce", "nonl"])
def test_gradients_near_collapse_keep_their_digits(processes: Processes, loss: str) -> None:
    """In float32, against float64 on the same inputs; features may come in half precision."""
    num_classes, dim = 4, 32
    frame, labels = simplex_etf(num_classes, dim), torch.arange(SAMPLES) % num_classes
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(SAMPLES, dim, dtype=F64, generator=generator)
    drift = torch.randn(num_classes, dim, dtype=F64, generator=generator)
    features, prototypes = frame[labels] + 0.001 * noise, (frame + 0.001 * drift).float()
    one = torch.ones((), dtype=F64)
    for dtype, bound in ((torch.float32, 0.01), (torch.bfloat16, 0.02)):
        case = Case(loss, features.to(dtype), prototypes, labels, one)
        wide = replace(case, features=case.features.double(), prototypes=prototypes.double())
        expected = compute(None, wide)
        narrow = replace(case, upstream=one.float())
        parts = processes.run(compute, [(part,) for part in narrow.split(SIZES[3])])
        got = torch.cat([part.features for part in parts]).double() / len(parts)
        assert (got - expected.features).norm() <= bound * expected.features.norm()
        gradient = torch.cat([part.prototypes for part in parts]).double()
        assert (gradient - expected.prototypes).norm() <= bound * expected.prototypes.norm()


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


def _assert_same_training(got: Training, expected: Training) -> None:
    assert got.losses == pytest.approx(expected.losses[-len(got.losses) :], rel=1e-6)
    for name, value in expected.checkpoint.weights.items():
        _assert_nearly(got.checkpoint.weights[name], value)
    for name, value in expected.checkpoint.state["ema"].items():
        _assert_nearly(got.checkpoint.state["ema"][name], value)
    states = got.checkpoint.state["optimizer"]
    for index, entries in expected.checkpoint.state["optimizer"].items():
        for name, value in entries.items():
            _assert_nearly(states[index][name], value)


def _assert_nearly(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("loss", ["normface", "ntce", "nonl"])
@pytest.mark.parametrize(
    ("num_classes", "settings"),
    [(3, {}), (7, {"micro_batch_size": 4}), (41, {"optimizer": "adamw"})],
    ids=["fewer classes than processes", "micro-batches", "adamw"],
)
def test_weights_after_five_steps_are_those_of_one_process(
    processes: Processes, loss: str, num_classes: int, settings: dict[str, Any]
) -> None:
    expected = train_five_steps(None, loss, num_classes, settings, sharded=False)
    for size in (1, 2, 3, 4):
        results = processes.run(train_five_steps, [(loss, num_classes, settings)] * size)
        _assert_same_training(results[0], expected)
        sizes = [len(part) for part in torch.arange(num_classes).tensor_split(size)]
        assert [result.num_prototypes for result in results] == sizes
        if num_classes == 41 and size > 1:
            assert all(result.largest < num_classes * DIM_OF_TRAINING for result in results)
            assert "head.prototypes" not in results[1].checkpoint.weights


def test_the_mean_of_two_losses_trains_as_on_one_process(processes: Processes) -> None:
    """Cases of its parts are above: fewer of them are enough here."""
    loss, settings = "normface-nonl", {"micro_batch_size": 4}
    expected = train_five_steps(None, loss, 7, settings, sharded=False)
    results = processes.run(train_five_steps, [(loss, 7, settings)] * 3)
    _assert_same_training(results[0], expected)


def test_clipping_counts_every_shard_once(processes: Processes) -> None:
    """A bound between the norm of the whole gradient and that of any shard clips the same."""
    settings = {"grad_clip": 0.05}
    expected = train_five_steps(None, "ntce", 7, settings, sharded=False)
    unclipped = train_five_steps(None, "ntce", 7, {"grad_clip": None}, sharded=False)
    name = "head.prototypes"
    assert not torch.equal(expected.checkpoint.weights[name], unclipped.checkpoint.weights[name])
    (first, *_) = processes.run(train_five_steps, [("ntce", 7, settings)] * 4)
    _assert_same_training(first, expected)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_checkpoint_of_four_processes_continues_on_any_number(
    processes: Processes, optimizer: str
) -> None:
    settings = {"optimizer": optimizer}
    expected = train_five_steps(None, "nonl", 7, settings, sharded=False)
    stopped = processes.run(train_five_steps, [("nonl", 7, settings | {"epochs": 2})] * 4)
    resume = stopped[0].checkpoint
    assert resume.step == 2
    for size in (1, 2, 3):
        results = processes.run(train_five_steps, [("nonl", 7, settings, resume)] * size)
        assert len(results[0].losses) == 3
        _assert_same_training(results[0], expected)
    # A head that is not sharded continues it too, and the other way around.
    alone = train_five_steps(None, "nonl", 7, settings, resume, sharded=False)
    _assert_same_training(alone, expected)
    saved = train_five_steps(None, "nonl", 7, settings | {"epochs": 2}, sharded=False).checkpoint
    results = processes.run(train_five_steps, [("nonl", 7, settings, saved)] * 4)
    _assert_same_training(results[0], expected)


def test_an_overflow_on_one_process_is_one_on_all(processes: Processes) -> None:
    initial = create_objective(None, "ntce", 3, sharded=False).float().state_dict()
    for rank, (weights, scale) in enumerate(
        processes.run(overflow, [(rank == 1,) for rank in range(4)])
    ):
        assert scale == 2.0**15
        own = Shards((1, 1, 1, 0), rank).own
        for name, value in initial.items():
            assert torch.equal(weights[name], value[own] if name == "head.prototypes" else value)
    for weights, scale in processes.run(overflow, [(False,)] * 2):
        assert scale == 2.0**16
        assert not torch.equal(weights["encoder.0.weight"], initial["encoder.0.weight"])


def test_a_recipe_trains_evaluates_and_resumes(processes: Processes, tmp_path: Path) -> None:
    """Three steps on three processes and one on two; either the first or the last are sharded."""
    settings = ["schedule.epochs=2", "training.batch_size=700", "training.ema_decay=0.9"]
    settings += ["training.precision=fp32", "evaluation.metrics=cheap"]
    folders = tmp_path / "sharded", tmp_path / "plain"
    for folder, sharded in zip(folders, (True, False), strict=True):
        first, later = ([*settings, f"loss.shard_prototypes={x}"] for x in (sharded, not sharded))
        counts = processes.run(run_digits, [(str(folder), first, 3)] * 3)
        assert counts == ([4, 3, 3] if sharded else [10] * 3)
        counts = processes.run(run_digits, [(str(folder), later)] * 2)
        assert counts == ([10, 10] if sharded else [5, 5])
    got, expected = (load_run(folder) for folder in folders)
    assert got.objective.head.prototypes.shape == expected.objective.head.prototypes.shape
    weights = got.objective.state_dict()
    for name, value in expected.objective.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-3, atol=1e-5)
    records = [RunFolder(folder).records()[-1] for folder in folders]
    assert records[0]["kind"] == "evaluation"
    assert records[0]["accuracy"] == pytest.approx(records[1]["accuracy"], abs=0.01)
    assert records[0]["loss"] == pytest.approx(records[1]["loss"], rel=1e-3)
    # Other training starts from its head, the moving average of which is what it is evaluated by.
    still = ["optimizer.lr=1e-12", "loss.shard_prototypes=true", "optimizer.weight_decay=0"]
    new = (str(tmp_path / "new"), settings + still, 1, str(folders[0]))
    assert processes.run(run_digits, [new] * 4) == [3, 3, 2, 2]
    note = RunFolder(tmp_path / "new").read_json("init.json")
    assert note["parts"] == ["backbone", "head"]
    prototypes = load_run(tmp_path / "new").objective.head.prototypes
    torch.testing.assert_close(prototypes, got.objective.head.prototypes)


@pytest.mark.bad_input
def test_other_optimizers_and_groups_are_refused() -> None:
    head = ShardedCosineClassifier(DIM, 7)
    head.shards = Shards((4, 3))
    objective = Objective(nn.Identity(), head, NONLLoss())
    with pytest.raises(ValueError, match=r"must be sgd or adamw with .* sharded .*, got lamb"):
        find_sharded_parameters(objective, TimmOptimizer("lamb"), None)
    with pytest.raises(ValueError, match="a sharded head must have the process group of the run"):
        find_sharded_parameters(objective, SGD(), object())  # type: ignore[arg-type]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loss.label_smoothing=0.1"], "shard_prototypes must be false with label_smoothing"),
        (["loss.queue.size=64"], "shard_prototypes must be false with queue"),
        (["optimizer.name=lamb"], "optimizer.name must be sgd or adamw with loss.shard_prototypes"),
        (
            ["augmentation.mixing.name=mixup"],
            "augmentation.mixing must be null with loss.shard_prototypes",
        ),
        (["loss.name=ce"], "loss.shard_prototypes"),
    ],
)
def test_recipes_that_are_refused(overrides: list[str], message: str) -> None:
    recipe = apply_overrides(get_recipe("digits-nonl"), [])
    with pytest.raises(RecipeError, match=message):
        apply_overrides(recipe, ["loss.shard_prototypes=true", *overrides])
