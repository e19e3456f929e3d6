"""Checkpoints: what went in comes out, bit for bit; damage is noticed, and the one before it is taken."""

import os
from pathlib import Path

import pytest
import torch

from protosphere.runs import RunFolderError
from protosphere.runs.checkpoints import load_checkpoint, save_checkpoint


def _save(folder: Path, step: int) -> Path:
    weights = {"layer.weight": torch.full((2, 3), float(step)), "steps": torch.tensor(step)}
    state = {
        "optimizer": {"momentum": [torch.arange(step)]},
        "epoch": step,
        "random": torch.get_rng_state(),
        "name": "x",
    }
    return save_checkpoint(folder, step, weights, state)


def test_what_went_in_comes_out(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path / "none") is None
    _save(tmp_path, 7)
    found = load_checkpoint(tmp_path)
    assert found.step == 7
    assert torch.equal(found.weights["layer.weight"], torch.full((2, 3), 7.0))
    assert torch.equal(found.state["optimizer"]["momentum"][0], torch.arange(7))
    assert torch.equal(found.state["random"], torch.get_rng_state())


def test_the_last_two_are_kept_and_a_step_may_be_saved_again(tmp_path: Path) -> None:
    for step in (5, 10, 200, 200, 1000):
        _save(tmp_path, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000200", "step-000001000"]
    assert load_checkpoint(tmp_path).step == 1000


@pytest.mark.parametrize("name", ["weights.safetensors", "state.pt", "checkpoint.json"])
@pytest.mark.parametrize("damage", ["cut off", "one bit", "gone"])
def test_a_damaged_one_is_passed_over(name: str, damage: str, tmp_path: Path) -> None:
    _save(tmp_path, 1)
    path = _save(tmp_path, 2) / name
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content[: len(content) // 2] if damage == "cut off" else content)
    assert load_checkpoint(tmp_path).step == 1


@pytest.mark.bad_input
def test_nothing_but_damage_is_refused(tmp_path: Path) -> None:
    (_save(tmp_path, 3) / "state.pt").write_bytes(b"")
    with pytest.raises(
        RunFolderError,
        match=r"must hold a checkpoint that is whole; all are damaged \(step-000000003",
    ):
        load_checkpoint(tmp_path)


class Bomb:
    def __init__(self, fuse: Path) -> None:
        self.fuse = fuse

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.fuse),)


@pytest.mark.bad_input
def test_loading_executes_nothing(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, {"w": torch.ones(1)}, {"bomb": Bomb(tmp_path / "set off")})
    assert path.exists()
    with pytest.raises(RunFolderError, match="all are damaged"):
        load_checkpoint(tmp_path)
    assert not (tmp_path / "set off").exists()


def test_a_full_disk_leaves_the_last_checkpoint_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(tmp_path, 1)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunFolderError, match="must be written; no space left on device"):
            _save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]
    assert load_checkpoint(tmp_path).step == 1
