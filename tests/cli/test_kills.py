"""Training that is killed, or asked to stop, at any moment and resumed: nothing is lost, and every bit is the same."""

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from protosphere.recipes import build, catalog
from protosphere.recipes.runner import execute
from protosphere.recipes.schema import with_settings
from protosphere.runs import RunFolder
from protosphere.runs.checkpoints import load_checkpoint
from support import kills

pytestmark = pytest.mark.whole_program
KILLS = 5


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> kills.Whole:
    """The run that nobody disturbs."""
    return kills.uninterrupted(
        tmp_path_factory.mktemp("kills") / "whole", epochs=kills.EPOCHS_A_KILL * KILLS
    )


def test_five_kills_change_nothing(whole: kills.Whole, tmp_path: Path) -> None:
    assert kills.disturbed(tmp_path, whole, kills=KILLS, seed=1) == []


def test_two_requests_to_stop_change_nothing(whole: kills.Whole, tmp_path: Path) -> None:
    assert kills.disturbed(tmp_path, whole, kills=2, seed=2, number=signal.SIGTERM) == []


def test_an_epoch_that_is_stopped_in_its_middle_has_the_loss_of_all_its_steps(
    whole: kills.Whole, tmp_path: Path
) -> None:
    per_epoch = min(_losses(whole.folder))
    step = 0
    while (
        step % per_epoch == 0
    ):  # By chance the signal may come with an epoch's last step; then once more.
        ending = kills.trained(tmp_path, whole, moment=1.2, number=signal.SIGTERM)
        step = kills.check(tmp_path, whole, ending, number=signal.SIGTERM, at_least=step + 1)
    assert kills.trained(tmp_path, whole).is_whole
    end = (step // per_epoch + 1) * per_epoch
    assert _losses(tmp_path)[end] == _losses(whole.folder)[end]
    assert kills.differences(whole.folder, tmp_path) == []


def _losses(folder: Path) -> dict[int, float]:
    return {
        record["step"]: record["loss"]
        for record in RunFolder(folder).records()
        if record["kind"] == "train"
    }


class Death(BaseException):
    """Nobody catches it and tidies up, as nobody does after SIGKILL."""


def _dying(at: int) -> Callable[[int], None]:
    """A sync that is the end of the process when it is called for this time. (It syncs nothing: no power fails.)"""
    calls = itertools.count(1)

    def die(_: int) -> None:
        if next(calls) == at:
            raise Death

    return die


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """On a busy machine threads wait for each other longer than such small sums take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
def test_death_at_every_single_write_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process dies at its first sync, the next at its second, and so on: before and after each rename."""
    settings = [
        "data.source=synthetic",
        "data.num_classes=3",
        "data.samples=32",
        "data.resolution=8",
    ]
    settings += [
        "optimization.epochs=3",
        "optimization.batch=16",
        "evaluate_every=1",
        "save_every=1",
    ]
    recipe = with_settings(catalog.recipe("digits-ntce"), settings)
    source = build.build_source(recipe)
    list(execute(recipe, RunFolder(tmp_path / "whole"), source))
    run = RunFolder(tmp_path / "killed")
    saved = [0]
    for death in itertools.count(1):
        try:
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", _dying(death))
                list(execute(recipe, run, source, start="resume"))
            break
        except Death:
            checkpoint = load_checkpoint(run.checkpoints)
            saved.append(0 if checkpoint is None else checkpoint.step)
    assert saved == sorted(saved)
    assert saved.count(0) > 12, (
        "processes died at each write of the start, of an evaluation and of a checkpoint"
    )
    assert kills.differences(tmp_path / "whole", run.path) == []
    assert list(run.path.rglob("*.part")) == [], "nothing half-written stays"
