"""Training on a full, limited or read-only disk: one sentence, and checkpoints stay intact."""

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
from protosphere.recipes.build import load_dataset
from protosphere.recipes.catalog import get_recipe
from protosphere.recipes.runner import run_recipe
from protosphere.recipes.schema import apply_overrides
from protosphere.runs import RunFolder
from protosphere.runs.checkpoints import Checkpoint, load_checkpoint

pytestmark = pytest.mark.whole_program
runner = CliRunner()
EPOCHS = 4
OVERRIDES = [f"schedule.epochs={EPOCHS}", "evaluation.every=1", "checkpoint.every=1"]
ARGUMENTS = [
    "train",
    "digits-nonl",
    "--device",
    "cpu",
    *(word for override in OVERRIDES for word in ("--set", override)),
    "--out",
]
COMMAND = [sys.executable, "-m", "protosphere", *ARGUMENTS]

# Two checkpoints of 456 KiB fit; the third, written before the first is removed, does not.
SMALL, LARGE = "1200k", "64m"
# Runs in its own mount namespace: train on a small disk, copy the run folder, enlarge the disk,
# resume, copy again. Prints the statuses and outputs.
SCRIPT = """
import json, shutil, subprocess, sys
disk, copies, small, large, *command = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={small}", "none", disk], check=True)
results = []
def train(*options):
    result = subprocess.run(
        [*command, f"{disk}/run", *options], capture_output=True, encoding="utf-8"
    )
    shutil.copytree(f"{disk}/run", f"{copies}/{len(results)}")
    results.append(
        {"status": result.returncode, "stdout": result.stdout, "stderr": result.stderr}
    )
train()
subprocess.run(["mount", "-t", "tmpfs", "-o", f"remount,size={large}", "none", disk], check=True)
train("--resume")
print(json.dumps(results))
"""


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On a busy machine, waiting for threads takes longer than these small computations."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _load(folder: Path) -> Checkpoint:
    checkpoint = load_checkpoint(folder)
    assert checkpoint is not None
    return checkpoint


@pytest.fixture
def unshare(tmp_path: Path) -> list[str]:
    """The start of a command with its own mounts, which end with it."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare to mount a small disk")
    command = (
        ["unshare", "--mount"]
        if os.geteuid() == 0
        else ["unshare", "--user", "--map-root-user", "--mount"]
    )
    mount = [*command, "mount", "-t", "tmpfs", "-o", f"size={SMALL}", "none", str(tmp_path)]
    result = subprocess.run(mount, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        pytest.skip(f"mounting a small disk is not permitted here: {result.stderr.strip()}")
    return command


def test_a_full_disk_is_one_sentence_and_the_run_resumes_with_more_space(
    unshare: list[str], tmp_path: Path
) -> None:
    disk, copies = tmp_path / "disk", tmp_path / "copies"
    disk.mkdir()
    copies.mkdir()
    script = [sys.executable, "-c", SCRIPT, str(disk), str(copies), SMALL, LARGE, *COMMAND]
    result = subprocess.run([*unshare, *script], capture_output=True, encoding="utf-8", check=False)
    assert result.returncode == 0, result.stderr
    full, resumed = json.loads(result.stdout)

    assert full["status"] == 1
    sentence = full["stderr"]
    assert sentence.startswith(f"Error: cannot write {disk}/run/checkpoints/"), sentence
    assert sentence.endswith(": no space left on device\n")
    assert sentence.count("\n") == 1
    steps_per_epoch = RunFolder(copies / "0").records()[0]["step"]
    assert _load(copies / "0/checkpoints").step == 2 * steps_per_epoch
    assert sorted(path.name for path in (copies / "0/checkpoints").iterdir()) == [
        f"step-{epoch * steps_per_epoch:09d}" for epoch in (1, 2)
    ]

    assert (resumed["status"], resumed["stderr"]) == (0, "")
    assert _load(copies / "1/checkpoints").step == EPOCHS * steps_per_epoch
    records = RunFolder(copies / "1").records()
    epochs = [record["epoch"] for record in records if record["kind"] == "train"]
    assert epochs == list(range(1, EPOCHS + 1))


def test_a_limit_of_the_file_size_is_one_sentence_and_earlier_files_stay(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    recipe = apply_overrides(get_recipe("digits-nonl"), OVERRIDES)
    list(run_recipe(recipe, run, load_dataset(recipe), should_stop=lambda: True))
    assert _load(run.checkpoints).step == 1
    before = _contents(run.path)

    limit = 100_000  # More than every file but the weights of a checkpoint.
    limited = [
        sys.executable,
        "-c",
        "import os, resource, sys; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2); "
        "os.execv(sys.argv[2], sys.argv[2:])",
    ]
    result = subprocess.run(
        [*limited, str(limit), *COMMAND, str(run.path), "--resume"],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert result.returncode == 1, result.stdout
    assert result.stderr.startswith(f"Error: cannot write {run.checkpoints}/"), result.stderr
    assert result.stderr.endswith(": file too large\n")
    assert result.stderr.count("\n") == 1

    after = _contents(run.path)
    new = {"metrics.jsonl", "geometry.safetensors"}
    assert set(after) - set(before) <= new
    assert {name: content for name, content in after.items() if name not in new} == {
        name: content for name, content in before.items() if name not in new
    }
    assert _load(run.checkpoints).step == 1
    assert [record["kind"] for record in run.records()] == ["train", "evaluation"]

    resumed = runner.invoke(app, [*ARGUMENTS, str(run.path), "--resume"])
    assert resumed.exit_code == 0, resumed.output
    assert [record["kind"] for record in run.records()] == ["train", "evaluation"] * EPOCHS


def _contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a run by name, without the lock and the description of the machine."""
    files = [
        path
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (".lock", "machine.json")
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("kind", ["below a file", "a file", "read-only"])
def test_a_path_that_cannot_be_written_is_one_sentence(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    path = {
        "below a file": tmp_path / "file/run",
        "a file": tmp_path / "file",
        "read-only": _read_only_path(tmp_path),
    }[kind]
    result = runner.invoke(app, [*ARGUMENTS, str(path)])
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith(f"Error: cannot create {path}: "), result.stderr
    assert result.stderr.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"


def _read_only_path(folder: Path) -> Path:
    """Return a path that not even root can create."""
    if os.geteuid() == 0:
        return Path("/proc/protosphere-run")
    (folder / "closed").mkdir(mode=0o555)
    return folder / "closed/run"
