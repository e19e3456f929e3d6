"""The run folder: locked, atomic, readable after any death, refusing what is not its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from protosphere.runs import RunFolder, RunFolderError
from protosphere.storage import write_atomically


def test_a_new_run_and_the_same_again(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.begin("name: a\n")
    run.begin("name: a\n")
    assert run.recipe.read_text() == "name: a\n"


@pytest.mark.bad_input
def test_folders_of_others_are_refused_and_left_alone(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.begin("name: a\n")
    with pytest.raises(RunFolderError, match="must be a run of this recipe; it holds another one"):
        run.begin("name: b\n")
    assert run.recipe.read_text() == "name: a\n"
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_text("meow")
    with pytest.raises(RunFolderError, match=r"must be empty or a run; it holds cat.png"):
        RunFolder(tmp_path / "photos").begin("name: a\n")
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.png"]
    with pytest.raises(RunFolderError, match=r"must hold machine.json; it does not"):
        run.read_json("machine.json")
    (run.path / "machine.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"machine.json in .* must be JSON; it is damaged"):
        run.read_json("machine.json")


@pytest.mark.whole_program
def test_a_folder_in_use_is_locked_and_free_after_any_death(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    program = (
        "import os, signal; from protosphere.runs import RunFolder\n"
        f"with RunFolder({str(tmp_path)!r}).locked():\n"
        "    print(os.getpid(), flush=True); input()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as process:
        holder = process.stdout.readline().strip()
        with (
            pytest.raises(RunFolderError, match=f"must be free; process {holder} is using it"),
            run.locked(),
        ):
            pass
        process.communicate("\n")
    with run.locked():
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_metrics_survive_a_line_that_was_cut_off(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step in range(1, 4):
        run.log({"kind": "train", "step": step, "loss": 1 / step})
        run.log({"kind": "test", "step": step, "accuracy": step})
    with run.metrics.open("a") as file:
        file.write('{"kind": "train", "st')
    assert len(run.records()) == 6
    run.forget_after(2)
    run.log({"kind": "train", "step": 3, "loss": 9.0})
    assert [record["step"] for record in run.records()] == [1, 1, 2, 2, 3]
    run.log({"kind": "train", "step": 3, "loss": 7.0})
    assert run.records()[-1]["loss"] == 7.0
    assert RunFolder(tmp_path / "none").records() == []


def test_json_goes_in_and_out(tmp_path: Path) -> None:
    RunFolder(tmp_path).write_json("facts.json", {"name": "Käfer", "values": [1, 2.5]})
    assert RunFolder(tmp_path).read_json("facts.json") == {"name": "Käfer", "values": [1, 2.5]}
    assert json.loads((tmp_path / "facts.json").read_text()) == {
        "name": "Käfer",
        "values": [1, 2.5],
    }


def test_a_write_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomically(tmp_path / "a", b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match="must be written; no space left on device"):
        write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.whole_program
def test_reading_a_run_needs_no_torch() -> None:
    check = "import sys; from protosphere.runs import RunFolder; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, capture_output=True)
