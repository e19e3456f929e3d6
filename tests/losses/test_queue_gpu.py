"""On a GPU: the captured step with a queue is the eager one, and can be resumed."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from protosphere.classifiers import CosineClassifier
from protosphere.encoders import Encoder, create_backbone
from protosphere.losses import FeatureQueue, NONLLoss, NTCELoss
from protosphere.runs.checkpoints import load_checkpoint, save_checkpoint
from protosphere.training import Objective, Schedule, TrainConfig, train
from support.training import PLAIN_POLICY, memory_loader, small_split

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
CONFIG = TrainConfig(Schedule(0.05, 3), batch_size=16, report_every=1)


@pytest.fixture(autouse=True)
def _full_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def _objective(kind: Any) -> Objective:
    torch.manual_seed(0)
    encoder = Encoder(create_backbone("small", in_channels=3))
    queue = FeatureQueue(40, encoder.out_dim, max_age=2, start=5, persistent=False)
    head = CosineClassifier(encoder.out_dim, 5, temperature=0.2)
    return Objective(encoder, head, kind(queue=queue)).cuda()


def _losses(config: TrainConfig, objective: Objective, **options: Any) -> list[float]:
    loader = memory_loader(small_split().to("cuda"), PLAIN_POLICY)
    return [progress.loss for progress in train(objective, loader, config, **options)]


@pytest.mark.parametrize("kind", [NTCELoss, NONLLoss])
def test_the_captured_step_is_the_eager_one(kind: Any) -> None:
    eager, captured = _objective(kind), _objective(kind)
    expected = _losses(CONFIG, eager)
    losses = _losses(dataclasses.replace(CONFIG, compile=True), captured)
    assert losses == pytest.approx(expected, rel=2e-3, abs=2e-3)
    assert captured.loss.queue.step == 12
    for name, buffer in eager.loss.queue.named_buffers():
        got = captured.loss.queue.get_buffer(name)
        torch.testing.assert_close(got, buffer, rtol=2e-2, atol=2e-2)


def test_a_captured_run_resumes_with_its_queue(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, compile=True)
    whole, first, second = (_objective(NONLLoss) for _ in range(3))
    expected = _losses(config, whole)
    loader = memory_loader(small_split().to("cuda"), PLAIN_POLICY)
    for progress in train(first, loader, config):
        if progress.step == 6:
            save_checkpoint(tmp_path, 6, *progress.checkpoint())
            break
    losses = _losses(config, second, resume=load_checkpoint(tmp_path))
    assert losses == pytest.approx(expected[6:], rel=2e-3, abs=2e-3)
    assert torch.equal(second.loss.queue.added_at, whole.loss.queue.added_at)
