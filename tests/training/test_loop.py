"""The training loop: it learns, repeats itself, resumes bit for bit and stops at a bad loss."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from protosphere.data.augmentation import Augmentation, AugmentationPolicy, PaddedCrop
from protosphere.data.datasets import ImageSet, load_digits
from protosphere.data.loaders import MemoryLoader, epoch_order
from protosphere.runs.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from protosphere.training import (
    AdamW,
    Objective,
    Progress,
    Schedule,
    TrainConfig,
    TrainingError,
    train,
)
from protosphere.training.step import EagerStep
from support.training import (
    RANDOM_POLICY,
    RecordingLoader,
    linear_objective,
    memory_loader,
    small_loss,
    small_objective,
    small_split,
)

CONFIG = TrainConfig(Schedule(0.1, 3), batch_size=16, report_every=2)


@pytest.fixture
def loader() -> MemoryLoader:
    """Seventy images with random augmentation: four steps of 16 samples in an epoch."""
    return memory_loader(small_split())


def _run(
    objective: Objective, loader: MemoryLoader, config: TrainConfig = CONFIG, **options: Any
) -> list[Progress]:
    return list(train(objective, loader, config, **options))


def test_it_learns_digits() -> None:
    digits = load_digits()
    assert isinstance(digits.train, ImageSet)
    assert isinstance(digits.test, ImageSet)
    policy = AugmentationPolicy(8, PaddedCrop(padding=1), hflip=0.0)
    mean, std = digits.train.channel_statistics()
    augmentation = Augmentation(policy, mean, std)
    objective = small_objective(channels=1, num_classes=10)
    list(
        train(
            objective, MemoryLoader(digits.train, augmentation), TrainConfig(Schedule(0.1, 6), 64)
        )
    )
    objective.eval()
    correct = []
    with torch.no_grad():
        for images, labels in MemoryLoader(digits.test, augmentation).evaluation_batches(512):
            correct.append(objective.logits(images).argmax(1) == labels)
    assert torch.cat(correct).double().mean() > 0.95


def test_reports_describe_the_progress(loader: MemoryLoader) -> None:
    reports = _run(small_objective(), loader)
    assert [progress.step for progress in reports] == [2, 4, 6, 8, 10, 12]
    assert [progress.epoch for progress in reports] == [0.5, 1, 1.5, 2, 2.5, 3]
    assert [progress.at_epoch_end for progress in reports] == [False, True] * 3
    assert [progress.lr for progress in reports] == [
        CONFIG.schedule.at_epoch(epoch) for epoch in (0, 0, 1, 1, 2, 2)
    ]
    assert all(progress.images_per_second > 0 for progress in reports)
    without = dataclasses.replace(CONFIG, report_every=None)
    assert [progress.step for progress in _run(small_objective(), loader, without)] == [4, 8, 12]


def test_the_loss_is_the_mean_of_the_epoch_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def numbered(self: EagerStep, batch: Any, *, step: int, lr: float) -> torch.Tensor:
        return torch.tensor(float(step))

    monkeypatch.setattr(EagerStep, "__call__", numbered)
    objective = linear_objective(torch.ones(2, 2))
    config = TrainConfig(Schedule(0.1, 2), 16, report_every=1)
    losses = [progress.loss for progress in train(objective, RecordingLoader(64), config)]
    assert losses == [0, 0.5, 1, 1.5, 4, 4.5, 5, 5.5]


def test_the_throughput_of_an_epoch_is_that_of_all_its_steps(
    loader: MemoryLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes 1 s, the first of each epoch 7, 14 and 21 s, and the caller 100 s a report."""
    now = [0.0]

    def timed(self: EagerStep, batch: Any, *, step: int, lr: float) -> torch.Tensor:
        now[0] += 7 * (step // 4 + 1) if step % 4 == 0 else 1
        return torch.ones(())

    monkeypatch.setattr(EagerStep, "__call__", timed)
    monkeypatch.setattr("protosphere.training.loop.time.perf_counter", lambda: now[0])
    speeds = []
    for progress in train(small_objective(), loader, CONFIG):
        speeds.append(progress.images_per_second)
        now[0] += 100
    assert speeds == pytest.approx(
        [speed for first in (7, 14, 21) for speed in (2 * 16 / (first + 1), 4 * 16 / (first + 3))]
    )


def test_each_epoch_has_its_own_order_of_the_samples() -> None:
    recorder = RecordingLoader(num_samples=64)
    config = TrainConfig(Schedule(0.1, 3), batch_size=16, seed=7)
    list(train(linear_objective(torch.ones(2, 2)), recorder, config))
    assert [epoch for epoch, _ in recorder.epochs] == [0, 1, 2]
    orders = [indices for _, indices in recorder.epochs]
    assert all(sorted(order) == list(range(64)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert orders == [epoch_order(64, seed=7, epoch=epoch).tolist() for epoch in range(3)]


def test_a_resumed_epoch_continues_in_its_own_order(tmp_path: Path) -> None:
    config = TrainConfig(Schedule(0.1, 3), batch_size=16, report_every=1)
    whole, resumed = RecordingLoader(num_samples=64), RecordingLoader(num_samples=64)
    for progress in train(linear_objective(torch.ones(2, 2)), whole, config):
        if progress.step == 6:
            save_checkpoint(tmp_path, progress.step, *progress.checkpoint())
    objective = linear_objective(torch.ones(2, 2))
    list(train(objective, resumed, config, resume=load_checkpoint(tmp_path)))
    orders = dict(whole.epochs)
    assert resumed.epochs == [(1, orders[1][32:]), (2, orders[2])]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"optimizer": AdamW()},
        {"grad_clip": 0.1, "ema_decay": 0.9},
        {"precision": "bf16", "micro_batch_size": 8},
    ],
    ids=str,
)
@pytest.mark.parametrize("last_step", [3, 4, 6])
def test_a_resumed_run_is_the_uninterrupted_one(
    loader: MemoryLoader, change: dict[str, Any], last_step: int, tmp_path: Path
) -> None:
    """Bit for bit, through a checkpoint on disk, inside an epoch and at its end."""
    config = dataclasses.replace(CONFIG, **change)
    whole = small_objective()
    reports = _run(whole, loader, config)
    answers = [False] * (last_step - 1) + [True]
    losses = []
    for progress in train(small_objective(), loader, config, should_stop=lambda: answers.pop(0)):
        assert progress.stopping == (progress.step == last_step)
        if progress.step % 2 == 0:
            losses.append(progress.loss)
        if progress.stopping:
            save_checkpoint(tmp_path, progress.step, *progress.checkpoint())
    assert not answers
    resumed = small_objective(seed=1)
    continued = _run(resumed, loader, config, resume=load_checkpoint(tmp_path))
    losses += [progress.loss for progress in continued]
    assert losses == [progress.loss for progress in reports]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    expected, state = reports[-1].checkpoint()[1], continued[-1].checkpoint()[1]
    assert expected.keys() == state.keys()
    for name, value in expected.get("ema", {}).items():
        assert torch.equal(value, state["ema"][name]), name


def test_the_seed_determines_the_run(loader: MemoryLoader) -> None:
    first, second = (_run(small_objective(), loader)[-1].loss for _ in range(2))
    other = _run(small_objective(), loader, dataclasses.replace(CONFIG, seed=7))[-1].loss
    assert first == second != other


def test_fewer_samples_than_a_batch_are_one_batch(loader: MemoryLoader) -> None:
    reports = _run(small_objective(), loader, TrainConfig(Schedule(0.1, 2), batch_size=512))
    assert [progress.step for progress in reports] == [1, 2]


def test_the_objective_is_in_training_mode(loader: MemoryLoader) -> None:
    objective = small_objective().eval()
    before = {name: value.clone() for name, value in objective.named_buffers()}
    _run(objective, loader, TrainConfig(Schedule(0.1, 1), batch_size=512))
    means = [name for name in before if name.endswith("running_mean")]
    after = dict(objective.named_buffers())
    assert means
    assert not any(torch.equal(after[name], before[name]) for name in means)


def test_the_averaged_weights_are_swapped_in(loader: MemoryLoader) -> None:
    objective = small_objective()
    for progress in train(objective, loader, dataclasses.replace(CONFIG, ema_decay=0.9)):
        trained = objective.head.prototypes.detach().clone()
        average = progress.checkpoint()[1]["ema"]["head.prototypes"].clone()
        with progress.ema_weights():
            assert torch.equal(objective.head.prototypes, average)
        assert torch.equal(objective.head.prototypes, trained)
        assert not torch.equal(average, trained)


def test_without_an_average_the_weights_stay(loader: MemoryLoader) -> None:
    objective = small_objective()
    (progress,) = _run(objective, loader, TrainConfig(Schedule(0.1, 1), batch_size=16))
    trained = objective.head.prototypes.detach().clone()
    with progress.ema_weights():
        assert torch.equal(objective.head.prototypes, trained)


def test_the_state_of_a_checkpoint_has_its_documented_entries(loader: MemoryLoader) -> None:
    config = dataclasses.replace(CONFIG, ema_decay=0.9)
    first, last = _run(small_objective(), loader, config)[:2]
    _, state = last.checkpoint()
    assert {name: state[name] for name in ("optimizer_name", "num_samples", "batch_size")} == {
        "optimizer_name": "sgd",
        "num_samples": 70,
        "batch_size": 16,
    }
    assert state.keys() == {
        "optimizer", "optimizer_name", "parameter_groups", "ema", "losses", "num_samples",
        "batch_size",
    }  # fmt: skip
    assert len(first.checkpoint()[1]["losses"]) == 2
    assert len(state["losses"]) == 0


@pytest.mark.bad_input
@pytest.mark.parametrize("value", ["nan", "inf", "1e9"])
def test_a_loss_that_explodes_ends_the_run(value: str, loader: MemoryLoader) -> None:
    objective = small_objective()
    factors = iter([1.0, 1.0, 1.0, 1.0, 1.0, float(value)])
    objective.loss = lambda features, head, labels: (
        (small_loss(features, head, labels) * 0 + 1) * next(factors)
    )
    message = r"finite and below 1e\+05, got \S+ at step 6 with a learning rate of 0\.075"
    with pytest.raises(TrainingError, match=message):
        _run(objective, loader)


@pytest.mark.bad_input
def test_a_weight_that_is_not_finite_ends_the_run(loader: MemoryLoader) -> None:
    objective = small_objective()
    reports = train(objective, loader, CONFIG)
    next(reports)
    objective.encoder.register_buffer("unused", torch.tensor([torch.inf]))
    message = r"encoder\.unused is not after step 4 with a learning rate of 0\.1"
    with pytest.raises(TrainingError, match=f"weights must be finite, but {message}"):
        next(reports)


@pytest.fixture(params=[2, 4], ids=["inside an epoch", "at the end of an epoch"])
def checkpoint(request: pytest.FixtureRequest, loader: MemoryLoader, tmp_path: Path) -> Checkpoint:
    """A checkpoint of the default run."""
    for progress in train(small_objective(), loader, CONFIG):
        if progress.step == request.param:
            save_checkpoint(tmp_path, progress.step, *progress.checkpoint())
            break
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    return loaded


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 8}, r"batch_size must be 16 as in the checkpoint of step \d, got 8"),
        ({"batch_size": 17}, r"batch_size must be 16 as in the checkpoint of step \d, got 17"),
        ({"optimizer": AdamW()}, "optimizer_name must be sgd as in the checkpoint .* got adamw"),
        ({"ema_decay": 0.9}, "average of the weights if and only if ema_decay is given"),
    ],
    ids=str,
)
def test_a_checkpoint_of_other_settings_is_refused(
    change: dict[str, Any], message: str, checkpoint: Checkpoint, loader: MemoryLoader
) -> None:
    objective = small_objective(seed=1)
    before = {name: value.clone() for name, value in objective.state_dict().items()}
    with pytest.raises(TrainingError, match=message):
        _run(objective, loader, dataclasses.replace(CONFIG, **change), resume=checkpoint)
    after = objective.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.bad_input
def test_a_checkpoint_of_other_data_or_another_model_is_refused(
    checkpoint: Checkpoint, loader: MemoryLoader
) -> None:
    fewer = memory_loader(small_split().subset(torch.arange(66)), RANDOM_POLICY)
    with pytest.raises(
        TrainingError, match=r"num_samples must be 70 as in the checkpoint .* got 66"
    ):
        _run(small_objective(), fewer, resume=checkpoint)
    with pytest.raises(TrainingError, match=r"checkpoint of step \d does not fit this model"):
        _run(small_objective(num_classes=4), loader, resume=checkpoint)
    del checkpoint.state["batch_size"]
    with pytest.raises(TrainingError, match="must say its batch_size; it was saved by another"):
        _run(small_objective(), loader, resume=checkpoint)


@pytest.mark.bad_input
def test_a_loader_of_torch_is_refused() -> None:
    samples = torch.utils.data.TensorDataset(torch.ones(4, 2), torch.zeros(4).long())
    loader: Any = torch.utils.data.DataLoader(samples, batch_size=2)
    message = r"loader must be a Loader of protosphere.data, .*FeatureLoader.*, got DataLoader"
    with pytest.raises(TypeError, match=message):
        next(train(linear_objective(torch.zeros(2, 2)), loader, CONFIG))
