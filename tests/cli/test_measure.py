"""``protosphere measure``: the table, the JSON, and one sentence for everything that is wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from protosphere.cli.app import app
from protosphere.metrics import measure
from support.clouds import cloud

runner = CliRunner()


@pytest.fixture
def content() -> dict[str, np.ndarray]:
    samples = cloud([20, 20, 20], 8)
    return {
        "features": samples.features,
        "labels": samples.labels,
        "prototypes": samples.prototypes,
    }


def _file(path: Path, content: dict[str, np.ndarray]) -> str:
    np.savez(path, **content)
    return str(path)


def test_the_table(content, tmp_path: Path) -> None:
    result = runner.invoke(
        app, ["measure", _file(tmp_path / "f.npz", content)], env={"COLUMNS": "160"}
    )
    assert result.exit_code == 0
    assert "60 samples of 3 classes in 8 dimensions, on the unit sphere" in result.output
    found = measure(content["features"], content["labels"], content["prototypes"])
    for name, value in found.items():
        assert name in result.output
        assert f"{value:.4g}" in result.output
    for words in (
        "Does each class gather at one point?",
        "at collapse",
        "attainable",
        "Most spread: class",
    ):
        assert words in result.output
    for condition in ("NC1", "NC2", "NC3", "NC4"):
        assert condition in result.output


def test_it_fits_a_narrow_terminal(content, tmp_path: Path) -> None:
    result = runner.invoke(
        app, ["measure", _file(tmp_path / "f.npz", content)], env={"COLUMNS": "80"}
    )
    assert result.exit_code == 0
    assert "weight_instance_alignment" in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_the_narrowest_terminal_gets_sentences(content, tmp_path: Path) -> None:
    result = runner.invoke(
        app, ["measure", _file(tmp_path / "f.npz", content)], env={"COLUMNS": "40"}
    )
    assert result.exit_code == 0
    assert "Does each class gather at one" in " ".join(result.output.split())


def test_what_is_absent_is_explained(content, tmp_path: Path) -> None:
    del content["prototypes"]
    result = runner.invoke(app, ["measure", _file(tmp_path / "[red]f.npz", content)])
    assert result.output.startswith("[red]f.npz: 60 samples")
    printed = " ".join(result.output.split())
    assert "weights_effective_rank, nc2_norms_weights" in printed
    assert ": it needs prototypes; none were given." in printed
    assert "not measured" in printed


@pytest.mark.whole_program
def test_a_terminal_of_another_encoding(content, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "protosphere", "measure", _file(tmp_path / "f.npz", content)]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "stand" in done.stdout


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "pt"])
@pytest.mark.parametrize("space", ["sphere", "raw"])
def test_json_has_the_numbers_of_measure(content, suffix: str, space: str, tmp_path: Path) -> None:
    path = tmp_path / f"f.{suffix}"
    content["bias"] = np.ones(3, dtype=np.float32)
    tensors = {key: torch.from_numpy(value) for key, value in content.items()}
    {"npz": lambda: np.savez(path, **content), "safetensors": lambda: save_file(tensors, path)}.get(
        suffix, lambda: torch.save(tensors, path)
    )()
    result = runner.invoke(app, ["measure", str(path), "--json", "--space", space])
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    expected = measure(
        *list(content.values())[:3], space=space, bias=content["bias"] if space == "raw" else None
    )
    assert record["metrics"] == pytest.approx(expected, rel=1e-12)
    assert [verdict["condition"] for verdict in record["verdicts"]] == ["NC1", "NC2", "NC3", "NC4"]
    assert record["samples"] == 60
    assert ("bias_spread" in record["absent"]) == (space == "sphere")


def test_names_selection_and_present_classes(content, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("ant\nbee\ncat\n")
    kept = content["labels"] != 1
    some = {"features": content["features"][kept], "labels": content["labels"][kept]}
    arguments = ["measure", _file(tmp_path / "f.npz", some), "--json"]
    arguments += [
        "--class-names",
        str(names),
        "--classes",
        "present",
        "--metrics",
        "nc1",
        "--metrics",
        "nc2_simplex",
    ]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert set(record["metrics"]) == {"nc1_ratio", "nc1_trace", "cdnv", "nc2_simplex"}
    assert set(record["extremes"]["nearest"]) == {"ant", "cat"}


def test_features_of_a_relu_are_recognized(content, tmp_path: Path) -> None:
    content["features"] = np.maximum(content["features"], 0)
    result = runner.invoke(app, ["measure", _file(tmp_path / "f.npz", content)])
    assert "never negative" in result.output


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            {"labels": np.arange(5)},
            [],
            "labels must hold one class index per sample, shape (60,); got (5,) of int64.",
        ),
        (
            {"features": np.full((60, 8), np.nan, dtype=np.float32)},
            [],
            "features must be finite; sample",
        ),
        (
            {"features": np.array(["a"] * 60, dtype=object)},
            [],
            "it holds pickled objects, not read.",
        ),
        (
            {"features": np.empty((0, 8), np.float32), "labels": np.empty(0, int)},
            [],
            "with samples; got (0, 8)",
        ),
        (
            {"labels": np.arange(60) % 2},
            [],
            "every class must have a sample, or --classes present leave it out; class 2 has",
        ),
        (
            {"prototypes": np.ones((3, 5), np.float32)},
            [],
            "prototypes must be a matrix (classes, 8); got (3, 5).",
        ),
        ({}, ["--features", "x"], "its keys are features, labels, prototypes."),
        ({}, ["--space", "cube"], "--space must be sphere or raw; got cube."),
        ({}, ["--classes", "few"], "--classes must be all or present; got few."),
        ({}, ["--metrics", "nc7"], "got 'nc7'."),
        (
            {},
            ["--device", "warp"],
            "--device must be one that computes here, such as cpu; warp does not.",
        ),
        (
            {},
            ["--prototypes", "w"],
            "must hold prototypes under the key 'w'; its keys are features, labels, prototypes.",
        ),
        (
            {"labels": np.array(3)},
            [],
            "labels must hold one class index per sample, shape (60,); got () of int64.",
        ),
        (
            {"prototypes": np.array(["a", "b", "c"])},
            [],
            "prototypes must be floating numbers; got <U1.",
        ),
        ({"class_names": np.array(["a"])}, [], "class names must be one a class, 3; got 1."),
        ({}, ["--memory", "inf"], "--memory must be a positive number of GiB; got inf."),
        ({}, ["--device", "meta"], "meta does not."),
        (
            {},
            ["--class-names", "/nowhere"],
            "--class-names must be a text file that can be read; /nowhere cannot.",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    content, change, options, message, tmp_path: Path
) -> None:
    result = runner.invoke(app, ["measure", _file(tmp_path / "f.npz", content | change), *options])
    assert result.exit_code == 1
    assert result.stdout == ""
    said = result.stderr.strip()
    assert said.startswith("Error: ")
    assert message in said
    assert "\n" not in said


@pytest.mark.bad_input
def test_a_missing_file() -> None:
    result = runner.invoke(app, ["measure", "/nowhere/f.npz"])
    assert result.exit_code == 1
    assert result.stderr.strip() == "Error: /nowhere/f.npz must be a file; there is none."
