"""On a GPU: the recorded step is the eager one, draws anew each time, and can be resumed."""

import dataclasses
from pathlib import Path

import pytest
import torch

from protosphere.classifiers import CosineClassifier
from protosphere.data.augmentation import Augmentation
from protosphere.data.datasets import synthetic
from protosphere.data.loaders import MemoryFeed
from protosphere.encoders import backbone
from protosphere.losses import nonl_loss
from protosphere.runs.checkpoints import load_checkpoint, save_checkpoint
from protosphere.training import Objective, Schedule, Settings, train

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and there is none"),
]


@pytest.fixture(autouse=True)
def _whole_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions in float32 proper: rounded to TF32, two ways of adding would part after a few steps."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


SETTINGS = Settings(Schedule(0.1, 3), batch=16, report_every=1)


def _loss(features: torch.Tensor, head: torch.nn.Module, labels: torch.Tensor) -> torch.Tensor:
    return nonl_loss(features, head.prototypes, labels, temperature=0.2)


def _objective() -> Objective:
    torch.manual_seed(0)
    encoder = backbone("small")
    return Objective(encoder, CosineClassifier(encoder.num_features, 5), _loss).cuda()


def _feed(augmentation: Augmentation) -> MemoryFeed:
    return MemoryFeed(synthetic(5, samples=70, resolution=8).train.to("cuda"), augmentation)


def _losses(
    settings: Settings, augmentation: Augmentation, **options
) -> tuple[list[float], Objective]:
    objective = _objective()
    records = train(objective, _feed(augmentation), settings, **options)
    return [record.loss for record in records], objective


@pytest.mark.parametrize(
    "change",
    [{}, {"optimizer": "adamw"}, {"clip": 0.5, "average": 0.9}, {"accumulate": 2}],
    ids=str,
)
def test_recorded_is_eager(change: dict) -> None:
    """Without random augmentation, in float32: the same losses over a schedule that changes each epoch."""
    settings = dataclasses.replace(SETTINGS, **change)
    expected, eager = _losses(settings, Augmentation(8))
    recorded = dataclasses.replace(settings, execution="compiled")
    losses, objective = _losses(recorded, Augmentation(8))
    assert losses == pytest.approx(expected, rel=2e-3, abs=2e-3)
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(objective.state_dict()[name], value, rtol=2e-2, atol=5e-3)


def test_each_replay_draws_anew_and_the_seed_decides() -> None:
    """A learning rate of nearly 0 and one batch: what changes from step to step is the augmentation alone."""
    augmentation = Augmentation(8, "resized", flip=0.5)
    settings = Settings(
        Schedule(1e-12, 8, "constant"), batch=512, execution="compiled", weight_decay=0.0
    )
    one, _ = _losses(settings, augmentation)
    again, _ = _losses(settings, augmentation)
    other, _ = _losses(dataclasses.replace(settings, seed=1), augmentation)
    assert len(set(one)) == len(one) == 8
    assert again == pytest.approx(one, rel=1e-4)
    assert other != pytest.approx(one, rel=1e-4)


def test_recorded_and_resumed(tmp_path: Path) -> None:
    augmentation = Augmentation(8, "padded", padding=1)
    settings = dataclasses.replace(SETTINGS, execution="compiled", average=0.9)
    expected, _ = _losses(settings, augmentation)
    for record in train(_objective(), _feed(augmentation), settings):
        if record.step == 6:
            save_checkpoint(tmp_path, record.step, *record.checkpoint())
            break
    resumed, _ = _losses(settings, augmentation, resume=load_checkpoint(tmp_path))
    assert resumed == pytest.approx(expected[6:], rel=1e-3, abs=1e-3)


def test_the_average_is_exchanged_under_the_graph() -> None:
    settings = dataclasses.replace(SETTINGS, execution="compiled", average=0.9)
    objective = _objective()
    for record in train(objective, _feed(Augmentation(8)), settings):
        own = objective.head.prototypes.detach().clone()
        with record.averaged():
            averaged = objective.head.prototypes.detach().clone()
        assert torch.equal(objective.head.prototypes, own)
        assert not torch.equal(averaged, own)
    assert record.step == 12
