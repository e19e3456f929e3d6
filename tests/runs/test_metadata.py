"""Metadata of a run: written, read back, and compared with the data that come later."""

import dataclasses
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from protosphere import __version__
from protosphere.runs import RunFolder, RunFolderError
from protosphere.runs import metadata as run_metadata
from protosphere.runs.metadata import (
    DataMetadata,
    check_class_names,
    check_fingerprints,
    machine,
    read_class_names,
    source_commit,
    write_class_names,
)

METADATA = DataMetadata(
    num_train=100,
    num_eval=20,
    split="validation",
    train_fingerprint="abc",
    eval_fingerprint="def",
    channels=3,
    mean=(0.5, 0.25, 0.125),
    std=(1.0, 0.5, 0.25),
    evaluation_crop="center",
    class_counts=(3, 1, 4),
)


def test_data_metadata_are_read_as_they_were_written(tmp_path: Path) -> None:
    METADATA.write(RunFolder(tmp_path))
    assert DataMetadata.read(RunFolder(tmp_path)) == METADATA
    assert (tmp_path / "data.json").exists()


@pytest.mark.bad_input
@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(DataMetadata)])
def test_an_entry_that_is_missing_or_wrong_is_named(name: str, tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    content: dict[str, Any] = dataclasses.asdict(METADATA)
    del content[name]
    run.write_json("data.json", content)
    values: list[Any] = [{}, [1, "x"]]
    if name in ("class_counts", "in_memory"):  # Runs of version 0.2.0 do not have it.
        assert getattr(DataMetadata.read(run), name) is None
    else:
        values.append(None)
        with pytest.raises(RunFolderError, match=rf"data\.json has no entry '{name}'"):
            DataMetadata.read(run)
    for value in values:
        run.write_json("data.json", content | {name: value})
        with pytest.raises(RunFolderError, match=rf"data\.json has an invalid '{name}': "):
            DataMetadata.read(run)
    run.write_json("data.json", [])
    with pytest.raises(RunFolderError, match=r"data\.json must be a mapping"):
        DataMetadata.read(run)


def test_class_names_keep_their_order(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    write_class_names(run, ["Käfer", "ant"])
    assert read_class_names(run) == ["Käfer", "ant"]
    check_class_names(run, ("Käfer", "ant"))


@pytest.mark.bad_input
def test_other_classes_are_refused(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    write_class_names(run, ["bee", "ant"])
    for names in (["ant", "bee"], ["bee"], ["bee", "ant", "fly"]):
        with pytest.raises(RunFolderError, match="other classes or another order"):
            check_class_names(run, names)
    for content in ({"bee": 0}, ["bee", 1]):
        run.write_json("classes.json", content)
        with pytest.raises(RunFolderError, match=r"classes\.json must be a list of class names"):
            read_class_names(run)


def test_fingerprints_are_compared_with_those_of_the_run(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    METADATA.write(run)
    check_fingerprints(run, train="abc", eval="def")
    check_fingerprints(run, train="abc")
    check_fingerprints(run, eval="def")
    with pytest.raises(RunFolderError, match="trained on other training images than those given"):
        check_fingerprints(run, train="def", eval="def")
    with pytest.raises(RunFolderError, match="other validation images than those given"):
        check_fingerprints(run, train="abc", eval="abc")


def test_the_machine_is_described_with_its_versions() -> None:
    content = machine("NVIDIA H100")
    assert content["device"] == "NVIDIA H100"
    assert content["python"] == platform.python_version()
    assert content["versions"]["protosphere"] == __version__
    assert content["versions"]["torch"] == metadata.version("torch")


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert machine("cpu")["versions"]["timm"] is None


def test_the_commit_is_that_of_the_environment_or_of_the_repository_of_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GIT_COMMIT", "0123456789ab")
    assert source_commit() == machine("cpu")["commit"] == "0123456789ab"
    monkeypatch.delenv("GIT_COMMIT")
    package = tmp_path / "site-packages" / "metadata.py"
    package.parent.mkdir()
    package.write_text("")
    _git(tmp_path, "init", "--quiet")
    monkeypatch.setattr(run_metadata, "__file__", str(package))
    run_metadata._git_commit.cache_clear()
    assert source_commit() is None, "another project's repository"
    _git(tmp_path, "add", "site-packages")
    _git(tmp_path, "-c", "user.name=x", "-c", "user.email=x", "commit", "--quiet", "-m", "x")
    run_metadata._git_commit.cache_clear()
    head = _git(tmp_path, "rev-parse", "--short=12", "HEAD")
    assert source_commit() == head
    package.write_text("changed = True")
    run_metadata._git_commit.cache_clear()
    assert source_commit() == f"{head}-dirty"
    run_metadata._git_commit.cache_clear()


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()
