"""Training into a place that is full, limited or not to be written to: one sentence, and what was saved stays whole."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from protosphere.cli.app import app
from protosphere.recipes import build, catalog
from protosphere.recipes.runner import execute
from protosphere.recipes.schema import with_settings
from protosphere.runs import RunFolder
from protosphere.runs.checkpoints import load_checkpoint

pytestmark = pytest.mark.whole_program
runner = CliRunner()
EPOCHS = 4
SETTINGS = [f"optimization.epochs={EPOCHS}", "evaluate_every=1", "save_every=1"]
ARGUMENTS = [
    "train",
    "digits-nonl",
    "--device",
    "cpu",
    *(word for one in SETTINGS for word in ("--set", one)),
    "--out",
]
COMMAND = [sys.executable, "-m", "protosphere", *ARGUMENTS]

# Two checkpoints of 456 KiB fit, and the third, which is written before the first goes, does not.
SMALL, LARGE = "1200k", "64m"
INSIDE = """
import json, shutil, subprocess, sys
disk, kept, small, large, *command = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={small}", "none", disk], check=True)
def train(*options):
    ran = subprocess.run([*command, f"{disk}/run", *options], capture_output=True, encoding="utf-8")
    shutil.copytree(f"{disk}/run", f"{kept}/{len(seen)}")
    seen.append({"status": ran.returncode, "stdout": ran.stdout, "stderr": ran.stderr})
seen = []
train()
subprocess.run(["mount", "-t", "tmpfs", "-o", f"remount,size={large}", "none", disk], check=True)
train("--resume")
print(json.dumps(seen))
"""


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On a busy machine threads wait for each other longer than such small sums take."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def unshared(tmp_path: Path) -> list[str]:
    """The beginning of a command that sees mounts of its own, which end with it."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare here to mount a small disk with")
    begin = (
        ["unshare", "--mount"]
        if os.geteuid() == 0
        else ["unshare", "--user", "--map-root-user", "--mount"]
    )
    probe = [*begin, "mount", "-t", "tmpfs", "-o", f"size={SMALL}", "none", str(tmp_path)]
    tried = subprocess.run(probe, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"mounting a small disk is not permitted here: {tried.stderr.strip()}")
    return begin


def test_a_full_disk_is_one_sentence_and_freeing_it_lets_the_run_go_on(
    unshared: list[str], tmp_path: Path
) -> None:
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    inside = [sys.executable, "-c", INSIDE, str(disk), str(kept), SMALL, LARGE, *COMMAND]
    ran = subprocess.run([*unshared, *inside], capture_output=True, encoding="utf-8", check=False)
    assert ran.returncode == 0, ran.stderr
    full, resumed = json.loads(ran.stdout)

    assert full["status"] == 1
    sentence = full["stderr"]
    assert sentence.startswith(f"Error: {disk}/run/checkpoints/"), sentence
    assert sentence.endswith(" must be written; no space left on device.\n")
    assert sentence.count("\n") == 1
    saved = load_checkpoint(kept / "0/checkpoints")
    per_epoch = RunFolder(kept / "0").records()[0]["step"]
    assert saved.step == 2 * per_epoch
    assert sorted(path.name for path in (kept / "0/checkpoints").iterdir()) == [
        f"step-{epoch * per_epoch:09d}" for epoch in (1, 2)
    ]

    assert (resumed["status"], resumed["stderr"]) == (0, "")
    assert load_checkpoint(kept / "1/checkpoints").step == EPOCHS * per_epoch
    epochs = [
        record["epoch"] for record in RunFolder(kept / "1").records() if record["kind"] == "train"
    ]
    assert epochs == list(range(1, EPOCHS + 1))


def test_a_limit_of_file_sizes_is_one_sentence_and_earlier_files_stay(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    recipe = with_settings(catalog.recipe("digits-nonl"), SETTINGS)
    list(execute(recipe, run, build.build_source(recipe), stop=lambda: True))
    assert load_checkpoint(run.checkpoints).step == 1
    before = _contents(run.path)

    limit = 100_000  # More than everything but a checkpoint.
    limited = [
        sys.executable,
        "-c",
        "import os, resource, sys; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2); os.execv(sys.argv[2], sys.argv[2:])",
    ]
    ran = subprocess.run(
        [*limited, str(limit), *COMMAND, str(run.path), "--resume"],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert ran.returncode == 1, ran.stdout
    assert ran.stderr.startswith(f"Error: {run.checkpoints}/"), ran.stderr
    assert ran.stderr.endswith(" must be written; file too large.\n")
    assert ran.stderr.count("\n") == 1

    after = _contents(run.path)
    new = {"metrics.jsonl", "geometry.safetensors"}
    assert set(after) - set(before) <= new
    assert {name: content for name, content in after.items() if name not in new} == {
        name: content for name, content in before.items() if name not in new
    }
    assert load_checkpoint(run.checkpoints).step == 1
    assert [record["kind"] for record in run.records()] == ["train", "evaluation"]

    result = runner.invoke(app, [*ARGUMENTS, str(run.path), "--resume"])
    assert result.exit_code == 0, result.output
    assert [record["kind"] for record in run.records()] == ["train", "evaluation"] * EPOCHS


def _contents(folder: Path) -> dict[str, bytes]:
    """Files by name; the lock's holder and the machine are not compared."""
    files = [
        path
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (".lock", "machine.json")
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("kind", ["below a file", "a file", "read-only"])
def test_a_place_that_cannot_be_written_to_is_one_sentence(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    place = {
        "below a file": tmp_path / "file/run",
        "a file": tmp_path / "file",
        "read-only": _unwritable(tmp_path),
    }[kind]
    result = runner.invoke(app, [*ARGUMENTS, str(place)])
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith(f"Error: {place} must be a folder to write to; "), result.stderr
    assert result.stderr.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"


def _unwritable(folder: Path) -> Path:
    """A path that not even root can make."""
    if os.geteuid() == 0:
        return Path("/proc/protosphere-run")
    (folder / "closed").mkdir(mode=0o555)
    return folder / "closed/run"
