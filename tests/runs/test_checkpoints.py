"""Checkpoints: exact, checked on loading, and not confused by damaged or stray folders."""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from protosphere.runs import RunFolderError
from protosphere.runs.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from protosphere.storage import StorageError


def _save(folder: Path, step: int, *, keep: int = 2) -> Path:
    weights = {"layer.weight": torch.full((2, 3), float(step)), "steps": torch.tensor(step)}
    state = {
        "optimizer": {"momentum": [torch.arange(step)]},
        "epoch": step,
        "random": torch.get_rng_state(),
        "name": "x",
    }
    return save_checkpoint(folder, step, weights, state, keep=keep)


def _load(folder: Path) -> Checkpoint:
    checkpoint = load_checkpoint(folder)
    assert checkpoint is not None
    return checkpoint


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path / "none") is None
    _save(tmp_path, 7)
    checkpoint = _load(tmp_path)
    assert checkpoint.step == 7
    assert torch.equal(checkpoint.weights["layer.weight"], torch.full((2, 3), 7.0))
    assert torch.equal(checkpoint.state["optimizer"]["momentum"][0], torch.arange(7))
    assert torch.equal(checkpoint.state["random"], torch.get_rng_state())


def test_the_last_two_are_kept_and_a_step_may_be_saved_again(tmp_path: Path) -> None:
    for step in (5, 10, 200, 200, 1000):
        _save(tmp_path, step)
    assert _names(tmp_path) == ["step-000000200", "step-000001000"]
    assert _load(tmp_path).step == 1000


@pytest.mark.parametrize("keep", [1, 3])
def test_as_many_are_kept_as_asked_for(keep: int, tmp_path: Path) -> None:
    for step in range(1, 6):
        _save(tmp_path, step, keep=keep)
    assert _names(tmp_path) == [f"step-{step:09d}" for step in range(6 - keep, 6)]


@pytest.mark.bad_input
def test_keeping_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        _save(tmp_path, 1, keep=0)
    assert _names(tmp_path) == []


def test_steps_of_more_than_nine_digits_are_in_order(tmp_path: Path) -> None:
    for step in (999_999_999, 1_000_000_000, 10_000_000_000):
        save_checkpoint(tmp_path, step, {"weight": torch.ones(1)}, {})
    assert _names(tmp_path) == ["step-1000000000", "step-10000000000"]
    assert _load(tmp_path).step == 10_000_000_000


@pytest.mark.parametrize("name", ["weights.safetensors", "state.pt", "checkpoint.json"])
@pytest.mark.parametrize("damage", ["cut off", "one bit", "gone"])
def test_a_damaged_checkpoint_is_skipped(
    name: str, damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _save(tmp_path, 1)
    path = _save(tmp_path, 2) / name
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content[: len(content) // 2] if damage == "cut off" else content)
    with caplog.at_level(logging.WARNING, logger="protosphere"):
        assert _load(tmp_path).step == 1
    assert caplog.messages == [f"{path.parent} is damaged and is skipped"]


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["state.pt", "checkpoint.json"])
def test_only_damaged_checkpoints_are_refused(name: str, tmp_path: Path) -> None:
    """A run that had checkpoints must not start over without a word."""
    (_save(tmp_path, 3) / name).unlink()
    with pytest.raises(RunFolderError, match=r"all checkpoints in .* damaged \(step-000000003\)"):
        load_checkpoint(tmp_path)


def test_a_checkpoint_under_the_name_of_another_step_is_skipped(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    _save(tmp_path, 2)
    shutil.copytree(tmp_path / "step-000000001", tmp_path / "step-000000009")
    assert _load(tmp_path).step == 2


def _folder_with_notes(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("mine")


def _copy_of_a_checkpoint(path: Path) -> None:
    shutil.copytree(path.parent / "step-000000002", path)


STRAYS: dict[str, Callable[[Path], object]] = {
    "step-notes": _folder_with_notes,
    "step-000000abc": _folder_with_notes,
    "step-999999999.bak": _copy_of_a_checkpoint,
    "step-000000500": Path.mkdir,
    "step-000000501": _folder_with_notes,
    "step-000000502": Path.touch,
    "step-0000000503": _copy_of_a_checkpoint,
    "step-504": _copy_of_a_checkpoint,
}


@pytest.mark.parametrize("stray", STRAYS)
@pytest.mark.parametrize("keep", [1, 2])
def test_a_stray_folder_does_not_displace_a_checkpoint(
    stray: str, keep: int, tmp_path: Path
) -> None:
    _save(tmp_path, 1)
    _save(tmp_path, 2)
    STRAYS[stray](tmp_path / stray)
    assert _load(tmp_path).step == 2
    _save(tmp_path, 3, keep=keep)
    kept = [f"step-{step:09d}" for step in (2, 3)[-keep:]]
    assert _names(tmp_path) == sorted([*kept, stray]), "the stray folder is not ours to remove"
    assert _load(tmp_path).step == 3
    _save(tmp_path, 1000, keep=2)
    assert _names(tmp_path) == sorted(["step-000000003", "step-000001000", stray])
    assert _load(tmp_path).step == 1000


@pytest.mark.parametrize("stray", ["step-notes", "step-000000abc", "step-000000502"])
def test_what_is_not_named_like_a_checkpoint_is_ignored_without_a_warning(
    stray: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    STRAYS[stray](tmp_path / stray)
    with caplog.at_level(logging.WARNING, logger="protosphere"):
        assert load_checkpoint(tmp_path) is None
        _save(tmp_path, 1)
        assert _load(tmp_path).step == 1
    assert caplog.messages == []


@pytest.mark.bad_input
def test_a_file_in_the_place_of_a_checkpoint_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "step-000000007").write_text("mine")
    with pytest.raises(StorageError, match=r"cannot write .*step-000000007: not a directory"):
        _save(tmp_path, 7)
    assert _names(tmp_path) == ["step-000000007"]
    assert (tmp_path / "step-000000007").read_text() == "mine"


def test_the_checkpoint_just_saved_is_kept_beside_a_damaged_later_one(tmp_path: Path) -> None:
    """A run that resumed from step 1, since step 9 was damaged, saves step 2."""
    _save(tmp_path, 1)
    (_save(tmp_path, 9) / "weights.safetensors").write_bytes(b"")
    assert _load(tmp_path).step == 1
    _save(tmp_path, 2, keep=1)
    assert _load(tmp_path).step == 2


class KilledError(BaseException):
    """Nothing catches it to clean up, as nothing does after SIGKILL."""


@pytest.mark.parametrize("count", range(1, 4))
def test_a_kill_during_the_removal_leaves_no_damaged_checkpoint(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of an old checkpoint are removed one by one; what is left must not be taken for one."""
    for step in (1, 2):
        _save(tmp_path, step)
    unlink, calls = os.unlink, [0]

    def killed(*arguments: object, **options: object) -> None:
        calls[0] += 1
        if calls[0] == count:
            raise KilledError
        unlink(*arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", killed)
        with pytest.raises(KilledError):
            _save(tmp_path, 3)
    visible = [name for name in _names(tmp_path) if not name.startswith(".")]
    assert visible == ["step-000000002", "step-000000003"]
    assert _load(tmp_path).step == 3
    _save(tmp_path, 4)
    assert _names(tmp_path) == ["step-000000003", "step-000000004"]


class Bomb:
    """Pickled code that would create a folder."""

    def __init__(self, fuse: Path) -> None:
        self.fuse = fuse

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self.fuse),)


@pytest.mark.bad_input
def test_loading_executes_no_code(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, {"w": torch.ones(1)}, {"bomb": Bomb(tmp_path / "set off")})
    assert path.exists()
    with pytest.raises(RunFolderError, match=r"all checkpoints in .* are damaged"):
        load_checkpoint(tmp_path)
    assert not (tmp_path / "set off").exists()


def test_a_full_disk_leaves_the_last_checkpoint_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(tmp_path, 1)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            StorageError, match=r"cannot write .*: no space left on device"
        ) as caught:
            _save(tmp_path, 2)
    assert not isinstance(caught.value, RunFolderError)
    assert _names(tmp_path) == ["step-000000001"]
    assert _load(tmp_path).step == 1
