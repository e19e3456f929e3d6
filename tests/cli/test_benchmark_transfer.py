"""``protosphere benchmark transfer``: one table of runs and sets, few-shot, refusals."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from protosphere.cli.benchmark_transfer import Classifier, _print_results, _Transferred
from protosphere.evaluation.transfer import CLASSIFIERS
from protosphere.studies.transfer import TransferRow
from support import transfer_trees as trees
from support.commands import refusal, run_command, set_options, usage_error
from support.figures import catch_figures, titles

SHORT = [*set_options(schedule__epochs=1, evaluation__metrics="cheap"), "--device", "cpu"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, an .npz file of digits upside down, and a folder of images of two classes."""
    folder = tmp_path_factory.mktemp("data")
    run_command("train", "digits-ce", "--out", folder / "ce", *SHORT)
    digits = load_digits()
    images = (digits.images[:, ::-1] * (255 / 16)).astype(np.uint8)
    arrays = {"x_train": images[:300], "y_train": digits.target[:300]}
    arrays |= {"x_test": images[300:500], "y_test": digits.target[300:500]}
    np.savez(folder / "turned.npz", **arrays)
    trees.write_folder(folder / "drawn", {"train": {"a": 6, "b": 4}, "test": {"a": 3, "b": 1}})
    return folder


def _transfer(data: Path, *options: object) -> str:
    return run_command("benchmark", "transfer", data / "ce", "--device", "cpu", *options)


def _records(data: Path, *options: object) -> list[dict[str, Any]]:
    (run,) = json.loads(_transfer(data, "--json", *options))["runs"]
    assert (run["recipe"], run["method"], run["paper"]) == ("digits-ce", "ce", {})
    rows: list[dict[str, Any]] = run["rows"]
    return rows


def test_one_table_with_a_column_for_each_set(data: Path) -> None:
    sets = ["--to", data / "turned.npz", "--to", f"pets={data / 'drawn'}", "--c", "0.1", "--c", "1"]
    table = _transfer(data, *sets, "--shots", "1", "--shots", "2,4", "--draws", "3")
    lines = table.splitlines()
    assert lines[0] == "Transfer of frozen features"
    assert lines[1].split() == ["run", "method", "classifier", "turned", "pets", "mean"]
    assert "turned: accuracy in %; pets: mean of the accuracies within each class in %" in lines[-1]
    labels = [re.split(r"\s{2,}", line)[2] for line in lines[2:-1]]
    assert labels == [
        "logistic regression",
        "class means",
        "class means, whitened",
        "20 nearest neighbors",
        "class means, 1 per class",
        "class means, 2 per class",
        "class means, whitened, 2 per class",
        "class means, 4 per class",
        "class means, whitened, 4 per class",
    ]
    rows = _records(data, *sets, "--shots", "1,2,4", "--draws", "3")
    assert [row["target"] for row in rows] == ["turned"] * 9 + ["pets"] * 9
    first = [row for row in rows if row["classifier"] == "logistic"]
    values = [100 * row["value"] for row in first]
    cells = [float(cell) for cell in lines[2].split()[4:]]
    assert cells == pytest.approx([*values, sum(values) / 2], abs=0.051)
    assert all(row["chosen_c"] in (0.1, 1) for row in first)
    few = next(row for row in rows if row["shots"] == 1)
    assert f"{100 * few['value']:.1f} ± {100 * few['std']:.1f}" in lines[6]


def test_transfer_is_drawn(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = catch_figures(monkeypatch)
    path = data / "transfer.svg"
    _transfer(data, "--to", data / "drawn", "--classifier", "knn", "--shots", "1,2", "--plot", path)
    assert titles(figures[path]) == ["20 nearest neighbors", "Few-shot: drawn"]
    (bar,) = figures[path].axes[0].patches
    assert bar.get_height() <= 100


def test_chosen_classifiers_and_no_cache(data: Path) -> None:
    options = ["--to", f"other={data / 'turned.npz'}", "--classifier", "knn", "--no-cache"]
    before = set((data / "ce").rglob("*.safetensors"))
    (row,) = _records(data, *options)
    assert (row["classifier"], row["num_train"], row["num_test"]) == ("knn", 300, 200)
    assert set((data / "ce").rglob("*.safetensors")) == before
    (again,) = _records(data, *options, "--recompute")
    assert again | {"seconds": 0} == row | {"seconds": 0}


def test_a_recipe_is_trained_first_and_transferred_to_its_fine_classes(tmp_path: Path) -> None:
    groups = tmp_path / "groups.json"
    names = list("0123456789")
    groups.write_text(json.dumps({"low": names[:5], "high": names[5:]}))
    (tmp_path / "recipe.yaml").write_text(
        run_command("recipes", "digits-nonl")
        .replace("class_groups: null", f"class_groups: {groups}")
        .replace("name: digits-nonl", "name: coarse")
    )
    options = [
        "--out",
        tmp_path / "runs",
        "--to",
        "fine",
        "--classifier",
        "whitened_class_means",
        *SHORT,
    ]
    output = run_command("benchmark", "transfer", tmp_path / "recipe.yaml", *options)
    assert re.search(r"coarse +nonl +class means, whitened +\d\d\.\d\n", output)
    assert (tmp_path / "runs/coarse/benchmarks/transfer-fine.json").exists()


def test_the_numbers_of_the_paper_stand_below_imagenet_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = TransferRow("cars", "logistic", "top1", 0.3, 0.3, 0.3, 1.0, 1.0, 5, 5, 2)
    run = _Transferred("runs/nonl", "imagenet1k-nonl", "nonl", 9, (row,), {"cars": 38.1})
    _print_results([run], ["cars"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["nonl", "nonl", "logistic", "regression", "30.0"]
    assert lines[3].split() == ["paper", "nonl", "linear", "classifier", "38.1"]


def test_choices_are_the_classifiers() -> None:
    assert tuple(Classifier) == CLASSIFIERS


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "cifar-10"], r"got 'cifar-10' \(did you mean cifar10\?\)"),
        (["--to", "x.npz"], r"x\.npz must be a folder or an \.npz file; it does not exist"),
        (["--to", "cifar10", "--root", "none"], r"cifar10 must be in none, or .*--download"),
        (["--to", "cars", "--download"], r"the official download of Stanford Cars is gone"),
        (["--to", "fine"], r"must have been trained on groups of classes \(data\.class_groups\)"),
        (["--to", "digits", "--to", "digits"], r"another name, got digits twice"),
        (["--to", "digits", "--shots", "1,x"], r"--shots must be whole numbers .* got 1,x"),
        (["--to", "digits", "--shots", "500"], r"shots must be at most 116.* got 500"),
        (["--to", "digits", "--c", "-1"], r"C must be positive numbers.* got \[-1\.0\]"),
    ],
)
def test_wrong_input_is_one_sentence(data: Path, options: list[str], message: str) -> None:
    assert re.search(message, refusal("benchmark", "transfer", data / "ce", *options))


@pytest.mark.bad_input
def test_a_set_must_be_named(data: Path) -> None:
    assert "'--to'" in usage_error("benchmark", "transfer", data / "ce")
    message = usage_error("benchmark", "transfer", data / "ce", "--to", "x", "--classifier", "y")
    assert all(name in message for name in CLASSIFIERS)


@pytest.mark.bad_input
def test_folders_whose_classes_do_not_match_are_refused(data: Path, tmp_path: Path) -> None:
    trees.write_folder(tmp_path, {"train": {"a": 2, "b": 2}, "test": {"a": 1, "c": 1}})
    assert "missing: b" in refusal("benchmark", "transfer", data / "ce", "--to", tmp_path)
