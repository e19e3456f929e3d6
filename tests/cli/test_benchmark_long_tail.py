"""``protosphere benchmark long-tail`` and ``label-noise`` on digits, end to end."""

import json
from pathlib import Path

import pytest

from protosphere.runs.results import read_result
from protosphere.studies.label_noise import LabelNoiseRow
from protosphere.studies.long_tail import LongTailRow
from support.commands import refusal, run_command, set_options, usage_error
from support.figures import catch_figures, legend_texts, titles
from support.images import write_image

QUICK = set_options(schedule__epochs=1, evaluation__metrics="cheap")
NOISE = set_options(data__label_noise="{name: asymmetric, fraction: 0.3}")
TAIL = set_options(data__long_tail=0.05)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two recipes with a long tail and label noise."""
    root = tmp_path_factory.mktemp("runs")
    targets = ("digits-ce", "digits-nonl")
    run_command("benchmark", "long-tail", *targets, "--out", root, *QUICK, *NOISE, *TAIL)
    return root


def test_recipes_are_trained_and_runs_are_measured(runs: Path) -> None:
    targets = runs / "digits-ce", runs / "digits-nonl"
    text = run_command("benchmark", "long-tail", *targets)
    lines = text.splitlines()
    header = next(line for line in lines if line.startswith("run"))
    columns = ["run", "method", "ratio", "classifier", "all", "many", "medium", "few"]
    assert header.split() == [*columns, "NLL", "ECE", "%"]
    assert sum(line.startswith("digits-ce ") for line in lines) == 5
    assert sum(line.startswith("digits-nonl ") for line in lines) == 5
    result = read_result(runs / "digits-ce" / "benchmarks" / "long_tail.json", LongTailRow)
    (head,) = [row for row in result.rows if (row.classifier, row.group) == ("head", "all")]
    line = next(line for line in lines if line.startswith("digits-ce "))
    assert line.split()[:5] == ["digits-ce", "ce", "0.05", "head", f"{100 * head.accuracy:.1f}"]
    assert len({len(line) for line in lines if line.startswith("digits")}) == 1


def test_json_has_every_class(runs: Path) -> None:
    text = run_command("benchmark", "long-tail", runs / "digits-nonl", "--json")
    (run,) = json.loads(text)["runs"]
    assert (run["recipe"], run["method"], run["ratio"]) == ("digits-nonl", "nonl", 0.05)
    assert run["paper"] is None
    classes = [row["class_name"] for row in run["rows"] if row["classifier"] == "head"]
    assert [name for name in classes if name is not None] == [str(digit) for digit in range(10)]


def test_the_factor_of_the_adjustment_is_kept(runs: Path) -> None:
    path = runs / "digits-ce" / "benchmarks" / "long_tail.json"
    before = path.read_bytes()
    run_command("benchmark", "long-tail", runs / "digits-ce", "--logit-adjustment", 0.5)
    assert read_result(path, LongTailRow).settings["logit_adjustment"] == 0.5
    run_command("benchmark", "long-tail", runs / "digits-ce")
    assert path.read_bytes() == before


def test_label_noise_has_one_line_per_run(runs: Path) -> None:
    targets = runs / "digits-ce", runs / "digits-nonl"
    lines = run_command("benchmark", "label-noise", *targets).splitlines()
    rows = [line for line in lines if line.startswith("digits-")]
    assert [row.split()[:2] for row in rows] == [["digits-ce", "ce"], ["digits-nonl", "nonl"]]
    result = read_result(runs / "digits-ce" / "benchmarks" / "label_noise.json", LabelNoiseRow)
    head = result.rows[0]
    assert rows[0].split()[2:5] == ["asymmetric", "30%", f"{100 * head.accuracy:.1f}"]
    text = run_command("benchmark", "label-noise", *targets, "--json")
    first = json.loads(text)["runs"][0]["rows"][0]
    assert first["memorized"] == head.memorized
    assert first["num_wrong"] == head.num_wrong


def test_tails_and_noise_are_drawn(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = catch_figures(monkeypatch)
    targets = runs / "digits-ce", runs / "digits-nonl"
    for name in ("long-tail", "label-noise"):
        run_command("benchmark", name, *targets, "--plot", runs / f"{name}.png")
    tail, noise = figures.values()
    assert titles(tail)[0] == "head"
    assert titles(tail)[-1] == "By class size, head"
    assert legend_texts(tail) == ["digits-ce", "digits-nonl"]
    assert "Training images with a wrong label" in titles(noise)
    assert legend_texts(noise) == ["digits-ce", "digits-nonl"]


@pytest.mark.bad_input
def test_recipes_without_tail_or_noise_are_refused_before_training(tmp_path: Path) -> None:
    out = tmp_path / "out"
    message = refusal("benchmark", "long-tail", "digits-ce", "--out", out)
    assert message.startswith("the classes of digits-ce must be of different size: all have 116")
    message = refusal("benchmark", "label-noise", "digits-ce", "--out", out)
    assert message.startswith("digits-ce must be trained with label noise (data.label_noise);")
    assert not out.exists()


@pytest.mark.bad_input
def test_other_wrong_input(runs: Path, tmp_path: Path) -> None:
    message = refusal(
        "benchmark", "long-tail", "digits-ce", *set_options(data__long_tail=2), "--out", tmp_path
    )
    assert message == "data.long_tail must be at most 1, got 2"
    message = refusal("benchmark", "long-tail", runs / "digits-ce", *set_options(data__long_tail=1))
    assert "must not change what was trained: data.long_tail is 0.05 there and 1" in message
    message = refusal("benchmark", "long-tail", runs / "digits-ce", "--logit-adjustment", 0)
    assert message == "logit_adjustment must be a positive number, got 0.0"
    message = refusal("benchmark", "long-tail", "cifar100-lt-cee")
    assert message == "there is no recipe 'cifar100-lt-cee'; did you mean cifar100-lt-ce?"
    assert "Missing argument" in usage_error("benchmark", "label-noise")


def test_class_folders_without_splits_are_measured_on_held_out_images(tmp_path: Path) -> None:
    for name, number in (("ant", 6), ("bee", 6)):
        for index in range(number):
            write_image(tmp_path / "images" / name / f"{index}.png", seed=index)
    sets = set_options(data__path=tmp_path / "images", data__long_tail=0.5)
    small = set_options(
        data__validation_fraction=0.5,
        model__backbone="{name: small}",
        augmentation__size=8,
        schedule="{name: cosine, epochs: 1}",
        training__batch_size=2,
        training__precision="fp32",
        data__workers=0,
    )
    run_command("train", "folder-ce", *sets, *small, "--out", tmp_path / "run")
    (run,) = json.loads(run_command("benchmark", "long-tail", tmp_path / "run", "--json"))["runs"]
    assert run["split"] == "validation"
    assert {row["test_images"] for row in run["rows"] if row["group"] == "all"} == {6}
