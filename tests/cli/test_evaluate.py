"""``protosphere evaluate``: the metrics of training again, weakest classes, other classifiers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from protosphere.cli.evaluate import Probe
from protosphere.evaluation.probes import PROBES
from protosphere.runs import RunFolder
from support.commands import invoke, refusal, run_command, set_options

SHORT = [*set_options(schedule__epochs=2), "--device", "cpu"]
QUICK_PROBE = set_options(probe__epochs=2, probe__milestones=[1])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with cross-entropy, and one with NONL and averaged weights."""
    folder = tmp_path_factory.mktemp("runs")
    run_command("train", "digits-ce", "--out", folder / "ce", *SHORT)
    averaged = set_options(training__ema_decay=0.9)
    run_command("train", "digits-nonl", "--out", folder / "nonl", *SHORT, *averaged)
    return folder


def _last_evaluation(run: Path) -> dict[str, Any]:
    record = RunFolder(run).last_evaluation()
    assert record is not None
    return record


def _evaluate(run: Path, *options: str) -> dict[str, Any]:
    output = run_command("evaluate", run, "--device", "cpu", "--json", *options)
    record: dict[str, Any] = json.loads(output)
    return record


@pytest.mark.parametrize("loss", ["ce", "nonl"])
def test_the_metrics_are_those_of_training(runs: Path, loss: str) -> None:
    logged, record = _last_evaluation(runs / loss), _evaluate(runs / loss)
    assert (record["step"], record["split"]) == (logged["step"], "test")
    expected = {name: logged[name] for name in record["metrics"]}
    assert record["metrics"] == pytest.approx(expected)


@pytest.mark.parametrize("loss", ["ce", "nonl"])
def test_the_weakest_classes_come_first(runs: Path, loss: str) -> None:
    weakest = _evaluate(runs / loss)["weakest_classes"]
    accuracies = [record["accuracy"] for record in weakest]
    assert len(accuracies) == 5
    assert accuracies == sorted(accuracies)
    for record in weakest:
        num_wrong = round((1 - record["accuracy"]) * record["num_samples"])
        assert record["num_confused"] <= num_wrong
        assert (record["confused_with"] is None) == (record["num_confused"] == 0)


def test_the_text_has_accuracy_metrics_and_weakest_classes(runs: Path) -> None:
    record, text = _evaluate(runs / "ce"), run_command("evaluate", runs / "ce", "--device", "cpu")
    assert f"test accuracy               {100 * record['metrics']['accuracy']:6.2f} %" in text
    assert f"nc1_ratio                   {record['metrics']['nc1_ratio']:9.4g}" in text
    assert f"Weakest classes: {record['weakest_classes'][0]['class']} " in text


def test_a_run_with_a_validation_split_can_be_tested_in_the_end(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = set_options(data__validation_fraction=0.2)
    run_command("train", "digits-ce", "--out", run, *SHORT, *options)
    validated, tested = _evaluate(run), _evaluate(run, "--split", "test")
    assert (validated["split"], tested["split"]) == ("validation", "test")
    assert _evaluate(run, "--split", "validation") == validated
    assert validated["metrics"]["accuracy"] == _last_evaluation(run)["accuracy"]
    assert validated["metrics"]["train_accuracy"] == tested["metrics"]["train_accuracy"]
    assert validated["metrics"]["accuracy"] != tested["metrics"]["accuracy"]
    text = run_command("evaluate", run, "--split", "test", "--device", "cpu")
    assert f"test accuracy               {100 * tested['metrics']['accuracy']:6.2f} %" in text
    own_text = run_command("evaluate", run, "--device", "cpu")
    assert "validation accuracy  " in own_text
    assert "test accuracy" not in own_text


def test_the_choices_are_all_probes() -> None:
    assert [probe.value for probe in Probe] == ["all", *PROBES]


def test_probes_are_reported_in_order_and_in_json(runs: Path) -> None:
    options = ["--probe", "linear", "--probe", "class_means", "--probe", "head", *QUICK_PROBE]
    result = invoke("evaluate", runs / "ce", "--device", "cpu", "--json", *options)
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    names = [probe["name"] for probe in record["probes"]]
    assert names == ["head", "class_means", "linear"]
    # Each probe is also reported as soon as it is done.
    assert [line.split(",")[0] for line in result.stderr.splitlines()] == names
    assert record["probes"][0]["accuracy"] == record["metrics"]["accuracy"]


def test_all_probes_are_shown_with_their_geometry(runs: Path) -> None:
    command = ["evaluate", runs / "ce", "--device", "cpu", *QUICK_PROBE]
    record = _evaluate(runs / "ce", "--probe", "linear", *QUICK_PROBE)
    text = run_command(*command, "--probe", "all", columns=120)
    for name in ("cosine", "class_means", "normalized", "cached_linear", "knn"):
        assert f"\n  {name}" in text
    geometry = text.split("Training features with the weights of each classifier")[1]
    (row,) = [line.split() for line in geometry.splitlines() if line.startswith("  linear ")]
    columns = [
        "intra_effective_rank",
        "inter_effective_rank",
        "weights_effective_rank",
        "weight_class_alignment",
        "weight_instance_alignment",
        "mir",
        "hdr",
    ]
    metrics = record["probes"][0]["metrics"]
    assert row[1:] == [f"{metrics[name]:.3g}" for name in columns]
    narrow = run_command(*command, "--probe", "cached_linear", columns=50)
    assert "…" not in narrow.split("Training features with the weights")[1]


@pytest.mark.whole_program
def test_the_arrays_of_a_run_are_read_without_torch(runs: Path) -> None:
    program = """
import json, sys
from protosphere.runs import RunFolder
from protosphere.runs.arrays import read_arrays
run = RunFolder(sys.argv[1])
shapes = {name: array.shape for name, array in read_arrays(run).items()}
print(json.dumps(shapes | {"names": len(run.read_json("classes.json"))}))
assert run.records() and "torch" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(runs / "ce")],
        capture_output=True,
        text=True,
        check=True,
    )
    shapes = json.loads(done.stdout)
    assert shapes["names"] == 10
    assert shapes["class_means"] == shapes["prototypes"] == [10, 64]
    for name in ("class_cosines", "prototype_cosines", "confusion"):
        assert shapes[name] == [10, 10]
    assert shapes["means_3d"] == shapes["prototypes_3d"] == [10, 3]
    assert shapes["samples_3d"] == [shapes["sample_labels"][0], 3]


@pytest.mark.bad_input
@pytest.mark.parametrize("command", ["evaluate", "measure"])
def test_a_folder_without_a_run_is_refused(command: str, tmp_path: Path) -> None:
    assert refusal(command, tmp_path) == f"{tmp_path} is not a run folder: it has no recipe"


@pytest.mark.bad_input
def test_a_run_without_a_checkpoint_is_refused(runs: Path, tmp_path: Path) -> None:
    RunFolder(tmp_path).start((runs / "ce/recipe.yaml").read_text(), compare=lambda *_: None)
    assert refusal("evaluate", tmp_path) == f"{tmp_path} has no checkpoint yet"


@pytest.mark.bad_input
def test_overrides_must_not_change_what_was_trained(runs: Path) -> None:
    message = refusal("evaluate", runs / "ce", "--set", "loss.name=nonl")
    assert message.startswith("overrides must not change what was trained: loss.name is ce there")


@pytest.mark.bad_input
def test_a_validation_split_that_does_not_exist_is_refused(runs: Path) -> None:
    message = refusal("evaluate", runs / "ce", "--split", "validation")
    assert "data.validation_fraction is 0" in message


@pytest.mark.bad_input
def test_a_checkpoint_of_another_recipe_is_refused(runs: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for path in (runs / "ce").iterdir():
        (foreign / path.name).symlink_to(path)
    (foreign / "recipe.yaml").unlink()
    (foreign / "recipe.yaml").write_text((runs / "nonl/recipe.yaml").read_text())
    assert "it is of another model" in refusal("evaluate", foreign)
    (foreign / "recipe.yaml").write_text("name: [")
    assert refusal("evaluate", foreign).startswith("a recipe must be valid YAML")
