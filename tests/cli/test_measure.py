"""``protosphere measure FILE``: the tables, the JSON, and one line for each mistake."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from protosphere.metrics import measure
from support.clouds import cloud
from support.commands import invoke, refusal, run_command

Arrays = dict[str, np.ndarray]


@pytest.fixture
def content() -> Arrays:
    samples = cloud([20, 20, 20], 8)
    return {
        "features": samples.features,
        "labels": samples.labels,
        "prototypes": samples.prototypes,
    }


def _save(path: Path, content: Arrays) -> Path:
    np.savez(path, **content)  # type: ignore[arg-type]
    return path


def _record(path: Path, *options: str | Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(run_command("measure", path, "--json", *options))
    return record


def test_the_table_has_every_metric(content: Arrays, tmp_path: Path) -> None:
    output = run_command("measure", _save(tmp_path / "f.npz", content), columns=160)
    assert "60 samples of 3 classes in 8 dimensions, normalized to unit length" in output
    metrics = measure(content["features"], content["labels"], content["prototypes"])
    for name, value in metrics.items():
        assert name in output
        assert f"{value:.4g}" in output
    for words in ("at collapse", "attainable", "meaning", "Largest variance: class"):
        assert words in output
    for condition in ("NC1", "NC2", "NC3", "NC4"):
        assert condition in output


def test_labels_may_be_names(content: Arrays, tmp_path: Path) -> None:
    names = np.array(["cat", "ant", "bee"])
    expected = _record(_save(tmp_path / "f.npz", content))
    named = content | {"labels": names[content["labels"]]}
    with_names = _record(_save(tmp_path / "named.npz", named | {"class_names": names}))
    assert with_names["metrics"] == expected["metrics"]
    del named["prototypes"]
    alone = _record(_save(tmp_path / "alone.npz", named | {"labels": named["labels"].astype("S")}))
    assert alone["metrics"]["nc1_ratio"] == pytest.approx(expected["metrics"]["nc1_ratio"])
    # Names from a text file, in its order.
    listing = tmp_path / "names.txt"
    listing.write_text("cat\nant\nbee\n")
    path = _save(tmp_path / "listed.npz", content | {"labels": names[content["labels"]]})
    assert _record(path, "--class-names", listing)["metrics"] == expected["metrics"]
    outputs = [
        run_command("measure", *arguments, columns=160)
        for arguments in ([path, "--class-names", listing], [tmp_path / "named.npz"])
    ]
    lines = [
        [line for line in output.splitlines() if line.startswith("Largest variance: class")]
        for output in outputs
    ]
    assert lines[0] == lines[1] != []


@pytest.mark.bad_input
def test_names_that_fit_no_class_are_refused(content: Arrays, tmp_path: Path) -> None:
    names = np.array(["cat", "ant", "bee"])
    named = content | {"labels": names[content["labels"]]}
    message = refusal("measure", _save(tmp_path / "f.npz", named))
    assert "class_names, in the order of the prototypes, must be in the file or be given" in message
    other = named | {"class_names": np.array(["cat", "ant", "cow"])}
    message = refusal("measure", _save(tmp_path / "f.npz", other))
    assert message == "labels in f.npz must be among the class names, got 'bee'"


@pytest.mark.long
def test_the_measurement_is_drawn(content: Arrays, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "figure.svg"
    path = _save(tmp_path / "f.npz", content | {"class_names": np.array(["ant", "$bee$", "猫"])})
    result = invoke("measure", path, "--plot", plot)
    assert result.stderr.splitlines()[-1] == f"Drew the measurement to {plot}"
    text = plot.read_text(encoding="utf-8")
    for words in ("f.npz: 60 samples of 3 classes in 8 dimensions", "nc1_ratio", "ant", "$bee$"):
        assert f"<!-- {words} -->" in text


def test_the_tables_fit_80_columns(content: Arrays, tmp_path: Path) -> None:
    output = run_command("measure", _save(tmp_path / "f.npz", content), columns=80)
    assert "weight_instance_alignment" in output
    tables = [line for line in output.splitlines() if not line.startswith("Largest variance")]
    assert max(map(len, tables)) <= 80


def test_a_narrow_terminal_gets_sentences(content: Arrays, tmp_path: Path) -> None:
    output = run_command("measure", _save(tmp_path / "f.npz", content), columns=40)
    questions = [verdict["question"] for verdict in _record(tmp_path / "f.npz")["verdicts"]]
    assert all(question in " ".join(output.split()) for question in questions)


def test_what_is_not_computed_is_explained(content: Arrays, tmp_path: Path) -> None:
    del content["prototypes"]
    output = run_command("measure", _save(tmp_path / "[red]f.npz", content))
    assert output.startswith("[red]f.npz: 60 samples")
    text = " ".join(output.split())
    assert "Not computed: weights_effective_rank, nc2_norms_weights" in text
    assert "not measured" in text


@pytest.mark.whole_program
def test_a_terminal_of_another_encoding(content: Arrays, tmp_path: Path) -> None:
    path = _save(tmp_path / "f.npz", content)
    done = subprocess.run(
        [sys.executable, "-m", "protosphere", "measure", str(path)],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "attainable" in done.stdout


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "pt"])
@pytest.mark.parametrize("space", ["sphere", "raw"])
def test_json_has_the_metrics_of_measure(
    content: Arrays, suffix: str, space: Any, tmp_path: Path
) -> None:
    path = tmp_path / f"f.{suffix}"
    bias = np.ones(3, dtype=np.float32)
    tensors = {key: torch.from_numpy(value) for key, value in (content | {"bias": bias}).items()}
    write = {
        "npz": lambda: _save(path, content | {"bias": bias}),
        "safetensors": lambda: save_file(tensors, path),
        "pt": lambda: torch.save(tensors, path),
    }
    write[suffix]()
    record = _record(path, "--space", space)
    expected = measure(*content.values(), space=space, bias=bias if space == "raw" else None)
    assert record["metrics"] == pytest.approx(expected, rel=1e-12)
    assert [verdict["condition"] for verdict in record["verdicts"]] == ["NC1", "NC2", "NC3", "NC4"]
    assert (record["num_samples"], record["num_classes"], record["dim"]) == (60, 3, 8)
    assert ("bias_spread" in record["absent"]) == (space == "sphere")


def test_class_names_selected_metrics_and_present_classes(content: Arrays, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("ant\nbee\ncat\n")
    kept = content["labels"] != 1
    some = {"features": content["features"][kept], "labels": content["labels"][kept]}
    path = _save(tmp_path / "f.npz", some)
    options = ["--classes", "present", "--metrics", "nc1", "--metrics", "nc2_simplex"]
    record = _record(path, "--class-names", names, *options)
    assert set(record["metrics"]) == {"nc1_ratio", "nc1_trace", "cdnv", "nc2_simplex"}
    assert set(record["extremes"]["closest_classes"]) == {"ant", "cat"}


def test_features_of_a_relu_are_recognized(content: Arrays, tmp_path: Path) -> None:
    content["features"] = np.maximum(content["features"], 0)
    assert "never negative" in run_command("measure", _save(tmp_path / "f.npz", content))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.arange(5)}, "labels must hold one class index per sample, shape (60,)"),
        ({"features": np.full((60, 8), np.nan, np.float32)}, "features must be finite"),
        ({"features": np.array(["a"] * 60, dtype=object)}, "pickled objects"),
        ({"features": np.empty((0, 8), np.float32), "labels": np.empty(0, int)}, "(0, 8)"),
        ({"labels": np.arange(60) % 2}, "--classes present"),
        ({"prototypes": np.ones((3, 5), np.float32)}, "(3, 5)"),
        ({"labels": np.array(3)}, "labels must hold one class index per sample, shape (60,)"),
        ({"prototypes": np.array(["a", "b", "c"])}, "prototypes must be"),
        (
            {"class_names": np.array(["a"])},
            "class names must be one per class, 3 in total, got 1",
        ),
        (
            {"class_names": np.array(list("abcd")), "prototypes": np.eye(3, 8, dtype=np.float32)},
            "class names must be one per class, 3 in total, got 4",
        ),
        (
            {"class_names": np.array(list("abc")), "prototypes": np.eye(4, 8, dtype=np.float32)},
            "class names must be one per class, 4 in total, got 3",
        ),
    ],
)
def test_arrays_that_are_refused(
    content: Arrays, change: Arrays, message: str, tmp_path: Path
) -> None:
    path = _save(tmp_path / "f.npz", content | change)
    assert message in refusal("measure", path)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--features", "x"], "its keys are features, labels, prototypes"),
        (["--prototypes", "w"], "its keys are features, labels, prototypes"),
        (["--metrics", "nc7"], "'nc7'"),
        (["--memory", "inf"], "--memory must be a positive number of GiB, got inf"),
        (["--memory", "0"], "--memory must be a positive number of GiB, got 0.0"),
        (
            ["--class-names", "/nowhere"],
            "--class-names must be a readable text file in UTF-8, got /nowhere",
        ),
        (["--device", "cuda:99"], "--device must be a device that is available here"),
    ],
)
def test_options_that_are_refused(
    content: Arrays, options: list[str], message: str, tmp_path: Path
) -> None:
    assert message in refusal("measure", _save(tmp_path / "f.npz", content), *options)


@pytest.mark.bad_input
def test_a_missing_file_is_named() -> None:
    assert "/nowhere/f.npz" in refusal("measure", "/nowhere/f.npz")
