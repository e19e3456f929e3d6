"""Training with a queue: steps, micro-batches, resuming, recipes, averages and compiled code."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier
from protosphere.data.loaders import FeatureLoader
from protosphere.losses import FeatureQueue, NONLLoss, NTCELoss, QueuedFeatures, SCLLoss, nonl_loss
from protosphere.recipes import build, catalog
from protosphere.recipes.loading import load_run
from protosphere.recipes.runner import run_recipe
from protosphere.recipes.schema import Recipe, RecipeError, apply_overrides
from protosphere.runs import RunFolder
from protosphere.runs.checkpoints import load_checkpoint, save_checkpoint
from protosphere.training import SGD, Objective, Schedule, TrainConfig, TrainingError, train

F64 = torch.float64
CLASSES, DIM, WIDTH, SAMPLES = 3, 4, 6, 40
CONFIG = TrainConfig(
    Schedule(0.1, 3, "constant"), batch_size=10, optimizer=SGD(momentum=0.5, weight_decay=0.0)
)


def _loader() -> FeatureLoader:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, WIDTH, dtype=F64, generator=generator)
    return FeatureLoader(inputs, torch.randint(CLASSES, (SAMPLES,), generator=generator))


def _objective(**options: Any) -> Objective:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(WIDTH, DIM), nn.Tanh())
    loss = NONLLoss(queue=FeatureQueue(25, DIM, **options))
    return Objective(encoder, CosineClassifier(DIM, CLASSES, temperature=0.2), loss).double()


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict([*module.named_parameters(), *module.named_buffers()])


def test_steps_are_those_of_a_plain_loop() -> None:
    """Twelve steps with a queue of two and a half batches, used from the third step on."""
    objective, plain = _objective(start=2), _objective(start=2)
    reports = list(train(objective, _loader(), dataclasses.replace(CONFIG, report_every=1)))
    optimizer = torch.optim.SGD(
        [*plain.encoder.parameters(), *plain.head.parameters()], lr=0.1, momentum=0.5
    )
    past: list[tuple[Tensor, Tensor]] = []
    loader, losses = _loader(), []
    for epoch in range(3):
        for step, (index,) in enumerate(loader.batches(10, seed=42, epoch=epoch), 4 * epoch):
            features, labels = plain.encoder(loader.features[index]), loader.labels[index]
            queue = None
            if step >= 2:
                keys, of_keys = (torch.cat(parts)[-25:] for parts in zip(*past, strict=True))
                queue = QueuedFeatures(keys, of_keys, torch.ones(len(keys), dtype=torch.bool))
            loss = nonl_loss(features, plain.head.prototypes, labels, temperature=0.2, queue=queue)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            past.append((features.detach(), labels))
            losses.append(float(loss.detach()))
    epochs = [sum(losses[4 * e : 4 * e + 4]) / 4 for e in range(3)]
    assert [r.loss for r in reports if r.at_epoch_end] == pytest.approx(epochs, rel=1e-6)
    for got, want in zip(objective.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_micro_batches_read_and_write_the_queue_once_per_step() -> None:
    whole, pieces = _objective(max_age=2), _objective(max_age=2)
    list(train(whole, _loader(), CONFIG))
    list(train(pieces, _loader(), dataclasses.replace(CONFIG, micro_batch_size=4)))
    assert pieces.loss.queue.step == 12
    for got, want in zip(pieces.state_dict().values(), whole.state_dict().values(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_resumed_run_continues_with_its_queue(tmp_path: Path, persistent: bool) -> None:
    """Twelve steps, and six and then six, bit for bit; the average leaves the queue alone."""
    config = dataclasses.replace(CONFIG, report_every=3, ema_decay=0.9)
    whole, first, second = (_objective(persistent=persistent, max_age=2) for _ in range(3))
    list(train(whole, _loader(), config))
    for progress in train(first, _loader(), config):
        if progress.step == 6:
            weights, state = progress.checkpoint()
            save_checkpoint(tmp_path, 6, weights, state)
            break
    assert any(name.startswith("loss.") for name in weights) == persistent
    assert not any(name.startswith("loss.") for name in state["ema"])
    list(train(second, _loader(), config, resume=load_checkpoint(tmp_path)))
    assert _tensors(second).keys() == _tensors(whole).keys()
    for name, value in _tensors(whole).items():
        assert torch.equal(_tensors(second)[name], value), name


@pytest.mark.bad_input
def test_a_checkpoint_of_another_queue_is_refused(tmp_path: Path) -> None:
    for progress in train(_objective(persistent=False), _loader(), CONFIG):
        save_checkpoint(tmp_path, progress.step, *progress.checkpoint())
        break
    other, without = _objective(persistent=False), _objective(persistent=False)
    other.loss.queue = FeatureQueue(20, DIM, persistent=False).double()
    without.loss.queue = None
    for objective in (other, without):
        with pytest.raises(TrainingError, match="does not fit this model"):
            list(train(objective, _loader(), CONFIG, resume=load_checkpoint(tmp_path)))


QUEUE = "loss.queue={size: 50, start_epoch: 1, max_age: 3}"


def _recipe(*overrides: str, name: str = "digits-nonl") -> Recipe:
    data = "data={source: synthetic, num_classes: 4, num_samples: 60, image_size: 8}"
    settings = [data, "schedule.epochs=3", "checkpoint.every=1", "evaluation.every=1"]
    return apply_overrides(
        catalog.get_recipe(name), [*settings, "training.batch_size=20", *overrides]
    )


def _run(recipe: Recipe, folder: Path, **options: Any) -> Path:
    for _ in run_recipe(recipe, RunFolder(folder), build.load_dataset(recipe), **options):
        pass
    return folder


@pytest.mark.parametrize("name", ["digits-ntce", "digits-nonl", "digits-scl"])
def test_recipes_train_with_a_queue(name: str, tmp_path: Path) -> None:
    """A run that is stopped and resumed ends as one that is not; its weights load anywhere."""
    recipe = _recipe(QUEUE, "training.ema_decay=0.9", name=name)
    whole = _run(recipe, tmp_path / "whole")
    steps = iter(range(100))
    _run(recipe, tmp_path / "parts", should_stop=lambda: next(steps) == 3)
    _run(recipe, tmp_path / "parts", start="resume")
    one, other = (
        load_checkpoint(RunFolder(tmp_path / part).checkpoints) for part in ("whole", "parts")
    )
    assert one is not None
    assert other is not None
    assert one.step == other.step
    assert not any("queue" in key for key in one.weights)
    for key, value in [*one.weights.items(), *one.state["queue"].items()]:
        assert torch.equal({**other.weights, **other.state["queue"]}[key], value), key
    views = recipe.augmentation.num_views
    steps_per_epoch = build.load_dataset(recipe).train.labels.numel() // 20
    queue = one.state["queue"]
    assert queue["step"] == 3 * steps_per_epoch
    assert queue["added_at"].max() == 3 * steps_per_epoch - 1
    assert (queue["added_at"] == queue["added_at"].max()).sum() == min(50, 20 * views)
    assert load_run(whole).step == one.step
    _run(
        _recipe(QUEUE, "loss.queue.start_epoch=0", "schedule.epochs=1", name=name),
        tmp_path / "new",
        init_from=whole,
    )


def test_before_its_first_epoch_a_queue_changes_nothing(tmp_path: Path) -> None:
    """After three steps, the first epoch, and after nine."""
    late = _run(
        _recipe("loss.queue={size: 50, start_epoch: 1}", "checkpoint.keep=9"), tmp_path / "1"
    )
    without = _run(_recipe("checkpoint.keep=9"), tmp_path / "2")
    for step in (3, 9):
        one, other = (
            load_checkpoint(RunFolder(run).checkpoints, step=step) for run in (late, without)
        )
        assert one is not None
        assert other is not None
        same = [torch.equal(one.weights[name], value) for name, value in other.weights.items()]
        assert all(same) == (step == 3)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loss.queue={size: 0}"], "loss.queue.size must be at least 1, got 0"),
        (["loss.queue={start_epoch: 3}"], "start_epoch must be less than schedule.epochs"),
        (["loss.queue={}", "loss.label_smoothing=0.1"], "must be null with label_smoothing"),
        (["loss.queue={}", "loss.negatives=prototypes"], "must be null with negatives prototypes"),
        (
            ["loss.queue={}", "augmentation.mixing={name: mixup}"],
            "augmentation.mixing must be null with loss.queue",
        ),
        (
            ["loss={name: proto, queue: {size: 5}}"],
            "loss.queue does not apply to loss proto; it applies to ntce, nonl, normface-nonl, scl",
        ),
    ],
)
def test_keys_that_do_not_fit_get_a_sentence(overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        _recipe(*overrides)


def _train_modules(module: nn.Module, call: Any, steps: int = 5) -> list[Tensor]:
    """Values and gradients of some steps, and what the queue holds then."""
    generator = torch.Generator().manual_seed(1)
    results = []
    for _ in range(steps):
        features = torch.randn(12, DIM, generator=generator).requires_grad_()
        prototypes = torch.randn(CLASSES, DIM, generator=generator).requires_grad_()
        labels = torch.randint(CLASSES, (12,), generator=generator)
        labels[2] = -100
        value = call(features, prototypes, labels)
        gradients = torch.autograd.grad(value, (features, prototypes), materialize_grads=True)
        results += [value.detach(), *gradients]
    return [*results, *module.queue.buffers()]


@pytest.mark.compiled
@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "form"), [(NTCELoss, "eager"), (NONLLoss, "chunked"), (SCLLoss, "eager")]
)
def test_compiled_steps_are_the_eager_ones(kind: Any, form: str) -> None:
    """Gradients too, which are computed when the queue has been overwritten.

    The backend computes some of the forward pass again in the backward pass, as the default one.
    """
    torch.compiler.reset()
    results = []
    for compiled in (False, True):
        module = kind(form=form, queue=FeatureQueue(30, DIM, max_age=2, start=1))

        def call(x: Tensor, w: Tensor, y: Tensor, module: nn.Module = module) -> Tensor:
            if isinstance(module, SCLLoss):
                return module(x, y)
            return module(x, SimpleNamespace(prototypes=w, temperature=0.2), y)

        function = (
            torch.compile(call, fullgraph=True, backend="aot_eager_decomp_partition")
            if compiled
            else call
        )
        results.append(_train_modules(module, function))
    for plain, got in zip(*results, strict=True):
        torch.testing.assert_close(got, plain, rtol=1e-5, atol=1e-6)
