"""Which layers get statistics of the averaged network, and that nothing else is changed by it."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from protosphere.classifiers import CosineClassifier
from protosphere.data.loaders import FeatureLoader
from protosphere.training import Objective, Progress, Schedule, TrainConfig, train
from support.training import small_loss

CONFIG = TrainConfig(Schedule(0.5, 2), batch_size=16, ema_decay=0.9)
SAMPLES, DIM, CLASSES = 64, 6, 5


def _loader(shape: tuple[int, ...] = (DIM,)) -> FeatureLoader:
    generator = torch.Generator().manual_seed(0)
    loader = FeatureLoader(torch.zeros(SAMPLES, 1), torch.arange(SAMPLES) % CLASSES)
    loader.features = 3 + 2 * torch.randn(SAMPLES, *shape, generator=generator)
    return loader


class _Unused(nn.Module):
    """A layer with another one that its forward pass does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.BatchNorm1d(DIM), nn.BatchNorm1d(DIM)
        assert self.unused.running_mean is not None
        self.unused.running_mean.fill_(3.0)

    def forward(self, features: Tensor) -> Tensor:
        result: Tensor = self.used(features)
        return result


class _Head(CosineClassifier):
    """A head with a batch norm of its own."""

    def __init__(self) -> None:
        super().__init__(DIM, CLASSES)
        self.norm = nn.BatchNorm1d(DIM)


def _loss(features: Tensor, head: _Head, labels: Tensor) -> Tensor:
    return small_loss(head.norm(features), head, labels)


def _objective(*layers: nn.Module) -> Objective:
    torch.manual_seed(0)
    return Objective(nn.Sequential(nn.Linear(DIM, DIM), *layers), _Head(), _loss)


def _buffers(objective: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in objective.named_buffers()}


def _equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@contextmanager
def _recorded(layer: nn.Module) -> Iterator[list[Tensor]]:
    """What a layer receives while the context is active."""
    inputs: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, values: inputs.append(values[0]))
    yield inputs
    handle.remove()


def _average(objective: Objective, progress: Progress) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The buffers of the averaged network, and what its second layer has received."""
    layer = list(objective.encoder.children())[1]
    with _recorded(layer) as inputs, progress.ema_weights():
        pass
    with progress.ema_weights():
        return _buffers(objective), inputs


@pytest.mark.parametrize(
    "create",
    [
        lambda: nn.BatchNorm1d(DIM),
        lambda: nn.BatchNorm1d(DIM, affine=False),
        lambda: nn.BatchNorm1d(DIM, momentum=None),
        lambda: nn.BatchNorm1d(DIM, momentum=0.01),
    ],
    ids=["default", "without weights", "cumulative", "small momentum"],
)
def test_statistics_are_the_mean_over_batches(create: Callable[[], nn.BatchNorm1d]) -> None:
    objective = _objective(create())
    layer = list(objective.encoder.children())[1]
    assert isinstance(layer, nn.BatchNorm1d)
    momentum = layer.momentum
    for progress in train(objective, _loader(), CONFIG):
        trained = _buffers(objective)
        buffers, inputs = _average(objective, progress)
        assert len(inputs) == 4
        assert not any(batch.requires_grad for batch in inputs)
        for name, expected in (
            ("running_mean", torch.stack([batch.mean(0) for batch in inputs]).mean(0)),
            ("running_var", torch.stack([batch.var(0) for batch in inputs]).mean(0)),
        ):
            torch.testing.assert_close(buffers[f"encoder.1.{name}"], expected)
        assert layer.momentum == momentum
        assert _equal(_buffers(objective), trained)
    assert layer.num_batches_tracked == 8


def test_batch_norms_of_timm_have_their_own_statistics() -> None:
    timm_layers = pytest.importorskip("timm.layers")
    torch.manual_seed(0)
    layer = timm_layers.BatchNormAct2d(4)
    encoder = nn.Sequential(nn.Conv2d(1, 4, 3), layer, nn.Flatten(), nn.Linear(36, DIM))
    objective = Objective(encoder, _Head(), _loss)
    *_, progress = train(objective, _loader((1, 5, 5)), CONFIG)
    with _recorded(layer) as inputs, progress.ema_weights():
        mean, variance = layer.running_mean.clone(), layer.running_var.clone()
    values = [batch.transpose(0, 1).flatten(1) for batch in inputs]
    torch.testing.assert_close(mean, torch.stack([v.mean(1) for v in values]).mean(0))
    torch.testing.assert_close(variance, torch.stack([v.var(1) for v in values]).mean(0))


def test_other_layers_keep_the_average_of_their_statistics() -> None:
    """Of the head, of another kind of norm, and those that the encoder does not use."""
    objective = _objective(
        _Unused(),
        nn.Unflatten(1, (2, 3)),
        nn.InstanceNorm1d(2, track_running_stats=True),
        nn.Flatten(),
        nn.BatchNorm1d(DIM, track_running_stats=False),
    )
    names = [
        f"{layer}.running_{kind}"
        for layer in ("encoder.1.unused", "encoder.3", "head.norm")
        for kind in ("mean", "var")
    ]
    expected = _buffers(objective)
    for progress in train(objective, _loader(), dataclasses.replace(CONFIG, report_every=1)):
        steps_before = progress.step - 1
        decay = min(0.9, (1 + steps_before) / (10 + steps_before))
        trained = _buffers(objective)
        with progress.ema_weights():
            buffers = _buffers(objective)
        for name in names:
            expected[name] += (1 - decay) * (trained[name] - expected[name])
            torch.testing.assert_close(buffers[name], expected[name], msg=name)
        assert _equal(_buffers(objective), trained)
    assert not torch.equal(trained["head.norm.running_mean"], torch.zeros(DIM))
    assert not torch.equal(trained["encoder.3.running_mean"], torch.zeros(2))
    assert torch.equal(trained["encoder.1.unused.running_mean"], torch.full((DIM,), 3.0))


def test_statistics_of_parts_that_are_not_averaged_stay() -> None:
    """Its parameters are not trained, but it is in training mode and updates its statistics."""
    frozen = nn.BatchNorm1d(DIM).requires_grad_(False)
    objective = _objective(frozen, nn.BatchNorm1d(DIM))
    for progress in train(objective, _loader(), CONFIG):
        trained = _buffers(objective)
        assert "encoder.1.running_mean" not in progress.checkpoint()[1]["ema"]
        with progress.ema_weights():
            own = _buffers(objective)
        assert torch.equal(own["encoder.1.running_mean"], trained["encoder.1.running_mean"])
        assert not torch.equal(own["encoder.2.running_mean"], trained["encoder.2.running_mean"])
        assert _equal(_buffers(objective), trained)


def test_statistics_are_computed_in_training_mode_and_modes_are_restored() -> None:
    """Evaluation mode may be set first; a part that is in it by itself keeps its statistics."""
    results = []
    for evaluates_first in (False, True):
        objective = _objective(nn.BatchNorm1d(DIM), nn.Dropout(0.5), nn.BatchNorm1d(DIM))
        for progress in train(objective, _loader(), CONFIG):
            objective.train(not evaluates_first)
            modes = [part.training for part in objective.modules()]
            with progress.ema_weights():
                results.append(_buffers(objective))
            assert [part.training for part in objective.modules()] == modes
            objective.train()
    assert _equal(results[0], results[2])
    assert _equal(results[1], results[3])


def test_a_part_in_evaluation_mode_keeps_its_statistics() -> None:
    objective = _objective(nn.BatchNorm1d(DIM), nn.BatchNorm1d(DIM))
    linear, part, _ = objective.encoder.children()
    averages = []
    for progress in train(objective, _loader(), CONFIG):
        part.eval()
        trained = _buffers(objective)
        with progress.ema_weights(), torch.no_grad():
            averages.append(_buffers(objective))
            inputs = part(linear(_loader().features))
        torch.testing.assert_close(averages[-1]["encoder.2.running_mean"], inputs.mean(0))
        assert _equal(_buffers(objective), trained)
        assert not part.training
    # In the second epoch it was not trained, and its average approaches the last statistics.
    name = "encoder.1.running_mean"
    decays = [(1 + step) / (10 + step) for step in range(4, 8)]
    expected = averages[0][name] - trained[name]
    for decay in decays:
        expected *= decay
    torch.testing.assert_close(averages[1][name] - trained[name], expected)


class _Drawing(nn.Module):
    """Draws a random number in each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[float] = []

    def forward(self, features: Tensor) -> Tensor:
        self.draws.append(float(torch.rand(())))
        return features


def test_random_numbers_are_those_of_a_batch_and_the_same_in_each_report() -> None:
    drawing = _Drawing()
    objective, draws = _objective(drawing, nn.BatchNorm1d(DIM)), []
    for progress in train(objective, _loader(), CONFIG):
        trained = set(drawing.draws)
        drawing.draws = []
        with progress.ema_weights():
            draws.append(drawing.draws)
        drawing.draws = []
        assert trained.isdisjoint(draws[-1])
    assert len(set(draws[0])) == 4
    assert draws[0] == draws[1]


def test_a_failure_leaves_everything_as_it_was_and_is_made_up_for() -> None:
    results = []
    for fails in (False, True):
        objective, loader = _objective(nn.BatchNorm1d(DIM, momentum=0.3)), _loader()
        for progress in train(objective, loader, CONFIG):
            trained = _buffers(objective)
            if fails:
                layer = list(objective.encoder.children())[1]
                handle = layer.register_forward_hook(_fail_at(3))
                with pytest.raises(OSError, match="unreadable"):
                    progress.checkpoint()
                handle.remove()
                assert _equal(_buffers(objective), trained)
                assert layer.momentum == 0.3
            with progress.ema_weights():
                results.append(_buffers(objective))
    assert _equal(results[0], results[2])
    assert _equal(results[1], results[3])


def _fail_at(number: int) -> Callable[..., None]:
    calls: list[int] = []

    def fail(*_: object) -> None:
        calls.append(1)
        if len(calls) == number:
            raise OSError("unreadable image")

    return fail


@pytest.mark.parametrize("is_fitted", [False, True])
@pytest.mark.parametrize(("stop_at", "expected"), [(3, 1), (4, 3), (8, 3)])
def test_an_interrupted_run_uses_fewer_images(
    monkeypatch: pytest.MonkeyPatch, stop_at: int, expected: int, is_fitted: bool
) -> None:
    """Not at the end of an epoch, which may be that of the run."""
    monkeypatch.setattr("protosphere.training.averaged_weights._NUM_IMAGES", 48)
    monkeypatch.setattr("protosphere.training.averaged_weights._NUM_IMAGES_IF_INTERRUPTED", 10)
    objective = _objective(nn.BatchNorm1d(DIM))
    answers = [False] * (stop_at - 1) + [True]
    *_, progress = train(objective, _loader(), CONFIG, should_stop=lambda: answers.pop(0))
    with _recorded(objective.encoder) as inputs:
        if is_fitted:
            with progress.ema_weights():
                pass
        progress.checkpoint()
    assert len(inputs) == expected
