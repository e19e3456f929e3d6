"""Class names, recipe names, paths and messages with terminal escapes, and formulas in CSV."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protosphere.cli.text import printable_lines
from protosphere.recipes import catalog
from support.commands import invoke, run_command, set_options

EVIL = "cat\x1b[31m\x9b2J\u202e"
ESCAPED = "cat\\x1b[31m\\x9b2J\\u202e"
FORMULA = '=HYPERLINK("x")'


def _is_safe(text: str) -> bool:
    return printable_lines(text) == text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of two classes whose names are hostile, and a run trained on them."""
    root = tmp_path_factory.mktemp("escapes")
    generator = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in (EVIL, FORMULA.replace("/", "")):
            (root / "images" / split / name).mkdir(parents=True)
            for index in range(4):
                pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / "images" / split / name / f"{index}.png")
    recipe = catalog.get_recipe("digits-ce").to_yaml()
    (root / "recipe.yaml").write_text(recipe.replace("name: digits-ce", 'name: "evil\\e[31m"'))
    return root


@pytest.fixture(scope="module")
def training_output(folder: Path) -> str:
    options = set_options(
        data__source="folder",
        data__path=folder / "images",
        data__workers=0,
        schedule__epochs=1,
    )
    out = folder / "run\x1b[31m"
    return run_command("train", folder / "recipe.yaml", "--out", out, "--device", "cpu", *options)


@pytest.fixture(scope="module")
def run(folder: Path, training_output: str) -> Path:
    return folder / "run\x1b[31m"


def test_train_prints_names_and_paths_without_control_characters(training_output: str) -> None:
    assert _is_safe(training_output)
    assert training_output.startswith("evil\\x1b[31m: 8 training images of 2 classes, 1 epoch")
    assert "run\\x1b[31m" in training_output


@pytest.mark.parametrize("command", ["evaluate", "measure"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_evaluate_and_measure_print_no_control_characters(
    run: Path, command: str, options: list[str]
) -> None:
    result = invoke(command, run, "--device", "cpu", *options)
    assert result.exit_code == 0, result.output
    assert _is_safe(result.output)
    assert "cat" in result.output


def test_json_keeps_the_names_as_they_are(run: Path) -> None:
    record = json.loads(run_command("evaluate", run, "--device", "cpu", "--json"))
    (pair, *_) = record["confused_pairs"]
    assert {pair["class"], pair["predicted"]} == {EVIL, FORMULA}


def test_csv_of_the_classes_has_no_control_characters_and_no_formulas(
    run: Path, tmp_path: Path
) -> None:
    run_command("evaluate", run, "--device", "cpu", "--csv", tmp_path / "classes.csv")
    text = (tmp_path / "classes.csv").read_text(encoding="utf-8")
    assert _is_safe(text)
    names = {row["class"] for row in csv.DictReader(io.StringIO(text))}
    assert names == {ESCAPED, f"'{FORMULA}"}


def test_predict_prints_no_control_characters_and_no_formulas(run: Path, folder: Path) -> None:
    (folder / "images/val" / EVIL / "=a.png").write_bytes(b"broken")
    images = folder / "images/val"
    result = invoke("predict", run, images, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert _is_safe(result.output)
    classes = {row["class"] for row in csv.DictReader(io.StringIO(result.stdout))}
    assert classes <= {ESCAPED, f"'{FORMULA}"}
    lines = run_command("predict", run, images, "--device", "cpu", "--format", "json")
    assert _is_safe(lines)
    records = [json.loads(line) for line in lines.splitlines()]
    assert {record["class"] for record in records} <= {EVIL, FORMULA}
    assert Path(records[0]["image"]).exists()


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@sum", "\tx", "\rx", EVIL])
def test_prototypes_print_no_control_characters_and_no_formulas(name: str, tmp_path: Path) -> None:
    features = np.eye(4, dtype=np.float32)
    labels, saved = np.array(["zebra", name, "zebra", name]), tmp_path / "c.safetensors"
    np.savez(tmp_path / "f.npz", features=features, labels=labels)
    np.savez(tmp_path / "new.npz", features=-features)
    run_command("prototypes", "build", tmp_path / "f.npz", "--out", saved)
    command = ["prototypes", "predict", saved, tmp_path / "f.npz"]
    output = run_command(*command)
    assert _is_safe(output)
    row = list(csv.DictReader(io.StringIO(output)))[1]
    expected = ESCAPED if name == EVIL else "'" + name.replace("\t", "\\t").replace("\r", "\\r")
    assert row["class"] == expected
    assert float(row["rejection_score"]) < 0, "numbers are no formulas"
    record = json.loads(run_command(*command, "--format", "json"))
    assert record["predictions"][1]["class"] == name
    new = tmp_path / "new.npz"
    added = invoke("prototypes", "add", "--predict", new, "--", saved, f"{name}2", new)
    assert added.exit_code == 0, added.output
    assert _is_safe(added.output)
    assert expected in added.stdout
    removed = run_command("prototypes", "remove", "--", saved, f"{name}2")
    assert _is_safe(removed)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "arguments",
    [
        ["train", EVIL, "--out", "x"],
        ["train", "digits-ce", "--out", "x", "--set", f"{EVIL}=1"],
        ["recipes", EVIL],
        ["evaluate", EVIL],
        ["measure", EVIL],
        ["predict", EVIL, EVIL],
        ["prototypes", "score", EVIL, EVIL],
        ["prototypes", "build", "x", "--out", EVIL],
        ["trian", EVIL],
        [EVIL],
        ["evaluate", "x", "--split", EVIL],
        ["evaluate", "x", f"--{EVIL}"],
    ],
)
def test_refusals_print_no_control_characters(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code in (1, 2)
    assert _is_safe(result.output)
