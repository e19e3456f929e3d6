"""Training that is killed or stopped at any moment and resumed gives the same bits."""

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from protosphere.encoders import create_backbone
from protosphere.recipes.build import load_dataset
from protosphere.recipes.catalog import get_recipe
from protosphere.recipes.runner import run_recipe
from protosphere.recipes.schema import apply_overrides
from protosphere.runs import RunFolder
from protosphere.runs.checkpoints import load_checkpoint
from support import kills

pytestmark = pytest.mark.whole_program
NUM_KILLS = 2


def _fine_tuning(folder: Path, channels: int) -> tuple[str, ...]:
    """Overrides that fine-tune pretrained weights, with mixed images and a moving average."""
    weights = folder / "weights.safetensors"
    save_file(create_backbone("small", in_channels=channels).state_dict(), weights)
    return (
        f"model.backbone={{name: small, pretrained: {weights}}}",
        "model.freeze={stages: 0}",
        "optimizer={name: adamw, lr: 0.003, lr_scale: {backbone: 0.3}, layer_decay: 0.8, "
        "exclude_from_decay: norms_and_biases}",
        "augmentation.mixing={name: mixup_or_cutmix}",
        "loss.label_smoothing=0.1",
        "training.ema_decay=0.9",
        "data.validation_fraction=0.25",
        "data.sampler=balanced",
        "checkpoint={monitor: loss, keep: 1}",
    )


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> kills.Reference:
    """The undisturbed run."""
    folder = tmp_path_factory.mktemp("kills")
    overrides = _fine_tuning(folder, channels=1)
    epochs = kills.EPOCHS_PER_KILL * NUM_KILLS
    return kills.run_undisturbed(folder / "reference", epochs=epochs, overrides=overrides)


def test_two_kills_change_nothing(reference: kills.Reference, tmp_path: Path) -> None:
    assert kills.run_with_kills(tmp_path, reference, kills=NUM_KILLS, seed=1) == []


def test_an_epoch_that_was_stopped_has_the_loss_of_all_its_steps(
    reference: kills.Reference, tmp_path: Path
) -> None:
    steps_per_epoch = min(_losses(reference.folder))
    step = 0
    # By chance the signal may come at the last step of an epoch; it is then sent once more.
    while step % steps_per_epoch == 0:
        outcome = kills.run_until(tmp_path, reference, moment=1.2, number=signal.SIGTERM)
        step = kills.check_folder(
            tmp_path, reference, outcome, number=signal.SIGTERM, min_step=step + 1
        )
    assert kills.run_until(tmp_path, reference).is_finished
    end = (step // steps_per_epoch + 1) * steps_per_epoch
    assert _losses(tmp_path)[end] == _losses(reference.folder)[end]
    assert kills.find_differences(reference.folder, tmp_path) == []


def _losses(folder: Path) -> dict[int, float]:
    return {
        record["step"]: record["loss"]
        for record in RunFolder(folder).records()
        if record["kind"] == "train"
    }


class KilledError(BaseException):
    """Nothing catches it to clean up, as nothing does after SIGKILL."""


def _kill_at(count: int) -> Callable[[int], None]:
    """Return a replacement of fsync that ends the process at a given call."""
    calls = itertools.count(1)

    def sync(_: int) -> None:
        if next(calls) == count:
            raise KilledError

    return sync


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """On a busy machine, waiting for threads takes longer than these small computations."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("start", ["scratch", "pretrained"])
def test_a_kill_at_every_single_write_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """The first process ends at its first sync, the second at its second, and so on."""
    overrides = [
        *(_fine_tuning(tmp_path, channels=3) if start == "pretrained" else ()),
        "data.source=synthetic",
        "data.num_classes=3",
        "data.num_samples=32",
        "data.image_size=8",
        "schedule.epochs=3",
        "training.batch_size=16",
        "evaluation.every=1",
        "checkpoint.every=1",
    ]
    recipe = apply_overrides(get_recipe("digits-ntce"), overrides)
    dataset = load_dataset(recipe)
    list(run_recipe(recipe, RunFolder(tmp_path / "reference"), dataset))
    run = RunFolder(tmp_path / "killed")
    saved_steps = [0]
    for count in itertools.count(1):
        try:
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", _kill_at(count))
                list(run_recipe(recipe, run, dataset, start="resume"))
            break
        except KilledError:
            checkpoint = load_checkpoint(run.checkpoints)
            saved_steps.append(0 if checkpoint is None else checkpoint.step)
    assert saved_steps == sorted(saved_steps)
    assert saved_steps.count(0) > 12, "killed at each write of the start and the first epoch"
    assert kills.find_differences(tmp_path / "reference", run.path) == []
    assert list(run.path.rglob("*.part")) == [], "no temporary file is left"
