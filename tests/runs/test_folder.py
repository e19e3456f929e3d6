"""Run folders: locked, atomic, readable after a kill, and never mixed with other files."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protosphere.runs import RunFolder, RunFolderError, find_run_folders
from protosphere.runs.folder import RunFolderInUseError
from protosphere.storage import StorageError


def test_a_run_is_started_twice_with_the_same_recipe(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.start("name: a\n")
    run.start("name: a\n")
    assert run.recipe.read_text() == "name: a\n"


def test_a_run_without_records_and_checkpoints_accepts_another_recipe(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.start("name: a\n")
    run.write_json("machine.json", {})
    run.start("name: b\n")
    assert run.recipe.read_text() == "name: b\n"
    run.log({"kind": "train", "step": 1})
    with pytest.raises(RunFolderError, match="holds a run of another recipe"):
        run.start("name: c\n")


@pytest.mark.bad_input
def test_another_recipe_is_refused_with_the_difference(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.start("name: a\n")
    with pytest.raises(RunFolderError, match="holds a run of another recipe: the texts differ"):
        run.start("name: b\n")

    def compare(stored: str, given: str) -> str:
        return f"{stored.strip()} against {given}"

    # Training cannot start from weights that were never saved.
    difference = "another recipe: name: a against name: b; "
    message = f"{difference}it has no checkpoint: remove the folder, or choose another one"
    with pytest.raises(RunFolderError, match=message):
        run.start("name: b", compare=compare)
    (run.checkpoints / "step-000000001").mkdir(parents=True)
    message = f"{difference}.* --init-from .* starts new training"
    with pytest.raises(RunFolderError, match=message):
        run.start("name: b", compare=compare)
    run.start("name: b\n", compare=lambda stored, given: None)
    assert run.recipe.read_text() == "name: a\n"


@pytest.mark.bad_input
def test_a_folder_with_other_files_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_text("meow")
    run = RunFolder(tmp_path)
    with pytest.raises(RunFolderError, match=r"empty or a run folder, but it contains cat\.png"):
        run.start("name: a\n")
    with pytest.raises(RunFolderError, match=r"contains cat\.png"), run.lock():
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["cat.png"]


def test_a_recipe_that_was_half_written_does_not_count_as_another_file(tmp_path: Path) -> None:
    (tmp_path / ".recipe.yaml.part").write_text("na")
    run = RunFolder(tmp_path)
    with run.lock():
        run.start("name: a\n")
    assert run.recipe.read_text() == "name: a\n"


@pytest.mark.bad_input
def test_what_is_no_folder_of_runs_is_named(tmp_path: Path) -> None:
    (tmp_path / "try.sh").write_text("#!/bin/sh\n")
    for name, message in (
        ("try.sh", r"try\.sh must be a run folder; it is a file"),
        ("nowhere", "nowhere must be a run folder; it does not exist"),
        ("", "is not a run folder and contains none"),
    ):
        with pytest.raises(RunFolderError, match=message):
            find_run_folders(tmp_path / name)


@pytest.mark.bad_input
def test_json_that_is_missing_or_damaged_is_refused(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with pytest.raises(RunFolderError, match=r"has no machine\.json"):
        run.read_json("machine.json")
    for content in (b"{", b'{"name": "\xff"}'):
        (tmp_path / "machine.json").write_bytes(content)
        with pytest.raises(RunFolderError, match=r"machine\.json is damaged: it is not JSON"):
            run.read_json("machine.json")
    (tmp_path / "data.json").mkdir()
    with pytest.raises(RunFolderError, match=r"cannot read .*data\.json: is a directory"):
        run.read_json("data.json")


def test_json_is_read_as_it_was_written(tmp_path: Path) -> None:
    content = {"name": "Käfer", "values": [1, 2.5]}
    RunFolder(tmp_path).write_json("content.json", content)
    assert RunFolder(tmp_path).read_json("content.json") == content
    assert json.loads((tmp_path / "content.json").read_text(encoding="utf-8")) == content


@pytest.mark.whole_program
def test_a_lock_ends_when_its_process_is_killed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    program = (
        "import os, signal; from protosphere.runs import RunFolder\n"
        f"with RunFolder({str(tmp_path)!r}).lock():\n"
        "    print(os.getpid(), flush=True); input()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        holder = process.stdout.readline().strip()
        with pytest.raises(RunFolderError, match=f"is in use by process {holder}"), run.lock():
            pass
        process.communicate("\n")
    with run.lock():
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_a_run_that_another_process_starts_meanwhile_is_in_use_and_not_foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterdir = Path.iterdir

    def start_other(path: Path) -> Iterator[Path]:
        other.write_recipe("name: a\n")
        return iterdir(path)

    other = RunFolder(tmp_path)
    with other.lock():
        monkeypatch.setattr(Path, "iterdir", start_other)
        with pytest.raises(RunFolderInUseError), RunFolder(tmp_path).lock():
            pass


@pytest.mark.bad_input
def test_a_folder_that_cannot_be_created_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(StorageError, match=f"cannot create {path}: "), RunFolder(path).lock():
            pass
        with pytest.raises(StorageError, match=f"cannot create {path}: "):
            RunFolder(path).start("name: a\n")
    assert (tmp_path / "file").read_text() == "mine"


def test_incomplete_lines_and_repeated_steps_are_read_once(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step in range(1, 4):
        run.log({"kind": "train", "step": step, "loss": 1 / step})
        run.log({"kind": "evaluation", "step": step, "accuracy": step})
    with run.metrics.open("a") as file:
        file.write('{"kind": "train", "st')
    assert len(run.records()) == 6
    run.discard_records_after(2)
    run.log({"kind": "train", "step": 3, "loss": 9.0})
    assert [record["step"] for record in run.records()] == [1, 1, 2, 2, 3]
    run.log({"kind": "train", "step": 3, "loss": 7.0})
    assert run.records()[-1]["loss"] == 7.0
    assert RunFolder(tmp_path / "none").records() == []


def test_the_last_evaluation_is_found_between_other_records(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.last_evaluation() is None
    run.log({"kind": "train", "step": 1})
    assert run.last_evaluation() is None
    for step in (1, 2):
        run.log({"kind": "evaluation", "step": step, "split": "validation", "accuracy": 0.5})
    run.log({"kind": "train", "step": 3})
    assert run.last_evaluation() == {
        "kind": "evaluation",
        "step": 2,
        "split": "validation",
        "accuracy": 0.5,
    }


def test_missing_metrics_of_a_resumed_run_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunFolder(tmp_path)
    with caplog.at_level(logging.WARNING, logger="protosphere"):
        run.discard_records_after(0)
        assert caplog.messages == [], "a new run has no metrics yet"
        run.discard_records_after(40)
        assert caplog.messages == [], "an empty file is not a missing one"
        run.metrics.unlink()
        run.discard_records_after(40)
    assert caplog.messages == [
        f"metrics.jsonl is missing in {tmp_path}: the records up to step 40 are lost"
    ]
    assert caplog.records[0].name == "protosphere"
    assert run.records() == []


def test_a_full_disk_is_a_storage_error_and_keeps_earlier_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path)
    run.start("name: a\n")
    run.log({"kind": "train", "step": 1})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    writes: list[tuple[Callable[[], None], str]] = [
        (lambda: run.log({"kind": "train", "step": 1}), "metrics.jsonl"),
        (lambda: run.discard_records_after(0), "metrics.jsonl"),
        (lambda: run.write_recipe("name: b\n"), "recipe.yaml"),
        (lambda: run.write_json("data.json", {}), "data.json"),
    ]
    for write, name in writes:
        with pytest.raises(
            StorageError, match=f"cannot write {tmp_path / name}: no space left on device"
        ):
            write()
    assert run.recipe.read_text() == "name: a\n"
    assert [record["step"] for record in run.records()] == [1]
    assert not (tmp_path / "data.json").exists()
