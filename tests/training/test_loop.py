"""The loop: it learns, repeats, resumes bit for bit, and stops where the loss is no number any more."""

import dataclasses
from pathlib import Path

import pytest
import torch

from protosphere.classifiers import CosineClassifier
from protosphere.data.augmentation import Augmentation
from protosphere.data.datasets import ImageSet, load, synthetic
from protosphere.data.loaders import MemoryFeed, whole_batches
from protosphere.encoders import backbone
from protosphere.losses import nonl_loss
from protosphere.runs.checkpoints import load_checkpoint, save_checkpoint
from protosphere.training import Objective, Schedule, Settings, TrainingError, train
from protosphere.training.step import Steps

AUGMENTATION = Augmentation(8, "padded", padding=1, flip=0.5)
SETTINGS = Settings(Schedule(0.1, 3), batch=16, report_every=2)


def _loss(features: torch.Tensor, head: torch.nn.Module, labels: torch.Tensor) -> torch.Tensor:
    return nonl_loss(features, head.prototypes, labels, temperature=0.2)


def _objective(seed: int = 0, channels: int = 3, classes: int = 5) -> Objective:
    torch.manual_seed(seed)
    encoder = backbone("small", in_channels=channels)
    return Objective(encoder, CosineClassifier(encoder.num_features, classes), _loss)


@pytest.fixture
def data() -> ImageSet:
    return synthetic(5, samples=70, resolution=8).train


def _run(objective: Objective, data: ImageSet, settings: Settings = SETTINGS, **options) -> list:
    return list(train(objective, MemoryFeed(data, AUGMENTATION), settings, **options))


def test_it_learns_digits() -> None:
    digits = load("digits")
    mean, std = digits.train.channel_statistics()
    augmentation = Augmentation(8, "padded", padding=1, mean=mean, std=std)
    objective = _objective(channels=1, classes=10)
    for _ in train(
        objective, MemoryFeed(digits.train, augmentation), Settings(Schedule(0.1, 6), batch=64)
    ):
        pass
    objective.eval()
    with torch.no_grad():
        scores = objective.scores(augmentation.clean()(digits.test.images))
    assert (scores.argmax(1) == digits.test.labels).double().mean() > 0.95


def test_records_say_where_training_stands(data: ImageSet) -> None:
    assert whole_batches(len(data), SETTINGS.batch) == 4
    records = _run(_objective(), data)
    assert [record.step for record in records] == [2, 4, 6, 8, 10, 12]
    assert [record.at_epoch_end for record in records] == [False, True] * 3
    assert records[-1].epoch == 3
    assert [record.rate for record in records] == [
        SETTINGS.schedule.at_epoch(epoch) for epoch in (0, 0, 1, 1, 2, 2)
    ]
    assert all(record.images_per_second > 0 for record in records)
    assert len(_run(_objective(), data, dataclasses.replace(SETTINGS, report_every=None))) == 3


def test_the_speed_of_an_epoch_is_that_of_the_whole(
    data: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that a step takes 1 s of, but the first of epochs 7, 14 and 21 s, and whoever reads a record 100 s."""
    now = [0.0]

    def take(steps: Steps, parts: tuple, *, step: int, rate: float) -> torch.Tensor:
        now[0] += 7 * (step // 4 + 1) if step % 4 == 0 else 1
        return torch.ones(())

    monkeypatch.setattr(Steps, "take", take)
    monkeypatch.setattr("protosphere.training.loop.time.perf_counter", lambda: now[0])
    speeds = []
    for record in train(_objective(), MemoryFeed(data, AUGMENTATION), SETTINGS):
        speeds.append(record.images_per_second)
        now[0] += 100
    firsts = (7, 14, 21)
    assert speeds == pytest.approx(
        [speed for first in firsts for speed in (2 * 16 / (first + 1), 4 * 16 / (first + 3))]
    )


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"optimizer": "adamw"},
        {"clip": 0.1, "average": 0.9},
        {"precision": "bfloat16", "accumulate": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("stop", [3, 4, 6])
def test_resumed_is_uninterrupted(data: ImageSet, change: dict, stop: int, tmp_path: Path) -> None:
    """Bit for bit, through a checkpoint on disk, from the middle and from the end of an epoch."""
    settings = dataclasses.replace(SETTINGS, **change)
    whole = _objective()
    expected = [record.loss for record in _run(whole, data, settings)]
    stopped = _objective()
    losses, asked = [], [False] * (stop - 1) + [True]
    for record in train(
        stopped, MemoryFeed(data, AUGMENTATION), settings, stop=lambda: asked.pop(0)
    ):
        assert record.stopping == (record.step == stop)
        if record.step % 2 == 0:
            losses.append(record.loss)
        if record.stopping:
            save_checkpoint(tmp_path, record.step, *record.checkpoint())
    assert not asked
    resumed = _objective(seed=1)
    losses += [
        record.loss for record in _run(resumed, data, settings, resume=load_checkpoint(tmp_path))
    ]
    assert losses == expected
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_seeds(data: ImageSet) -> None:
    one, again = (_run(_objective(), data)[-1].loss for _ in range(2))
    other = _run(_objective(), data, dataclasses.replace(SETTINGS, seed=7))[-1].loss
    assert one == again != other


def test_a_set_smaller_than_a_batch(data: ImageSet) -> None:
    records = _run(_objective(), data, Settings(Schedule(0.1, 2), batch=512))
    assert [record.step for record in records] == [1, 2]


@pytest.mark.bad_input
def test_a_loss_that_is_no_number_stops_the_run(data: ImageSet) -> None:
    objective = _objective()
    objective.loss = lambda features, head, labels: _loss(features, head, labels) * torch.nan
    with pytest.raises(
        TrainingError,
        match=r"must stay finite and below 1e\+05; at step 1, with a learning rate of 0.1, it was nan",
    ):
        _run(objective, data)
    with pytest.raises(ValueError, match="an optimizer is 'sgd' or 'adamw'; got 'lion'"):
        _run(objective, data, dataclasses.replace(SETTINGS, optimizer="lion"))


def test_pieces_add_up_to_the_batch(data: ImageSet) -> None:
    """For a loss of single samples, and without batch norm, a batch in pieces is the batch."""

    def objective() -> Objective:
        torch.manual_seed(0)
        encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 8))
        head = torch.nn.Linear(8, 5)
        return Objective(
            encoder,
            head,
            lambda features, head, labels: torch.nn.functional.cross_entropy(
                head(features), labels
            ),
        )

    whole, pieces = objective(), objective()
    feed = MemoryFeed(data, Augmentation(8))
    *_, one = train(whole, feed, SETTINGS)
    *_, other = train(pieces, feed, dataclasses.replace(SETTINGS, accumulate=4))
    assert one.loss == pytest.approx(other.loss, rel=1e-5)
    torch.testing.assert_close(whole.head.weight, pieces.head.weight, rtol=1e-4, atol=1e-6)


def test_the_gradient_is_shortened(data: ImageSet) -> None:
    """One step of plain SGD moves the weights by the rate times the length that the gradient is cut to."""
    objective = _objective()
    before = torch.cat([parameter.detach().flatten() for parameter in objective.parameters()])
    settings = Settings(Schedule(0.5, 1), batch=512, momentum=0.0, weight_decay=0.0, clip=1e-3)
    _run(objective, data, settings)
    after = torch.cat([parameter.detach().flatten() for parameter in objective.parameters()])
    assert (after - before).norm() == pytest.approx(0.5e-3, rel=1e-3)


def test_the_average_is_offered(data: ImageSet) -> None:
    objective = _objective()
    for record in train(
        objective, MemoryFeed(data, AUGMENTATION), dataclasses.replace(SETTINGS, average=0.9)
    ):
        own = objective.head.prototypes.detach().clone()
        with record.averaged():
            assert not torch.equal(objective.head.prototypes, own)
        assert torch.equal(objective.head.prototypes, own)
    assert set(record.checkpoint()[1]["average"]) <= set(objective.state_dict())


@pytest.mark.compiled
def test_compiled_is_eager(data: ImageSet) -> None:
    """On the CPU too, and without random augmentation."""
    feed = MemoryFeed(data, Augmentation(8))
    one, other = _objective(), _objective()
    settings = dataclasses.replace(SETTINGS, average=0.9, clip=1.0)
    eager = [record.loss for record in train(one, feed, settings)]
    compiled = [
        record.loss
        for record in train(other, feed, dataclasses.replace(settings, execution="compiled"))
    ]
    assert compiled == pytest.approx(eager, rel=1e-3, abs=1e-4)


@pytest.mark.bad_input
def test_losses_and_weights_that_explode(data: ImageSet) -> None:
    objective = _objective()
    factors = iter([1.0, 1.0, 1.0, 1.0, 1.0, 1e9])
    objective.loss = lambda features, head, labels: _loss(features, head, labels) * next(factors)
    with pytest.raises(
        TrainingError,
        match=r"must stay finite and below 1e\+05; at step 6, with a learning rate of 0.075\d*, it was",
    ):
        _run(objective, data)
    objective = _objective()
    records = train(objective, MemoryFeed(data, AUGMENTATION), SETTINGS)
    next(records)
    objective.encoder.register_buffer("unused", torch.tensor([torch.inf]))
    where = r"after step 4, with a learning rate of 0\.1, those of encoder\.unused are not"
    with pytest.raises(TrainingError, match=rf"weights must stay finite; {where}"):
        next(records)
    with pytest.raises(
        ValueError, match="must divide into equal pieces; got 16 samples and 3 pieces"
    ):
        dataclasses.replace(SETTINGS, accumulate=3)


@pytest.mark.bad_input
def test_a_checkpoint_of_something_else(data: ImageSet, tmp_path: Path) -> None:
    for record in train(_objective(), MemoryFeed(data, AUGMENTATION), SETTINGS):
        save_checkpoint(tmp_path, record.step, *record.checkpoint())
        break
    saved = load_checkpoint(tmp_path)
    fewer = data.chosen(torch.arange(66))
    for objective, images, settings in (
        (_objective(classes=4), data, SETTINGS),
        (_objective(), fewer, SETTINGS),
        (_objective(), data, dataclasses.replace(SETTINGS, average=0.9)),
        (_objective(), data, dataclasses.replace(SETTINGS, optimizer="adamw")),
    ):
        with pytest.raises(
            TrainingError,
            match="must be of this model, data and optimizer to go on from; that of step 2",
        ):
            _run(objective, images, settings, resume=saved)


def test_each_step_draws_anew(data: ImageSet) -> None:
    """One batch in one order, and a learning rate of nearly nothing: what changes is the augmentation alone."""

    class InOrder(MemoryFeed):
        def batches(self, size: int, *, seed: int, epoch: int, first: int = 0):
            yield (torch.arange(len(self)),)

    settings = Settings(Schedule(1e-12, 4, "constant"), batch=512, weight_decay=0.0)
    assert (
        len({record.loss for record in train(_objective(), InOrder(data, AUGMENTATION), settings)})
        == 4
    )
    assert (
        len(
            {
                record.loss
                for record in train(_objective(), InOrder(data, Augmentation(8)), settings)
            }
        )
        == 1
    )


def test_views_are_drawn_each_for_itself_one_after_the_other(data: ImageSet) -> None:
    feed = MemoryFeed(data, AUGMENTATION, views=3)
    index = torch.tensor([4, 1])
    images, labels = feed.prepared(index)
    assert labels.tolist() == data.labels[index].tolist() * 3
    plain, _ = MemoryFeed(data, Augmentation(8), views=3).prepared(index)
    assert torch.equal(plain, (data.images[index] / 255).repeat(3, 1, 1, 1))
    assert len({tuple(view.flatten().tolist()) for view in images.split(2)}) > 1


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_weights_decay(data: ImageSet, optimizer: str) -> None:
    """Where the loss does not reach, a step shrinks weights by the rate times the decay."""
    objective = _objective()
    objective.encoder.extra = torch.nn.Parameter(torch.ones(3))
    objective.loss = lambda features, head, labels: (
        _loss(features, head, labels) + 0 * objective.encoder.extra.sum()
    )
    settings = Settings(Schedule(0.5, 1), batch=512, optimizer=optimizer, weight_decay=0.1)
    _run(objective, data, settings)
    torch.testing.assert_close(objective.encoder.extra.detach(), torch.full((3,), 0.95))


def test_half_precision_is_for_the_encoder_alone(data: ImageSet) -> None:
    seen = {}

    def loss(features: torch.Tensor, head: torch.nn.Module, labels: torch.Tensor) -> torch.Tensor:
        value = _loss(features, head, labels)
        seen.update(features=features.dtype, loss=value.dtype)
        return value

    for precision, expected in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        objective = _objective()
        objective.loss = loss
        _run(objective, data, Settings(Schedule(0.1, 1), batch=512, precision=precision))
        assert seen == {"features": expected, "loss": torch.float32}


def test_pieces_of_unequal_sizes_weigh_as_much_as_they_have(data: ImageSet) -> None:
    """Seventy samples in four pieces: 18, 18, 18 and 16."""
    objective = _objective()
    sizes = []

    def loss(features: torch.Tensor, head: torch.nn.Module, labels: torch.Tensor) -> torch.Tensor:
        sizes.append(len(labels))
        return _loss(features, head, labels) * 0 + float(len(sizes))

    objective.loss = loss
    (record,) = _run(objective, data, Settings(Schedule(0.1, 1), batch=512, accumulate=4))
    assert sizes == [18, 18, 18, 16]
    assert record.loss == pytest.approx((18 * 1 + 18 * 2 + 18 * 3 + 16 * 4) / 70)


def test_the_mode_is_that_of_training(data: ImageSet) -> None:
    objective = _objective().eval()
    before = {
        name: value.clone()
        for name, value in objective.named_buffers()
        if name.endswith("running_mean")
    }
    _run(objective, data, Settings(Schedule(0.1, 1), batch=512))
    assert all(
        not torch.equal(dict(objective.named_buffers())[name], value)
        for name, value in before.items()
    )


def test_the_average_follows_the_steps(data: ImageSet) -> None:
    """One batch at a constant rate, averaged by hand beside it."""
    objective, expected = _objective(), None
    settings = Settings(Schedule(0.1, 12, "constant"), batch=512, average=0.5)
    for record in train(objective, MemoryFeed(data, AUGMENTATION), settings):
        own = objective.head.prototypes.detach().double().clone()
        decay = min(0.5, record.step / (9 + record.step))
        expected = own if expected is None else expected
        if record.step > 1:
            expected = decay * expected + (1 - decay) * own
        else:
            expected = record.checkpoint()[1]["average"]["head.prototypes"].double().clone()
    found = record.checkpoint()[1]["average"]["head.prototypes"].double()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
