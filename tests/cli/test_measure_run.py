"""``protosphere measure RUN``: the features of a run, measured and saved."""

import json
from pathlib import Path
from typing import Any

import pytest

from protosphere.runs import RunFolder
from support.commands import refusal, run_command, set_options

SHORT = [*set_options(schedule__epochs=2), "--device", "cpu"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for loss in ("ce", "nonl"):
        run_command("train", f"digits-{loss}", "--out", folder / loss, *SHORT)
    return folder


def _measure(path: Path, *options: str | Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(run_command("measure", path, "--json", *options))
    return record


def test_the_metrics_are_those_of_training(runs: Path) -> None:
    metrics, logged = _measure(runs / "nonl")["metrics"], RunFolder(runs / "nonl").last_evaluation()
    assert logged is not None
    assert metrics == pytest.approx({name: logged[name] for name in metrics})


def test_the_bias_is_measured_without_normalization(runs: Path) -> None:
    metrics = _measure(runs / "ce", "--space", "raw")["metrics"]
    assert {"bias_spread", "bias_offset"} <= set(metrics)


def test_the_splits_of_a_run(runs: Path) -> None:
    sizes = {split: _measure(runs / "nonl", "--split", split) for split in ("train", "test")}
    assert sizes["train"]["num_samples"] > sizes["test"]["num_samples"]


@pytest.mark.parametrize("space", ["sphere", "raw"])
def test_saved_features_measure_the_same(runs: Path, space: str, tmp_path: Path) -> None:
    file = tmp_path / "features.npz"
    own = _measure(runs / "ce", "--split", "test", "--space", space, "--save", file)
    saved = _measure(file, "--space", space)
    assert saved["metrics"] == pytest.approx(own["metrics"])
    run_command("prototypes", "build", file, "--out", tmp_path / "classifier.safetensors")


@pytest.mark.bad_input
def test_options_that_mean_nothing_here_are_refused(runs: Path, tmp_path: Path) -> None:
    file, new = tmp_path / "features.npz", tmp_path / "new.npz"
    run = runs / "ce"
    run_command("measure", run, "--split", "test", "--save", file)
    for arguments, message in (
        ([run, "--save", file], f"--save must be a new file, or --overwrite be given, got {file}"),
        ([run, "--save", "features.csv"], "--save must be a file that ends in .npz"),
        ([run, "--save", "missing/new.npz"], "--save must be in a folder that exists"),
        ([file, "--save", new], "--save must be given together with a run folder"),
        ([file, "--split", "test"], "--split must be given together with a run folder"),
        ([file, "--set", "data.root=x"], "--set must be given together with a run folder"),
        ([run, "--labels", "y"], "--labels must be given together with a file"),
        ([run, "--split", "validation"], "data.validation_fraction is 0"),
    ):
        assert message in refusal("measure", *arguments)
